#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All of a results folder in one JSON text on stdout, for programs that read results:
#
#   scripts/results_json.sh DIR
#
#   { "provenance": ["date: ...", ...], "rows": [{"part": "01_allreduce_ub.mpi.graph", "bytes": 1024, ...}, ...] }
#
# A row has the columns of its CSV file; what looks like a number is one, an empty field is null.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/results.sh
. "$(dirname "$0")/results.sh"

case ${1:-} in -h | --help) show_help ;; esac
[ $# = 1 ] || die "wrong number of arguments; allowed: DIR"
results_folder "$1"
shopt -s nullglob
files=("$dir"/*.csv)
awk -F, '
  function text(s) {
    gsub(/["\\]/, "\\\\&", s); gsub(/\t/, "\\t", s); gsub(/[[:cntrl:]]/, " ", s)
    return "\"" s "\""
  }
  function value(s) {
    if (s == "") return "null"
    return s ~ /^-?(0|[1-9][0-9]*)(\.[0-9]+)?(e[-+]?[0-9][0-9]?)?$/ ? s : text(s)
  }
  FILENAME ~ /provenance\.txt$/ { lines = lines comma "\n    " text($0); comma = ","; next }
  FNR == 1 {
    part = FILENAME; sub(/.*\//, "", part); sub(/\.csv$/, "", part)
    for (i = 1; i <= NF; i++) column[i] = $i
    next
  }
  {
    row = "\"part\": " text(part)
    for (i = 1; i <= NF; i++) row = row ", " text(column[i]) ": " value($i)
    rows = rows (rows == "" ? "" : ",") "\n    {" row "}"
  }
  END { printf "{\n  \"provenance\": [%s\n  ],\n  \"rows\": [%s\n  ]\n}\n", lines, rows }
' "$dir/provenance.txt" "${files[@]}"
