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
#
# All pages are rewritten or none. Exit code 0: written, or no difference; 1: a file is missing or cannot be
# written, or a page differs; 2: usage, or such a line in a page is not understood.
set -euo pipefail
shopt -s inherit_errexit
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/results.sh
. "$(dirname "$0")/results.sh"
# shellcheck source=scripts/files.sh
. "$(dirname "$0")/files.sh"

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

# What the headline table shows, where it was measured: file, variant, bytes, and series or -; of the
# sparse AllReduce file, path, elements and density.
HEADLINE='
01_allreduce_ub.mpi.graph.csv registered 268435456 -
02_allreduce_sm.mpi.graph.csv symmetric 1024 -
02_allreduce_sm.mpi.graph.csv symmetric 268435456 -
03_alltoallv_sm.mpi.graph.csv alltoallv 65536 uniform
03_alltoallv_sm.mpi.graph.csv alltoallv 268435456 uniform
03_alltoallv_sm.mpi.graph.csv alltoallv 268435456 skew
04_sparse_allreduce.mpi.graph.csv oktopk 14728266 0.02
04_sparse_allreduce.mpi.graph.csv oktopk 133547324 0.01
'

# ---- tables, in Markdown -------------------------------------------------------------------------
AWK_SIZE='
  function size(b) {
    if (b >= 1073741824) return b / 1073741824 " GiB"
    if (b >= 1048576) return b / 1048576 " MiB"
    if (b >= 1024) return b / 1024 " KiB"
    return b " B"
  }'

