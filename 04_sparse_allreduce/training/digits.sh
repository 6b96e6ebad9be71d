#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes digits.inc again from the images as others publish them: digits.sh FILE > digits.inc
# FILE has a line for each of the 1797 images: 64 pixels from 0 to 16 and then the digit, with commas between
# them; it may be packed with gzip. The package scikit-learn has it as sklearn/datasets/data/digits.csv.gz; at
# UCI it is optdigits.tes.
cat <<'HEAD'
/* SPDX-License-Identifier: CC-BY-4.0 */
/* "Optical Recognition of Handwritten Digits", its test set: E. Alpaydin and C. Kaynak, UCI Machine Learning
 * Repository, 1998, https://archive.ics.uci.edu/dataset/80, Creative Commons Attribution 4.0. Changed in its form
 * only, by digits.sh: an image is its digit, then 8 rows of 8 pixels, from . (0, paper) and a (1) to p (16, ink). */
HEAD
gzip -cdf -- "$1" | awk -F, '{
  line = $65 + 0
  for (i = 1; i <= 64; i++) line = line substr(".abcdefghijklmnop", $i + 1, 1)
  print "\"" line "\","
}'
