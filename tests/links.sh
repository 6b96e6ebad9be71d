#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Links and pictures of pages must lead to a file or folder of the suite. Addresses of other sites are not looked up.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0 links=0
for page in ./*.md docs/*.md [0-9][0-9]_*/{,*/}*.md; do
  # shellcheck disable=SC2016 # backquotes begin and end code, in which nothing is a link
  while read -r target; do
    links=$((links + 1))
    [ -e "$(dirname "$page")/$target" ] || { echo "$page: '$target' leads nowhere" && failed=1; }
  done < <(sed '/^```/,/^```/d' "$page" | grep -oE '\]\([^)]*' | sed 's/^](//;s/#.*//' | grep -vE '^$|^[a-z]+:' | sort -u)
done
echo "$links links followed"
exit $failed
