#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Links and pictures of pages must lead somewhere: in Markdown to a file or folder of the suite, in
# HTML to a place in the same page, for it has to stand alone. Addresses of other sites are not looked
# up in Markdown, and not allowed in HTML where a browser would fetch something from them.
#
#   tests/links.sh [PAGE...]     all .md files of the suite without arguments
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../scripts/lib.sh"
cd "$TOP"
[ $# -gt 0 ] || set -- ./*.md docs/*.md [0-9][0-9]_*/{,*/}*.md
failed=0 links=0

broken() {
  echo "$1: '$2' leads nowhere"
  failed=1
}

for page in "$@"; do
  [ -f "$page" ] || continue
  if [[ $page = *.html ]]; then
    while read -r target; do
      links=$((links + 1))
      [[ $target != data:* ]] || continue # is in the page
      if [[ $target != '#'* ]] || ! grep -qE "\bid=[\"']${target#?}[\"']" "$page"; then broken "$page" "$target"; fi
    done < <(grep -oE "\b(href|src)=[\"'][^\"']*|url\([^)]*|@import.*" "$page" | sed "s/^[a-z]*[=(][\"']*//" | sort -u)
  else
    # shellcheck disable=SC2016 # backquotes begin and end code, in which nothing is a link
    while read -r target; do
      links=$((links + 1))
      [ -e "$(dirname "$page")/$target" ] || broken "$page" "$target"
    done < <(sed '/^```/,/^```/d' "$page" | grep -oE '\]\([^)]*' | sed 's/^](//;s/#.*//' | grep -vE '^$|^[a-z]+:' | sort -u)
  fi
done
echo "$links links followed"
exit $failed
