# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154 # dir and shown, of the script that sources this
# The page of its own that scripts/report.sh writes: report.html, with every table and picture of a folder.

escaped() { sed 's/&/\&amp;/g; s/</\&lt;/g; s/>/\&gt;/g; s/"/\&quot;/g'; }

html_table() { # a Markdown table on stdin; cells are to the right where its second line says so
  escaped | awk -F' *[|] *' '
    function row(tag) {
      printf "<tr>"
      for (i = 2; i < n; i++) printf "<%s%s>%s</%s>", tag, left[i] ? " class=\"text\"" : "", cell[i], tag
      print "</tr>"
    }
    NR == 2 { for (i = 2; i < NF; i++) left[i] = $i == "---"; print "<div class=\"wide\"><table>"; row("th"); next }
    { n = split($0, cell) }
    NR > 2 { row("td") }
    END { print "</table></div>" }'
}

# As an image, in which a browser runs no scripts and fetches nothing.
html_picture() { # html_picture FILE.svg
  printf '<img alt="%s" src="data:image/svg+xml;base64,%s"/>\n' "$(basename "$1" .svg | escaped)" "$(base64 -w 0 "$1")"
}

# ---- parts: pictures and tables, in the order of the examples -------------------------------------
heading_of() { # heading_of EXAMPLE: that of its page, 01: Words
  local heading
  heading=$(sed -n '1s/^# //p' "$1/README.md" 2>/dev/null) || true
  echo "${heading:-$1}"
}

# What a file holds, in words: 01_x.mpi.graph.csv by example, launcher and mode. A name of another kind stays.
title_of() { # title_of FILE
  local name=${1##*/} example launcher mode how=''
  case $name in
  *.svg)
    name=$(sed -n '2s/^# \(.*\)\.$/\1/p' "scripts/plots/${name%.svg}.gnuplot" 2>/dev/null) || true
    echo "${name:-$(basename "$1" .svg)}"
    return
    ;;
  [0-9][0-9]_*.ranks*.csv)
    echo "$(heading_of "${name%%.*}"); words that a rank sends per element to be selected, by the number of ranks"
    return
    ;;
  [0-9][0-9]_*.*.*.csv) IFS=. read -r example launcher mode <<<"${name%.csv}" ;;
  *) echo "${name%.*}" && return ;;
  esac
  case $launcher in
  mpi) how="one process per GPU" ;;
  pthread) how="one thread per GPU" ;;
  *) how=$launcher ;;
  esac
  case $mode in
  eager) how+=", calls one by one" ;;
  graph) how+=", in a CUDA graph" ;;
  graph.entries) how+=", in a CUDA graph, without a dense result" ;;
  density*) how+=", in a CUDA graph, density ${mode#density}" ;;
  training) how+=", a training job" ;;
  *) how+=", $mode" ;;
  esac
  echo "$(heading_of "$example"); $how"
}

has_times() { # has_times FILE: or it is no file of times
  awk -F, "$AWK_CSV"'
    NR == 1 { header(); us = column["us"]; next }
    !us || is_time($us) { found = 1 }
    END { exit !found }' "$1"
}

# A file of one number of ranks; those of training jobs have no paths.
counts_words() { [[ $1 = *.ranks*.csv ]] && head -n 1 "$1" | grep -q '^path,'; }

# The files that are parts of the page. A picture stands before the tables of the example that it begins with,
# and the first of the files ranks* for all of them.
parts() {
  local file first seen=' '
  for file in "$dir"/plots/*.svg; do
    [ -f "$file" ] || continue
    first=$(plotted_files "$(basename "$file" .svg)" 2>/dev/null | head -n 1) || true
    first=${first##*/}
    printf '%s\t0\t%s\n' "${first%%.*}" "$file"
  done | sed 's/^\t/~\t/' | sort -s -k 1,1
  for file in "$dir"/*.csv; do
    [ -f "$file" ] || continue
    first=${file##*/}
    first=${first%%.*}
    if counts_words "$file"; then
      [[ $seen != *" $first "* ]] || continue
      seen+="$first "
      printf '%s\t2\t%s\n' "$first" "$file"
    elif has_times "$file"; then
      printf '%s\t1\t%s\n' "$first" "$file"
    fi
  done
}
sorted_parts() { parts | sort -s -k 1,2 | cut -f 3-; }

caption() { tr -d '`' | escaped | sed 's/.*/<p class="caption">&<\/p>/'; }

part() { # part FILE: its section
  local name files example=${1##*/}
  name=$(basename "$1" | escaped)
  echo "<section id=\"$name\"><h2>$(title_of "$1" | escaped)</h2>"
  if [[ $1 = *.svg ]]; then
    html_picture "$1"
    picture_caption "$(basename "$1" .svg)" | caption
  elif counts_words "$1"; then
    mapfile -t files < <(printf '%s\n' "$dir/${example%%.*}".*.ranks*.csv | sort -V)
    words_table "${files[@]}" | html_table
    sources "${files[@]#./}" | caption
  else
    table "$1" | html_table
    if head -n 1 "$1" | grep -q '^path,'; then
      echo "Mean of a step in us / times as fast as dense; wrong: elements that were not as expected."
    elif head -n 1 "$1" | grep -q 'variant,'; then
      echo "Median of the repetitions, of the slowest rank / rate / times as fast as the first column;" \
        "wrong: elements that were not as expected."
    fi | caption
    sources "${1#./}" | caption
  fi
  echo '</section>'
}

page() {
  local file files without=''
  # shellcheck disable=SC2034 # for raw_files: they are beside the page
  local beside=yes
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
.text, td:first-child, th:first-child { text-align: left }
td:first-child, th:first-child { position: sticky; left: 0; background: #fff }
th { white-space: normal; vertical-align: bottom }
.wide { overflow-x: auto; } .caption { font-size: 13px; color: #505050 }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12px; background: #f5f5f5; padding: 1em }
h2 { font-size: 19px; margin: 2em 0 0.5em }
img { width: 100%; height: auto } section { break-inside: avoid }
</style>
</head>
<body>
<h1>NCCL examples: results</h1>
HTML
  echo "<p>$(machine_line "$dir" | tr -d '`' | escaped)</p>"
  echo '<p>GB/s = 1e9 bytes per second. What is wrong has no time.</p>'
  mapfile -t files < <(sorted_parts)
  echo '<ul>'
  for file in "${files[@]}"; do
    echo "<li><a href=\"#$(basename "$file" | escaped)\">$(title_of "$file" | escaped)</a></li>"
  done
  echo '<li><a href="#provenance">Provenance</a></li></ul>'
  headline | html_table
  for file in "${files[@]}"; do part "$file"; done
  for file in "$dir"/*.csv; do
    if [ -f "$file" ] && ! counts_words "$file" && ! has_times "$file"; then without+=", ${file##*/}"; fi
  done
  if [ -n "$without" ]; then echo "Left out, because there is no time in them: ${without#, }." | caption; fi
  echo '<section id="provenance"><h2>Provenance</h2><pre>'
  escaped <"$dir/provenance.txt"
  printf '</pre></section>\n</body>\n</html>\n'
}
