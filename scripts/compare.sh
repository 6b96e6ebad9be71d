#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two folders of results side by side, for example from before and after an upgrade of driver or NCCL.
#
#   scripts/compare.sh OLD NEW [--percent N]     (default: 10)
#
# A line per row that both have: what was measured, both times in us, new / old. Marks:
#
#   *        outside the noise: the error bars of the two times do not meet
#   SLOWER   slower by more than N percent
#   LOST     OLD has a time and NEW none, because the result was wrong
#
# Exit code 0: nothing is SLOWER or LOST; 1: something is; 2: usage, or nothing in common.
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
  -h | --help) sed -n '3,13s/^# \{0,1\}//p' "$0" && exit 0 ;;
  -*) die "unknown option '$1'; allowed: --percent N" ;;
  *) folders+=("${1%/}") ;;
  esac
  shift
done
[ ${#folders[@]} = 2 ] || die "wrong number of folders; allowed: OLD NEW [--percent N]"
require_results "${folders[0]}"
require_results "${folders[1]}"

files=()
for file in "${folders[0]}"/*.csv; do
  [ ! -f "${folders[1]}/${file##*/}" ] || files+=("$file" "${folders[1]}/${file##*/}")
done
[ ${#files[@]} -gt 0 ] || die "no CSV file is in both folders"

echo "old: $(machine_line "${folders[0]}")"
echo "new: $(machine_line "${folders[1]}")"
awk -F, -v percent="$percent" '
  FNR == 1 {
    is_new = seen[name()]++
    delete column
    for (i = 1; i <= NF; i++) column[$i] = i
    us = column["us"]
    low = column["us_q1" in column ? "us_q1" : "us_min"]
    high = column["us_q3" in column ? "us_q3" : "us_max"]
    if (is_new) printf "%s\n", name()
    next
  }
  !us { next }
  {
    key = $1
    for (i = 2; i < us; i++) key = key " " $i
    id = name() "," key
  }
  !is_new { if ($us != "") { old[id] = $us; old_low[id] = $low; old_high[id] = $high; total++ }; next }
  !(id in old) { next }
  $us == "" { printf "  %-50s %10.2f %10s %8s  LOST\n", key, old[id], "-", "-"; lost++; compared++; next }
  {
    mark = ""
    compared++
    if ($low > old_high[id] || $high < old_low[id]) { mark = " *"; outside++ }
    if ($us > old[id] * (1 + percent / 100)) { mark = mark " SLOWER"; slower++ }
    printf "  %-50s %10.2f %10.2f %7.3fx %s\n", key, old[id], $us, $us / old[id], mark
  }
  function name(parts, n) { n = split(FILENAME, parts, "/"); return parts[n] }
  END {
    printf "%d rows compared, %d of OLD not in NEW; %d outside the noise, %d slower by more than %s %%, %d lost\n",
      compared, total - compared, outside, slower, percent, lost
    if (!compared) exit 2
    exit slower + lost > 0
  }' "${files[@]}"
