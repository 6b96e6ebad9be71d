# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the scripts that read a folder of results share; to be sourced after lib.sh.
#
# A folder of results has provenance.txt and the CSV files of --bench. Their columns are found by
# name: those in front of `us` say what was measured, the others what came out. The error bar of a
# time goes from us_q1 to us_q3, the quartiles of the repetitions, or from us_min to us_max in files
# that have no quartiles.

# Awk programs that read such files begin with "$AWK_CSV". In a file's first line header() sets column[NAME].
# need(NAME) is the place of a column. Where there is none it ends with exit code 2: awk would go on with $0, the whole
# line. is_time(TEXT) says whether that is a time; as_number(FORMAT, TEXT) writes a number, and - where it is none.
# shellcheck disable=SC2016,SC2034 # for awk, in other scripts
AWK_CSV='
  function header(   i) { split("", column); for (i = 1; i <= NF; i++) column[$i] = i }
  function need(name) {
    if (name in column) return column[name]
    print "'"${0##*/}"': " FILENAME ": no column " name "; allowed: a CSV file of --bench" >"/dev/stderr"
    exit failed = 2
  }
  END { if (failed) exit failed }
  function finite(s) { return s ~ /^[0-9]+([.][0-9]*)?([eE][-+]?[0-9]+)?$/ && s + 0 < 1e300 }
  function is_time(s) { return finite(s) && s + 0 > 0 }
  function as_number(format, s) { return finite(s) ? sprintf(format, s) : "-" }'

# check_rows FILE...: ends the script where a row has another number of fields than the first line of its file.
check_rows() {
  local message
  [ -f "${1:-}" ] || return 0
  message=$(awk -F, '
    FNR == 1 { wanted = NF }
    NF != wanted { printf "%s:%d: %d fields, the header has %d", FILENAME, FNR, NF, wanted; exit 1 }' "$@") ||
    die "$message; allowed: a CSV file of --bench"
}

# results_folder DIR: ends the script unless DIR is a folder of results. Sets dir to its path as all programs
# understand it: they take -x for an option, and awk a=b for an assignment.
results_folder() {
  [ -f "${1:-}/provenance.txt" ] || die "'${1:-}' is no folder of results; allowed: DIR, with DIR/provenance.txt"
  [[ $1 != *[[:cntrl:]]* ]] || die "'$1' has a control character in its name; allowed: another name"
  dir=${1%/}
  [[ $dir != -* && $dir != [!/]*=* ]] || dir=./$dir
  check_rows "$dir"/*.csv
}

# times_folder DIR: the same, and there have to be times in it.
times_folder() {
  results_folder "$@"
  if grep -q '^stand-in: ' "$dir/provenance.txt"; then
    die "$1 is a trial on the CPU stand-in, which has no times; allowed: results of GPUs"
  fi
}

# The machine in one line, from provenance.txt, with some words on how it was used. Files of an example
# may come from another run with another NCCL: `version of EXAMPLE: NCCL header ...` says so there. Results in
# which the hardware does not matter have `machine: WORDS` in place of all that.
machine_line() { # machine_line DIR [WORDS [FILE]]: of one file, or of all together
  local file=${3:-}
  awk -F': ' -v words="${2:+ $2;}" -v example="${file%%.*}" '
    $1 == "gpu" { split($2, f, ", "); gpu = f[2]; driver = f[3]; n++ }
    $1 == "version" && /NCCL header/ { nccl = $2 }
    $1 == "version" && /CUDA header/ { cuda = $2 }
    sub(/^version of /, "", $1) { other[$1] = $2; others = others "; " $1 ": " $2 }
    $1 == "environment" { environment = environment " `" $2 "`" }
    $1 == "machine" { machine = $2 }
    $1 == "date" { date = substr($2, 1, 10) }
    END {
      if (machine != "") { print machine "; " date; exit }
      if (example in other) nccl = other[example]
      else if (example == "") nccl = nccl others
      printf "%d x %s, driver %s, %s; %s;%s%s; %s\n", n, gpu, driver, cuda, nccl, words,
        environment == "" ? " no NCCL_ variables set" : environment, date
    }' "$1/provenance.txt"
}

# What the links of the machine can do at best, in GB/s: the largest limit that a program measured.
limit_of() { # limit_of DIR
  local files=("$1"/*.csv)
  [ -f "${files[0]}" ] || return 0
  awk -F, '
    FNR == 1 { at = 0; for (i = 1; i <= NF; i++) if ($i == "limit") at = i; next }
    at && $at + 0 > limit { limit = $at + 0 }
    END { if (limit) print limit }' "${files[@]}"
}
