#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two folders of results side by side, for example from before and after an upgrade of driver or NCCL.
#
#   scripts/compare.sh OLD NEW [--percent N]     (default: 10)
#
# A line per row that has a time in both: what was measured, in the columns that both files have; both times in us,
# new / old. Below the rows of a file, how many of it only one side has, and which values these have. Marks:
#
#   *        outside the noise: the error bars of the two times do not meet
#   SLOWER   slower by more than N percent
#   LOST     OLD has a time and NEW none, because the result was wrong
#
# Files that only one has, or that have no rows, are named on stderr.
# Exit code 0: nothing is SLOWER or LOST; 1: something is; 2: usage, or no row that both have.
set -euo pipefail
# shellcheck source=scripts/lib/lib.sh
. "$(dirname "$(realpath "$0")")/lib/lib.sh"
# shellcheck source=scripts/lib/results.sh
. "$TOP/scripts/lib/results.sh"

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

# files_of FOLDER OTHER NAME: sets files to the folder's CSV files; says which cannot be compared.
files_of() {
  local file alone='' empty=''
  files=()
  for file in "$1"/*.csv; do
    [ -f "$file" ] || continue
    files+=("$file")
    if [ "$(wc -l <"$file")" -lt 2 ]; then
      empty+=" ${file##*/}"
    elif [ ! -f "$2/${file##*/}" ]; then
      alone+=" ${file##*/}"
    fi
  done
  [ -z "$empty" ] || echo "note: without rows in $3:$empty" >&2
  [ -z "$alone" ] || echo "note: only in $3:$alone" >&2
}
files_of "$old" "$new" OLD
old_files=("${files[@]}")
files_of "$new" "$old" NEW
new_files=("${files[@]}")

