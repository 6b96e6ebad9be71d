#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Writes the tables of a results folder into the READMEs, between the lines
#
#   <!-- table: 01_allreduce_ub.mpi.graph.csv -->   and   <!-- end of table -->
#
#   scripts/report.sh DIR            rewrite the READMEs
#   scripts/report.sh --check DIR    fail if a README differs from the results
set -euo pipefail
cd "$(dirname "$0")/.."
check=false
[ "${1:-}" = --check ] && check=true && shift
if [ $# -ne 1 ] || [ ! -f "$1/provenance.txt" ]; then
  echo "report.sh: '${1:-}' is no folder of results; allowed: [--check] DIR, with DIR/provenance.txt" >&2
  exit 2
fi
dir=${1%/}
new=$(mktemp)
trap 'rm -f "$new"' EXIT

# A CSV of --bench (one row per size and variant) as a Markdown table (one row per size, a cell per
# variant). Columns are found by their names; the first may be a series such as the pattern.
table() {
  awk -F, '
    function size(b) {
      if (b >= 1073741824) return b / 1073741824 " GiB"
      if (b >= 1048576) return b / 1048576 " MiB"
      if (b >= 1024) return b / 1024 " KiB"
      return b " B"
    }
    NR == 1 {
      for (i = 1; i <= NF; i++) column[$i] = i
      rate = "wire" in column ? "wire" : "busbw"
      series = column["bytes"] > 1 ? $1 : ""
      next
    }
    {
      v = $column["variant"]
      row = (series == "" ? "" : $1 " | ") size($column["bytes"])
      if (!(v in seen)) { seen[v] = 1; variants[++n] = v }
      if (!(row in known)) { known[row] = 1; rows[++m] = row }
      cell[row, v] = sprintf("%.2f / %.1f", $column["us"], $column[rate])
      if (n > 1 && v != variants[1]) cell[row, v] = cell[row, v] sprintf(" / %.2fx", $column["ratio"])
      wrong[row] += $column["wrong"]
    }
    END {
      printf "|%s bytes |", (series == "" ? "" : " " series " |")
      rule = series == "" ? "| ---: |" : "| --- | ---: |"
      for (v = 1; v <= n; v++) {
        printf " %s: us / %s GB/s%s |", variants[v], rate, (v > 1 ? " / ratio" : "")
        rule = rule " ---: |"
      }
      print " wrong |\n" rule " ---: |"
      for (i = 1; i <= m; i++) {
        printf "| %s |", rows[i]
        for (v = 1; v <= n; v++) printf " %s |", cell[rows[i], variants[v]]
        printf " %d |\n", wrong[rows[i]]
      }
    }' "$1"
}

# The line under a table that says where it comes from.
source_line() {
  local launcher=${1#*.}
  awk -F': ' -v file="$1" -v launcher="${launcher%%.*}" '
    $1 == "gpu" { split($2, f, ", "); gpu = f[2]; driver = f[3]; n++ }
    $1 == "version" && /NCCL/ { nccl = $2 }
    $1 == "version" && /CUDA/ { cuda = $2 }
    $1 == "environment" { environment = environment " `" $2 "`" }
    $1 == "date" { date = substr($2, 1, 10) }
    END {
      printf "%d x %s, driver %s, %s; %s; %s launcher;%s; %s; ", n, gpu, driver, cuda, nccl,
        launcher, environment == "" ? " no NCCL_ variables set" : environment, date
      printf "raw: `%s/%s`.\n", dir, file
    }' dir="$dir" "$dir/provenance.txt"
}

# A README with its tables filled in, on stdout.
fill_in() {
  local line inside=false file
  while IFS= read -r line; do
    if [[ $line =~ ^'<!-- table: '(.*)' -->'$ ]]; then
      file=${BASH_REMATCH[1]}
      [ -r "$dir/$file" ] || { echo "report.sh: $1 wants $dir/$file, which is not there" >&2; return 1; }
      inside=true
      printf '%s\n\n' "$line"
      table "$dir/$file"
      echo
      source_line "$file"
      echo
    elif [ "$line" = '<!-- end of table -->' ]; then
      inside=false
      echo "$line"
    elif ! $inside; then
      printf '%s\n' "$line"
    fi
  done <"$1"
}

failed=0
for readme in README.md [0-9][0-9]_*/README.md; do
  [ -f "$readme" ] || continue
  fill_in "$readme" >"$new"
  if $check; then
    diff -u "$readme" "$new" || { echo "report.sh: $readme differs from $dir" >&2; failed=1; }
  else
    cat "$new" >"$readme"
  fi
done
exit $failed
