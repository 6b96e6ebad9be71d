#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Code that a page shows must be in the sources: every ```c block of a README has to occur in a C, CUDA
# or header file of the README's folder, of one in it or in that, or of common/, and those of docs/*.md in one of any example,
# line by line, whatever the indentation. Lines of ``` alone separate blocks; a line "..." in a block
# stands for any lines. And `300 lines<!-- FILE... -->` in a page, or words, its files in the page's folder, may be 10 % wrong.
#
#   tests/readme_snippets.sh [PAGE...]     all pages of examples and docs/*.md without arguments
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../scripts/lib.sh"
cd "$TOP"
[ $# -gt 0 ] || set -- README.md [0-9][0-9]_*/{,*/}*.md docs/*.md

# Without indentation, trailing blanks and empty lines.
plain() { sed -e 's/^[[:space:]]*//' -e 's/[[:space:]]*$//' -e '/^$/d' "$1"; }

# found BLOCK FILE: the lines of BLOCK stand one after the other in FILE; behind a line "..." the
# search for the next one starts anew.
found() {
  awk '
    NR == FNR { want[++n] = $0; next }
    { have[++m] = $0 }
    END {
      at = 1
      for (first = 1; first <= n; first = last + 2) {
        for (last = first; last < n && want[last + 1] != "..."; last++);
        for (ok = 0; at + last - first <= m && !ok; at++) {
          ok = 1
          for (i = first; i <= last && ok; i++) ok = want[i] == have[at + i - first]
        }
        if (!ok) exit 1
        at += last - first
      }
    }' <(plain "$1") <(plain "$2")
}

work=$(mktemp -d) || exit
trap 'rm -rf "$work"' EXIT
failed=0 blocks=0
for readme in "$@"; do
  [ -f "$readme" ] || continue
  folders=("$(dirname "$readme")")
  if [ "${folders[0]}" = docs ]; then folders=([0-9][0-9]_*/); fi
  while read -r number unit files; do
    # shellcheck disable=SC2086 # words and patterns
    counted=$(cd "$(dirname "$readme")" && cat -- $files | wc "-${unit:0:1}")
    ((10 * counted >= 9 * number && 10 * counted <= 11 * number)) ||
      { echo "$readme: $number $unit, but $files: $counted" && failed=1; }
  done < <(sed -nE 's/.*[^0-9,]([0-9,]+) (lines|words)<!-- ([^>]*) -->.*/\1 \2 \3/p' "$readme" | sed -E 's/^([0-9]*),/\1/')
  rm -f "$work"/block.*
  awk -v prefix="$work/block." '
    /^```c$/ { file = prefix NR; next }
    /^```/ { file = "" }
    file { print > file }' "$readme"
  for block in "$work"/block.*; do
    [ -f "$block" ] || continue
    blocks=$((blocks + 1))
    ok=no line=$(plain "$block" | grep -vxF -m 1 ...)
    # which have the block's first line at least
    while IFS= read -rd '' source; do
      if found "$block" "$source"; then ok=yes && break; fi
    done < <(find "${folders[@]}" common -name build -prune -o -name '*.[ch]*' -exec grep -lZF -e "$line" {} +)
    if [ $ok = no ]; then
      echo "$readme:${block##*.}: this block is in no source file:"
      sed 's/^/    /' "$block"
      failed=1
    fi
  done
done
echo "$blocks blocks of code compared"
exit $failed
