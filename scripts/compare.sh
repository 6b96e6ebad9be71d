#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two folders of results side by side, for example from before and after an upgrade of driver or NCCL.
#
#   scripts/compare.sh OLD NEW [--percent N]     (default: 10)
#
# A line per row that has a time in both: what was measured, both times in us, new / old. Marks:
#
#   *        outside the noise: the error bars of the two times do not meet
#   SLOWER   slower by more than N percent
#   LOST     OLD has a time and NEW none, because the result was wrong
#
# Files that only one has, or that have no rows, are named on stderr.
# Exit code 0: nothing is SLOWER or LOST; 1: something is; 2: usage, or no row that both have.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/results.sh
. "$(dirname "$0")/results.sh"

percent=10 folders=()
while [ $# -gt 0 ]; do
  case $1 in
  --percent)
    [[ ${2:-} =~ ^[0-9]+(\.[0-9]+)?$ ]] || die "--percent: '${2:-}' is not a number; allowed: 0 or more"
    percent=$2
    shift
    ;;
  -h | --help) show_help ;;
  -*) die "unknown option '$1'; allowed: --percent N" ;;
  *) folders+=("$1") ;;
  esac
  shift
done
[ ${#folders[@]} = 2 ] || die "wrong number of folders; allowed: OLD NEW [--percent N]"
times_folder "${folders[0]}"
old=$dir
times_folder "${folders[1]}"
new=$dir

# files_of FOLDER OTHER NAME: sets files to the folder's CSV files, and common to those that the other has too;
# says which cannot be compared.
files_of() {
  local file alone='' empty=''
  files=() common=()
  for file in "$1"/*.csv; do
    [ -f "$file" ] || continue
    files+=("$file")
    if [ "$(wc -l <"$file")" -lt 2 ]; then
      empty+=" ${file##*/}"
    elif [ ! -f "$2/${file##*/}" ]; then
      alone+=" ${file##*/}"
    else
      common+=("$file")
    fi
  done
  [ -z "$empty" ] || echo "note: without rows in $3:$empty" >&2
  [ -z "$alone" ] || echo "note: only in $3:$alone" >&2
}
files_of "$old" "$new" OLD
old_files=("${files[@]}") old_common=("${common[@]}")
files_of "$new" "$old" NEW
new_files=("${files[@]}") new_common=("${common[@]}")
if [ ${#old_common[@]} = 0 ] || [ ${#new_common[@]} = 0 ]; then
  die "no CSV file with rows is in both folders; allowed: results of the same examples"
fi

# The columns before `us` say what was measured; names[1 ... us - 1] are theirs.
# shellcheck disable=SC2016 # for awk
AWK_COLUMNS='
  FNR == 1 {
    file = FILENAME
    sub(/.*\//, "", file)
    split("", column)
    for (i = 1; i <= NF; i++) { column[$i] = i; names[i] = $i }
    us = column["us"]
    low = column["us_q1" in column ? "us_q1" : "us_min"]
    high = column["us_q3" in column ? "us_q3" : "us_max"]
    next
  }
  !us { next }
  { time = $us + 0 }'

compare() {
  awk -F, -v percent="$percent" "$AWK_COLUMNS"'
    {
      key = $1
      for (i = 2; i < us; i++) key = key " " $i
      id = file "," key
    }
    side == "OLD" && time > 0 { of_old += !(id in old); old[id] = time; old_low[id] = $low; old_high[id] = $high }
    side == "OLD" { next }
    !(id in old) { only_new += time > 0; next }
    file != shown {
      shown = file
      heading = names[1]
      for (i = 2; i < us; i++) heading = heading " " names[i]
      printf "%s\n  %-50s %10s %10s %8s\n", file, heading, "old, us", "new, us", "new/old"
    }
    { compared += !met[id]++ }
    !(time > 0) { printf "  %-50s %10.2f %10s %8s  LOST\n", key, old[id], "-", "-"; lost++; next }
    {
      mark = ""
      if (low && high && ($low > old_high[id] || $high < old_low[id])) { mark = " *"; outside++ }
      if (time > old[id] * (1 + percent / 100)) { mark = mark " SLOWER"; slower++ }
      printf "  %-50s %10.2f %10.2f %7.3fx %s\n", key, old[id], time, time / old[id], mark
    }
    END {
      if (!compared) exit 3
      printf "%d %s compared, %d of OLD not in NEW, %d of NEW not in OLD; ", compared, compared == 1 ? "row" : "rows",
        of_old - compared, only_new
      printf "%d outside the noise, %d slower by more than %s %%, %d lost\n", outside, slower, percent, lost
      exit slower + lost > 0
    }' side=OLD "${old_files[@]}" side=NEW "${new_files[@]}"
}

# Where rows of the same file differ: columns that have no value in common.
difference() {
  awk -F, "$AWK_COLUMNS"'
    function values(side, name,   n) {
      n = number[side, name]
      return n == 0 ? "missing" : n > 3 ? "one of " n : list[side, name]
    }
    time > 0 {
      timed[side] = 1
      for (i = 1; i < us; i++) {
        name = names[i]
        if (seen[side, name, $i]++) continue
        if (!known[name]++) columns[++n] = name
        list[side, name] = list[side, name] (number[side, name]++ ? " or " : "") $i
        if (seen["OLD", name, $i] && seen["NEW", name, $i]) shared[name] = 1
      }
    }
    END {
      for (i = 1; i <= n; i++) {
        name = columns[i]
        if (!shared[name]) text = text "; " name " is " values("OLD", name) " in OLD and " values("NEW", name) " in NEW"
      }
      if (!timed["OLD"] || !timed["NEW"]) text = "; " (timed["OLD"] ? "NEW" : "OLD") " has no times"
      print text == "" ? "no combination of columns is in both" : substr(text, 3)
    }' side=OLD "${old_common[@]}" side=NEW "${new_common[@]}"
}

echo "old: $(machine_line "$old")"
echo "new: $(machine_line "$new")"
code=0
compare || code=$?
[ $code != 3 ] || die "no row is in both folders: $(difference); allowed: results of the same kind"
exit $code
