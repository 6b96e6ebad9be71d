#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes digits.inc again from the images as others publish them: digits.sh FILE > digits.inc
#
# FILE has a line for each of the 1797 images: 64 pixels from 0 to 16 and then the digit, with commas between
# them; it may be packed with gzip. The package scikit-learn has it as sklearn/datasets/data/digits.csv.gz; at
# UCI it is optdigits.tes.
#
# Exit code 0: made; 1: FILE is something else; 2: usage.
set -euo pipefail
[[ $# = 1 && -r $1 ]] || { echo "digits.sh: no file '${1:-}'; allowed: one that can be read" >&2 && exit 2; }

cat <<'HEAD'
/* SPDX-License-Identifier: CC-BY-4.0 */
/* "Optical Recognition of Handwritten Digits", its test set: E. Alpaydin and C. Kaynak, UCI Machine Learning
 * Repository, 1998, https://archive.ics.uci.edu/dataset/80, Creative Commons Attribution 4.0. Changed in its form
 * only, by digits.sh: an image is its digit, then 8 rows of 8 pixels, from . (0, paper) and a (1) to p (16, ink). */
HEAD
gzip -cdf -- "$1" | awk -F, '
  function bad(why) { print "digits.sh: line " NR ": " why >"/dev/stderr"; failed = 1; exit 1 }
  { sub(/\r$/, "") }
  NF != 65 { bad(NF " numbers; allowed: 65") }
  $65 !~ /^[0-9]$/ { bad("the digit \047" $65 "\047; allowed: 0 to 9") }
  {
    line = $65
    for (i = 1; i <= 64; i++) {
      if ($i !~ /^(.|1[0-6])$/ || $i !~ /^[0-9]+$/) bad("a pixel \047" $i "\047; allowed: 0 to 16")
      line = line substr(".abcdefghijklmnop", $i + 1, 1)
    }
    print "\"" line "\","
  }
  END {
    if (!failed && NR != 1797) { print "digits.sh: " NR " images; allowed: 1797" >"/dev/stderr"; failed = 1 }
    exit failed
  }'