# The rows of a file are compared once all are read, since columns are those that both have. Text is kept until
# the end: where nothing can be compared, nothing is printed.
compare() {
  awk -F, -v percent="$percent" "$AWK_CSV"'
    FNR == 1 {
      file = FILENAME
      sub(/.*\//, "", file)
      if (!known[file]++) order[++files] = file
      head[side, file] = $0
      next
    }
    { line[side, file, ++lines[side, file]] = $0 }

    # Of a side: at[NAME], the columns before `us` in names[1 ... n]; nothing where it has no times.
    function columns(side, file,   i, n) {
      split("", at)
      n = split(head[side, file], names)
      for (i = 1; i <= n; i++) at[names[i]] = i
      low = at["us_q1" in at ? "us_q1" : "us_min"]
      high = at["us_q3" in at ? "us_q3" : "us_max"]
      return "us" in at ? at["us"] - 1 : 0
    }
    function key_of(   i, key) {
      for (i = 1; i <= shared; i++) key = key (i > 1 ? "," : "") field[at[name[i]]]
      return key
    }
    # Which values of which columns only one side has: of rows that cannot be compared.
    function only_in(side, other,   i, j, n, text, list, count) {
      for (i = 1; i <= shared; i++) {
        list = ""
        count = 0
        n = valued[side, i]
        for (j = 1; j <= n; j++)
          if (!((other, i, listed[side, i, j]) in value) && ++count <= 3) list = list (count > 1 ? ", " : "") listed[side, i, j]
        if (count) text = text "; " name[i] " " list (count > 3 ? " and " count - 3 " more" : "")
      }
      return text == "" ? "no such combination of columns in " other : "only there: " substr(text, 3)
    }
    function note_values(side,   i, v) {
      for (i = 1; i <= shared; i++) {
        v = field[at[name[i]]]
        if (!((side, i, v) in value)) { value[side, i, v] = 1; listed[side, i, ++valued[side, i]] = v }
      }
    }
    function timed(side, file,   i, count) { # rows with a time
      columns(side, file)
      for (i = 1; i <= lines[side, file]; i++) {
        split(line[side, file, i], field)
        count += "us" in at && is_time(field[at["us"]])
      }
      return count + 0
    }
    function one_file(file,   i, j, n, m, key, time, mark, text, alone, news, rows, wide, cells, part) {
      split("", value); split("", valued); split("", listed); split("", old); split("", met); split("", row)
      n = columns("OLD", file)
      for (i = 1; i <= n; i++) before[file, names[i]] = 1
      m = columns("NEW", file)
      if (!n || !m) { # rows of one side only, which the notes above name
        of_old += timed("OLD", file)
        only_new += timed("NEW", file)
        return
      }
      shared = 0
      for (i = 1; i <= m; i++) if ((file, names[i]) in before) name[++shared] = names[i]
      columns("OLD", file)
      for (i = 1; i <= lines["OLD", file]; i++) {
        split(line["OLD", file, i], field)
        if (!is_time(field[at["us"]])) continue
        key = key_of()
        note_values("OLD")
        if (!(key in old)) alone++
        old[key] = field[at["us"]]; old_low[key] = field[low]; old_high[key] = field[high]
      }
      of_old += alone
      columns("NEW", file)
      for (i = 1; i <= shared; i++) wide[i] = length(name[i])
      for (i = 1; i <= lines["NEW", file]; i++) {
        split(line["NEW", file, i], field)
        time = is_time(field[at["us"]]) ? field[at["us"]] + 0 : 0
        key = key_of()
        if (!(key in old)) {
          if (time > 0) { only_new++; news++; note_values("NEW") }
          continue
        }
        note_values("NEW")
        if (!met[key]++) { compared++; alone-- }
        if (!(time > 0)) { lost++; text = sprintf("%10.2f %10s %8s  LOST", old[key], "-", "-") }
        else {
          mark = ""
          if (field[low] && field[high] && (field[low] + 0 > old_high[key] + 0 || field[high] + 0 < old_low[key] + 0)) { mark = " *"; outside++ }
          if (time > old[key] * (1 + percent / 100)) { mark = mark " SLOWER"; slower++ }
          text = sprintf("%10.2f %10.2f %7.3fx %s", old[key], time, time / old[key], mark)
        }
        cells[++rows] = key
        row[rows] = text
        split(key, part)
        for (j = 1; j <= shared; j++) if (length(part[j]) > wide[j]) wide[j] = length(part[j])
      }
      if (!rows && !alone && !news) return
      out = out file "\n"
      if (rows) {
        out = out " "
        for (j = 1; j <= shared; j++) out = out sprintf(" %-" wide[j] "s", name[j])
        out = out sprintf(" %10s %10s %8s\n", "old, us", "new, us", "new/old")
      }
      for (i = 1; i <= rows; i++) {
        split(cells[i], part)
        out = out " "
        for (j = 1; j <= shared; j++) out = out sprintf(" %-" wide[j] "s", part[j])
        out = out " " row[i] "\n"
      }
      if (alone) out = out sprintf("  not compared: %d of OLD, %s\n", alone, only_in("OLD", "NEW"))
      if (news) out = out sprintf("  not compared: %d of NEW, %s\n", news, only_in("NEW", "OLD"))
    }
    END {
      for (f = 1; f <= files; f++) one_file(order[f])
      if (!compared) exit 3
      printf "%s%d %s compared, %d of OLD not in NEW, %d of NEW not in OLD; ", out, compared, compared == 1 ? "row" : "rows",
        of_old - compared, only_new
      printf "%d outside the noise, %d slower by more than %s %%, %d lost\n", outside, slower, percent, lost
      exit slower + lost > 0
    }' side=OLD "${old_files[@]}" side=NEW "${new_files[@]}" /dev/null
}

echo "old: $(machine_line "$old")"
echo "new: $(machine_line "$new")"
code=0
compare || code=$?
[ $code != 3 ] || die "no row with a time is in both folders; allowed: results of the same examples, of as many ranks"
exit $code
