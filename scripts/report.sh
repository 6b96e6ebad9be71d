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
dir=${1:?report.sh: which results folder?}

# A CSV of --bench (one row per size and variant) as a Markdown table (one row per size).
table() {
  awk -F, '
    function size(b) {
      if (b >= 1073741824) return b / 1073741824 " GiB"
      if (b >= 1048576) return b / 1048576 " MiB"
      if (b >= 1024) return b / 1024 " KiB"
      return b " B"
    }
    NR == 1 { next }
    !($6 in seen) { seen[$6] = 1; variants[++n] = $6 }
    !($1 in row) { row[$1] = 1; sizes[++m] = $1 }
    { us[$1, $6] = $7; bus[$1, $6] = $11; ratio[$1, $6] = $12; wrong[$1] += $13 }
    END {
      printf "| bytes |"; rule = "| ---: |"
      for (v = 1; v <= n; v++) {
        printf " %s us | busbw GB/s |", variants[v]; rule = rule " ---: | ---: |"
        if (v > 1) { printf " ratio |"; rule = rule " ---: |" }
      }
      print " wrong |\n" rule " ---: |"
      for (i = 1; i <= m; i++) {
        b = sizes[i]; printf "| %s |", size(b)
        for (v = 1; v <= n; v++) {
          printf " %.2f | %.1f |", us[b, variants[v]], bus[b, variants[v]]
          if (v > 1) printf " %.2fx |", ratio[b, variants[v]]
        }
        printf " %d |\n", wrong[b]
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
  new=$(mktemp)
  fill_in "$readme" >"$new"
  if $check; then
    diff -u "$readme" "$new" || { echo "report.sh: $readme differs from $dir" >&2; failed=1; }
    rm "$new"
  else
    cat "$new" >"$readme"
    rm "$new"
  fi
done
exit $failed