# A CSV of --bench as a Markdown table: a row per size, and series such as the pattern if it has one, or
# per size and density of the sparse AllReduce; a cell per variant or path. Columns are found by their
# names. A file without these columns is shown as it is. ROWS, separated by ", ", are those wanted, else all;
# COLUMNS are not wanted.
table() { # table FILE [ROWS [COLUMNS]]
  awk -F, -v only="${2:-}" -v without="${3:-}" "$AWK_SIZE"'
    NR == 1 {
      for (i = 1; i <= NF; i++) column[$i] = i
      sparse = "path" in column
      plain = !sparse && !("bytes" in column && "variant" in column)
      variant = column[sparse ? "path" : "variant"]
      rate = "wire" in column ? "wire" : "busbw"
      series = column["bytes"] > 1 ? $1 : ""
    }
    plain { gsub(/,/, " | "); print "| " $0 " |" }
    plain && NR == 1 { gsub(/[^|]+/, " ---: "); print "|" $0 "|" }
    plain || NR == 1 { next }
    {
      v = $variant
      if (sparse) row = $column["count"] " | " 100 * $column["density"] " %"
      else row = (series == "" ? "" : $1 " | ") size($column["bytes"])
      name = row
      sub(/ [|]/, "", name)
      names[name]
      if (only != "" && index(", " only ", ", ", " name ", ") == 0) next
      seen[v]
      if (index(", " without ", ", ", " v ", ")) next
      if (!(v in shown)) { shown[v] = 1; variants[++n] = v }
      if (!(row in known)) { known[row] = 1; rows[++m] = row }
      cell[row, v] = "-"
      if ($column["us"] != "" && sparse) cell[row, v] = sprintf("%.0f / %.2fx", $column["us"], $column["ratio"])
      else if ($column["us"] != "") {
        cell[row, v] = sprintf("%.2f / %.1f", $column["us"], $column[rate])
        if (n > 1 && v != variants[1]) cell[row, v] = cell[row, v] sprintf(" / %.2fx", $column["ratio"])
      }
      wrong[row] += $column["wrong"]
    }
    END {
      if (plain) exit
      wanted = split(only, rows_wanted, ", ")
      for (i = 1; i <= wanted; i++)
        if (!(rows_wanted[i] in names)) {
          print "report.sh: " FILENAME " has no row \047" rows_wanted[i] "\047" >"/dev/stderr"
          exit 1
        }
      unwanted = split(without, columns_unwanted, ", ")
      for (i = 1; i <= unwanted; i++)
        if (!(columns_unwanted[i] in seen)) {
          print "report.sh: " FILENAME " has no column \047" columns_unwanted[i] "\047" >"/dev/stderr"
          exit 1
        }
      printf sparse ? "| elements | density |" : "|%s bytes |", (series == "" ? "" : " " series " |")
      rule = sparse ? "| ---: | ---: |" : series == "" ? "| ---: |" : "| --- | ---: |"
      for (v = 1; v <= n; v++) {
        printf sparse ? " %s: us / ratio |" : " %s: us / %s GB/s%s |", variants[v], rate, (v > 1 ? " / ratio" : "")
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

headline_row() { # headline_row FILE VARIANT BYTES SERIES
  local example=${1%%.*}
  awk -F, -v example="${example%%_*}" -v variant="$2" -v amount="$3" -v series="$4" -v limit="$(limit_of "$dir")" "$AWK_SIZE"'
    function row(what, amount, base, base_us, rate, share) {
      printf "| %s | %s | %s | %s: %.2f | %.2f | %.2fx | %s | %s |\n", example, what, amount, base, base_us,
        $column["us"], $column["ratio"], rate, share
    }
    NR == 1 {
      for (i = 1; i <= NF; i++) column[$i] = i
      rate = column["wire" in column ? "wire" : "busbw"]
      sparse = "path" in column
      next
    }
    sparse {
      if ($column["path"] == variant && $column["count"] == amount && $column["density"] == series && $column["us"] != "")
        row(variant ", density " series, amount " elements", "dense", $column["dense_us"], "-", "-")
      next
    }
    $column["bytes"] != amount || (series != "-" && $1 != series) { next }
    base == "" { base = $column["variant"]; base_us = $column["us"] }
    $column["variant"] == variant && $column["us"] != "" {
      share = amount < 1048576 ? "(latency)" : limit ? sprintf("%.0f %%", 100 * $rate / limit) : "unknown"
      row(variant (series == "-" ? "" : ", " series), size(amount), base, base_us, sprintf("%.1f", $rate), share)
    }' "$dir/$1"
}

headline() {
  local file variant bytes series limit
  limit=$(limit_of "$dir")
  echo "| example | what | size | compared with, us | us | times faster | GB/s | of the limit${limit:+, $limit GB/s} |"
  echo "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
  while read -r file variant bytes series; do
    if [ -f "$dir/$file" ]; then headline_row "$file" "$variant" "$bytes" "$series"; fi
  done <<<"$HEADLINE"
}

# ---- captions ------------------------------------------------------------------------------------
# raw_files FILE...: their paths in backquotes; of those that differ in the number of ranks, one pattern.
raw_files() {
  # shellcheck disable=SC2016 # backquotes of Markdown
  printf '%s\n' "$@" | sed 's/ranks[0-9]*\.csv$/ranks*.csv/; s/.*/`&`/' | uniq | paste -s -d ' ' | sed 's/ /, /g'
}

# The files of this folder from which scripts/plot.sh draws a picture.
plotted_files() { # plotted_files NAME
  local what pattern rest file
  while read -r what pattern rest; do
    for file in "$shown"/$pattern; do
      if [ "$what" != limit ] && [ -f "$file" ]; then echo "$file"; fi
    done
  done < <(sed -n 's/^# data: //p' "scripts/plots/$1.gnuplot")
}

# What is shown, and where each series comes from: GPUs, or the stand-in, on which only words are counted.
picture_caption() { # picture_caption NAME
  local script=scripts/plots/$1.gnuplot files counted
  [ -f "$script" ] || return 0
  mapfile -t files < <(plotted_files "$1" | grep -v '\.standin\.')
  mapfile -t counted < <(plotted_files "$1" | grep '\.standin\.')
  sed -n 's/^# caption: //p' "$script"
  if [ ${#files[@]} -gt 0 ]; then
    echo "From $(machine_line "$dir" "" "$(basename "${files[0]}")"); raw: $(raw_files "${files[@]}")."
  fi
  if [ ${#counted[@]} -gt 0 ]; then
    echo "Counted on the CPU stand-in, without GPUs$(awk -F, '
      FNR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
      { count = $column["count"]; density = $column["density"]; checked += $column["verified_steps"] }
      END { printf ": %s elements, density %g %%, verification %s", count, 100 * density, checked ? "on" : "off" }' \
      "${counted[@]}"); raw: $(raw_files "${counted[@]}")."
  fi
}

# ---- the pages -----------------------------------------------------------------------------------
# What belongs between the lines of a marker.
filling() { # filling PAGE table|picture|headline ARGUMENT
  local file=$shown/$3 launcher=${3#*.} argument=$3 only='' without='' text
  case $2 in
  table)
    if [[ $argument = *', without '* ]]; then without=${argument#*, without } argument=${argument%%, without *}; fi
    if [[ $argument = *', only '* ]]; then only=${argument#*, only } argument=${argument%%, only *}; fi
    file=$shown/$argument
    [ -f "$file" ] || { echo "report.sh: $1 wants $file, which is not there" >&2 && return 1; }
    table "$file" "$only" "$without"
    printf '\n%s; raw: %s.\n' "$(machine_line "$dir" "${launcher%%.*} launcher" "$3")" "\`$file\`"
    ;;
  picture)
    file=$shown/plots/${3%%, *}.svg
    [ -f "$file" ] || { echo "report.sh: $1 wants $file; scripts/plot.sh makes it" >&2 && return 1; }
    echo "![${3#*, }]($(realpath --relative-to="$(dirname "$1")" "$file"))"
    text=$(picture_caption "${3%%, *}")
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

# ---- the page of its own -------------------------------------------------------------------------
escaped() { sed 's/&/\&amp;/g; s/</\&lt;/g; s/>/\&gt;/g; s/"/\&quot;/g'; }

html_table() { # a Markdown table on stdin; cells are to the right where its second line says so
  escaped | awk -F' *[|] *' '
    NR == 1 { print "<div class=\"wide\"><table>" }
    NR == 2 { next }
    {
      tag = NR == 1 ? "th" : "td"
      printf "<tr>"
      for (i = 2; i < NF; i++) printf "<%s>%s</%s>", tag, $i, tag
      print "</tr>"
    }
    END { print "</table></div>" }'
}

# As an image, in which a browser runs no scripts and fetches nothing.
html_picture() { # html_picture FILE.svg
  printf '<img alt="%s" src="data:image/svg+xml;base64,%s"/>\n' "$(basename "$1" .svg | escaped)" "$(base64 -w 0 "$1")"
}

section() { # section FILE: with what stands on stdin
  local name
  name=$(basename "$1" | escaped)
  echo "<section id=\"$name\"><h2>${name%.*}</h2>"
  cat
  echo '</section>'
}

page() {
  local file name
  cat <<'HTML'
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml" lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width"/>
<title>NCCL examples: results</title>
<style>
body { font: 15px/1.5 sans-serif; color: #202020; background: #fff; max-width: 64em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { border-bottom: 1px solid #ddd; padding: 2px 10px; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
.wide { overflow-x: auto } pre { overflow-x: auto; font-size: 12px; background: #f5f5f5; padding: 1em }
img { width: 100%; height: auto } section { break-inside: avoid }
</style>
</head>
<body>
<h1>NCCL examples: results</h1>
HTML
  echo "<p>$(machine_line "$dir" | tr -d '`' | escaped)</p>"
  echo '<p>Times are of the slowest rank, the median of the repetitions; every timed size was verified. GB/s = 1e9 bytes per second.</p>'
  echo '<ul>'
  for file in "$dir"/plots/*.svg "$dir"/*.csv; do
    [ -f "$file" ] || continue
    name=$(basename "$file" | escaped)
    echo "<li><a href=\"#$name\">$name</a></li>"
  done
  echo '<li><a href="#provenance">provenance</a></li></ul>'
  headline | html_table
  for file in "$dir"/plots/*.svg; do
    if [ -f "$file" ]; then html_picture "$file" | section "$file"; fi
  done
  for file in "$dir"/*.csv; do
    if [ -f "$file" ]; then table "$file" | html_table | section "$file"; fi
  done
  echo '<section id="provenance"><h2>provenance</h2><pre>'
  escaped <"$dir/provenance.txt"
  printf '</pre></section>\n</body>\n</html>\n'
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
