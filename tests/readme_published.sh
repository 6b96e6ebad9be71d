#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The measured effects in the table of deviations of 04's reference from the published code are what test_published prints:
# every number of that column must stand in its output. What a row says of its input (n, k, numbers of ranks,
# gradients and steps) does not count.
#
#   tests/readme_published.sh FILE      FILE: the output of test_published
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../scripts/lib.sh"
cd "$TOP"
awk -F'|' -v output="$1" '
  BEGIN {
    while ((getline line < output) > 0)
      if (line ~ /^\[[0-9]+\] /) {
        sub(/^\[[0-9]+\] /, "", line)
        gsub(/[^0-9.]+/, " ", line)
        count = split(line, words, " ")
        for (i = 1; i <= count; i++) { sub(/\.+$/, "", words[i]); known[words[i]] = 1 }
      }
  }
  /^\| here \| the published code \| measured effect \|/ { table = 1; getline; next }
  table && !/^\|/ { table = 0 }
  table {
    effect = $4
    gsub(/[0-9]+ ranks?|n = [0-9,]+|k = [0-9]+|gradients of [0-9]+ bits|steps? [0-9]+|[0-9]+ steps?|2\^31/, " ", effect)
    gsub(/[^0-9.]+/, " ", effect)
    count = split(effect, words, " ")
    for (i = 1; i <= count; i++) {
      sub(/\.+$/, "", words[i])
      if (words[i] == "") continue
      numbers++
      if (!(words[i] in known)) { print "04_sparse_allreduce/reference/README.md: test_published does not print " words[i] ":" $4; wrong = 1 }
    }
  }
  END {
    print numbers + 0 " measured effects compared"
    exit wrong || numbers < 10
  }' 04_sparse_allreduce/reference/README.md
