#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows a folder of results: in the pages of the suite and as one page of its own.
#
#   scripts/report.sh DIR            rewrite the pages, and write DIR/report.html
#   scripts/report.sh --html DIR     only DIR/report.html, which has everything in it: tables, pictures
#                                    (scripts/plot.sh makes them), provenance
#   scripts/report.sh --check DIR    change nothing; fail if a page differs from the results
#
# In README.md, docs/*.md, the READMEs of the examples and the pages of their folders it fills what stands between such lines:
#
#   <!-- table: FILE.csv -->                      <!-- end of table -->
#   <!-- picture: NAME, words in its place -->    <!-- end of picture -->
#   <!-- headline -->                             <!-- end of headline -->
#
# `table: FILE.csv, only 1 KiB, 64 KiB` shows these rows of it (`uniform 1 KiB` where a pattern stands before
# the size); without `only` it has all. `, without plan, bare push` at the end leaves these columns out.
# `FOLDER/FILE.csv` and `FOLDER/NAME` are always those of results/FOLDER, whatever DIR is.
#
# All pages are rewritten or none. Exit code 0: written, or no difference; 1: a file is missing or cannot be
# written, or a page differs; 2: usage, or such a line in a page or a file is not understood.
set -euo pipefail
shopt -s inherit_errexit
# shellcheck source=scripts/lib/lib.sh
. "$(dirname "$(realpath "$0")")/lib/lib.sh"
# shellcheck source=scripts/lib/results.sh
. "$TOP/scripts/lib/results.sh"
# shellcheck source=scripts/lib/files.sh
. "$TOP/scripts/lib/files.sh"
# shellcheck source=scripts/lib/report_tables.sh
. "$TOP/scripts/lib/report_tables.sh"
# shellcheck source=scripts/lib/report_page.sh
. "$TOP/scripts/lib/report_page.sh"

mode=all
case ${1:-} in
--check | --html) mode=${1#--} && shift ;;
-h | --help) show_help ;;
esac
[ $# = 1 ] || die "wrong arguments '$*'; allowed: [--check | --html] DIR"
times_folder "$1"
shown=$(realpath --relative-to="$TOP" -- "$dir")
[[ $mode = html || $shown != ../* ]] || die "the pages cannot show results outside of $TOP; allowed: --html DIR"
[[ $mode = html || ! $shown =~ [^A-Za-z0-9/._=+-] ]] ||
  die "the pages cannot have a link to '$shown'; allowed: letters, digits and / . _ = + - in its name, or --html DIR"
dir=./$shown
cd "$TOP"

# ---- the pages -----------------------------------------------------------------------------------
# What belongs between the lines of a marker.
filling() { # filling PAGE table|picture|headline ARGUMENT
  local dir=$dir shown=$shown argument=$3 file how='' only='' without='' text
  if [[ ${3%%,*} = */* ]]; then argument=${3#*/} shown=results/${3%%/*} dir=./results/${3%%/*}; fi
  case $2 in
  table)
    if [[ $argument = *', without '* ]]; then without=${argument#*, without } argument=${argument%%, without *}; fi
    if [[ $argument = *', only '* ]]; then only=${argument#*, only } argument=${argument%%, only *}; fi
    file=$shown/$argument
    if [[ $argument =~ ^[0-9]{2}_[^./]+\.([a-z]+)\. ]]; then how="${BASH_REMATCH[1]} launcher"; fi
    [ -f "$file" ] || { echo "report.sh: $1 wants $file, which is not there" >&2 && return 1; }
    [ -n "$(sed -n 2p "$file")" ] || { echo "report.sh: $1 wants $file, which has no rows" >&2 && return 1; }
    check_rows "$file"
    table "$file" "$only" "$without"
    printf '\n%s; raw: %s.\n' "$(machine_line "$dir" "$how" "$argument")" "\`$file\`"
    ;;
  picture)
    file=$shown/plots/${argument%%, *}.svg
    [ -f "$file" ] || { echo "report.sh: $1 wants $file; scripts/plot.sh makes it" >&2 && return 1; }
    echo "![${argument#*, }]($(realpath --relative-to="$(dirname "$1")" "$file"))"
    text=$(picture_caption "${argument%%, *}")
    if [ -n "$text" ]; then printf '\n%s\n' "$text"; fi
    ;;
  headline)
    headline
    printf '\n%s; raw: %s.\n' "$(machine_line "$dir" "mpi launcher, in a CUDA graph")" "\`$shown\`"
    ;;
  esac
}

BEGIN='^<!-- (table: .+|picture: .+|headline) -->[[:space:]]*$'
END='^<!-- end of (table|picture|headline) -->[[:space:]]*$'
SIMILAR='^[[:space:]]*<!--[[:space:]]*(end[[:space:]]+of[[:space:]]+)?(table|picture|headline)[[:space:]]*(:|-->)'

# A page with everything filled in, on stdout. What it does not understand it refuses: text would be lost.
fill_in() { # fill_in PAGE
  local lines line number=0 open='' begun=0
  mapfile lines <"$1" # each with its newline, if it has one
  for line in "${lines[@]}"; do
    number=$((number + 1))
    if [[ -z $open && $line =~ $BEGIN ]]; then
      open=${BASH_REMATCH[1]%%: *} begun=$number
      printf '%s\n' "$line"
      filling "$1" "$open" "${BASH_REMATCH[1]#*: }"
      echo
    elif [[ $line =~ $END && ${BASH_REMATCH[1]} = "$open" ]]; then
      open=''
      printf %s "$line"
    elif [[ $line =~ $SIMILAR ]]; then
      die "$1:$number: '${line%$'\n'}' is not understood${open:+ inside of the $open of line $begun}; allowed:" \
        "<!-- table: FILE.csv[, only ROW, ROW][, without COLUMN, COLUMN] -->, <!-- picture: NAME, words -->, <!-- headline --> and then its <!-- end of ... -->"
    elif [ -z "$open" ]; then
      printf %s "$line"
    fi
  done
  [ -z "$open" ] || die "$1:$begun: the $open has no end; allowed: <!-- end of $open --> after it"
}

# ---- all of it -----------------------------------------------------------------------------------
failed=0
for page in README.md docs/*.md [0-9][0-9]_*/{README,*/*}.md; do
  [ -f "$page" ] || continue
  case $mode in
  all)
    begin_file "$page"
    fill_in "$page" | write_file
    ;;
  check)
    text=$(fill_in "$page"; echo .) # the dot keeps newlines
    diff -u "$page" <(printf %s "${text%.}") || { echo "report.sh: $page differs from $shown" >&2 && failed=1; }
    ;;
  esac
done
if [ "$mode" != check ]; then
  begin_file "$dir/report.html"
  page | write_file
  keep_files
  echo "$shown/report.html"
fi
exit $failed
