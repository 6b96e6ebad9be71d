#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Words that must not come back: private ones, those that English does not use so, British spelling. In pages, in comments
# and messages of sources; the second list in pages only. Exit code 1 where there are some.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
words="times as fast|for ever\b|in place of|one's own|\bstor(y|ies)\b|\bcrowd|\btwins?\b|\bsettle|\bseal(s|ed|ing)?\b|\blearnt\b"
words+='|(initial|synchron|util|vector|serial|real|organ)is(e|es|ed|ing|ation)\b|neighbour|behaviour|colour|favour|licence'
pages='\bbeside\b|\bstands? (in|on|at|for|between|before|still|there)\b|, too[.,;:)]|\bWho (wants|knows|has|needs)\b'
pages+='|\btells\b(?! (you|a peer|a rank|the others))'
found=0
for page in ./*.md docs/*.md [0-9][0-9]_*/{,*/}*.md; do
  awk '/^```/ { code = !code } { print code ? "" : $0 }' "$page" | grep -nPi "$words|$pages" | sed "s,^,$page:," && found=1
done
grep -rnPi --include='*.c' --include='*.h' --include='*.cu' --include='*.cuh' --include='*.py' --include='*.sh' --include='*.bats' \
  --exclude=words.sh --exclude-dir=build -- "$words" common scripts tests [0-9][0-9]_* && found=1
exit $found
