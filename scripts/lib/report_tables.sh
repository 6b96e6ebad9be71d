# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2154 # dir and shown, of the script that sources this
# The tables and captions of scripts/report.sh, which sources this file: in Markdown, on stdout. `dir` is the folder of
# results, `shown` the same as pages show it.

# What the headline table shows, where it was measured: file, variant, bytes, and series or -; of the
# sparse AllReduce file, path, elements and density.
HEADLINE='
01_allreduce_ub.mpi.graph.csv registered 268435456 -
02_allreduce_sm.mpi.graph.csv symmetric 268435456 -
02_allreduce_sm.mpi.graph.csv own 1024 -
02_allreduce_sm.mpi.graph.csv own 268435456 -
03_alltoallv_sm.mpi.graph.csv alltoallv 65536 uniform
03_alltoallv_sm.mpi.graph.csv alltoallv 268435456 uniform
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
  }
  function elements(n) { return n >= 100000 ? sprintf("%.1f M", n / 1e6) : n }'

# A CSV of --bench as a Markdown table: a row per size, and series such as the pattern if it has one; a cell per
# variant. Of the sparse AllReduce, which has many paths, a row per path and a cell per number of elements and
# density. Columns are found by their names. A file without these columns is shown as it is. ROWS, separated by
# ", ", are the sizes wanted, else all; COLUMNS are variants or paths that are not wanted.
table() { # table FILE [ROWS [COLUMNS]]
  awk -F, -v only="${2:-}" -v without="${3:-}" "$AWK_CSV$AWK_SIZE"'
    NR == 1 {
      header()
      sparse = "path" in column
      plain = !sparse && !("bytes" in column && "variant" in column)
      if (!plain) { us = need("us"); wrong_ones = need("wrong") }
      if (sparse) { variant = need("path"); count = need("count"); density = need("density"); ratio = need("ratio") }
      else if (!plain) {
        variant = need("variant")
        bytes = need("bytes")
        rate_name = "wire" in column ? "wire" : "busbw"
        rate = need(rate_name)
        series = bytes > 1 ? $1 : ""
      }
    }
    plain { gsub(/,/, " | "); print "| " $0 " |" }
    plain && NR == 1 { gsub(/[^|]+/, " ---: "); print "|" $0 "|" }
    plain || NR == 1 { next }
    {
      v = $variant
      if (sparse) row = $count " | " 100 * $density " %"
      else row = (series == "" ? "" : $1 " | ") size($bytes)
      name = row
      sub(/ [|]/, "", name)
      names[name]
      if (only != "" && index(", " only ", ", ", " name ", ") == 0) next
      seen[v]
      if (index(", " without ", ", ", " v ", ")) next
      if (!(v in shown)) { shown[v] = 1; variants[++n] = v }
      if (!(row in known)) { known[row] = 1; rows[++m] = row }
      cell[row, v] = "-"
      if (is_time($us) && sparse) cell[row, v] = sprintf("%.0f / ", $us) as_number("%.2fx", $ratio)
      else if (is_time($us)) {
        cell[row, v] = sprintf("%.2f / ", $us) as_number("%.1f", $rate)
        if (n > 1 && v != variants[1]) cell[row, v] = cell[row, v] " / " as_number("%.2fx", $need("ratio"))
      }
      wrong[sparse ? v : row] += $wrong_ones
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
      if (sparse) {
        printf "| us / times as fast as dense |"
        rule = "| --- |"
        for (i = 1; i <= m; i++) {
          split(rows[i], part, " [|] ")
          printf " %s, %s |", elements(part[1]), part[2]
          rule = rule " ---: |"
        }
        print " wrong |\n" rule " ---: |"
        for (v = 1; v <= n; v++) {
          printf "| %s |", variants[v]
          for (i = 1; i <= m; i++) printf " %s |", (rows[i], variants[v]) in cell ? cell[rows[i], variants[v]] : "-"
          printf " %d |\n", wrong[variants[v]]
        }
        exit
      }
      printf "|%s bytes |", (series == "" ? "" : " " series " |")
      rule = series == "" ? "| ---: |" : "| --- | ---: |"
      for (v = 1; v <= n; v++) {
        printf " %s: us / %s GB/s%s |", variants[v], rate_name, (v > 1 ? " / ratio" : "")
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

# The words that a rank sends, from the files of one example with other numbers of ranks: a row per number, a
# cell per path, which says how many words per element that is to be selected.
words_table() { # words_table FILE...
  awk -F, "$AWK_CSV"'
    FNR == 1 { header(); path_at = need("path"); ranks_at = need("ranks"); k = need("k"); words = need("words_sent"); next }
    {
      path = $path_at; ranks = $ranks_at
      if (!seen[path]++) paths[++n] = path
      if (!seen["ranks " ranks]++) rows[++m] = ranks
      cell[ranks, path] = is_time($k) && finite($words) ? sprintf("%.2f", $words / $k) : "-"
    }
    END {
      printf "| ranks |"
      rule = "| ---: |"
      for (i = 1; i <= n; i++) { printf " %s |", paths[i]; rule = rule " ---: |" }
      print "\n" rule
      for (j = 1; j <= m; j++) {
        printf "| %s |", rows[j]
        for (i = 1; i <= n; i++) printf " %s |", (rows[j], paths[i]) in cell ? cell[rows[j], paths[i]] : "-"
        print ""
      }
    }' "$@"
}

headline_row() { # headline_row FILE VARIANT BYTES SERIES
  local example=${1%%.*}
  awk -F, -v example="${example%%_*}" -v variant="$2" -v amount="$3" -v series="$4" -v limit="$(limit_of "$dir")" "$AWK_CSV$AWK_SIZE"'
    function row(what, amount, base, base_us, rate) {
      printf "| %s | %s, %s | %s | %s / %.2f | %s | %s |\n", example, what, amount, base, as_number("%.2f", base_us), $us,
        as_number("%.2fx", $ratio), rate
    }
    NR == 1 {
      header()
      us = need("us")
      ratio = need("ratio")
      sparse = "path" in column
      if (sparse) { path = need("path"); count = need("count"); density = need("density") }
      else { bytes = need("bytes"); name = need("variant"); rate = need("wire" in column ? "wire" : "busbw") }
      next
    }
    sparse {
      if ($path == variant && $count == amount && $density == series && is_time($us))
        row(variant, elements(amount) " elements, density " series, "dense", $need("dense_us"), "-")
      next
    }
    $bytes != amount || (series != "-" && $1 != series) { next }
    base == "" { base = $name; base_us = $us }
    $name == variant && is_time($us) {
      share = limit && finite($rate) ? sprintf(" (%.0f %%)", 100 * $rate / limit) : ""
      row(variant (series == "-" ? "" : ", " series), size(amount), base, base_us,
        amount < 1048576 ? "-" : as_number("%.1f", $rate) share)
    }' "$dir/$1"
}

headline() {
  local file variant bytes series limit
  limit=$(limit_of "$dir")
  echo "| example | what | baseline | us: baseline / this | times as fast | GB/s${limit:+ (of the limit, $limit)} |"
  echo "| --- | --- | --- | ---: | ---: | ---: |"
  while read -r file variant bytes series; do
    if [ -f "$dir/$file" ]; then headline_row "$file" "$variant" "$bytes" "$series"; fi
  done <<<"$HEADLINE"
}

# ---- captions ------------------------------------------------------------------------------------
# raw_files FILE...: their paths in backquotes, only their names where `beside` is set; of those that differ in
# the number of ranks, one pattern.
raw_files() {
  # shellcheck disable=SC2016 # backquotes of Markdown
  printf '%s\n' "$@" | sed "${beside:+s,.*/,,}" | sed 's/ranks[0-9]*\.csv$/ranks*.csv/; s/.*/`&`/' | uniq | paste -s -d ' ' | sed 's/ /, /g'
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

# Where numbers come from: GPUs, or the stand-in, on which words are counted and nothing is timed.
sources() { # sources FILE...
  local files counted words
  mapfile -t files < <(printf '%s\n' "$@" | grep -v '\.standin\.')
  mapfile -t counted < <(printf '%s\n' "$@" | grep '\.standin\.')
  if [ ${#files[@]} -gt 0 ]; then
    echo "From $(machine_line "$dir" "" "$(basename "${files[0]}")"); raw: $(raw_files "${files[@]}")."
  fi
  if [ ${#counted[@]} -gt 0 ]; then
    words=$(awk -F, "$AWK_CSV"'
      FNR == 1 { header(); count_at = need("count"); density_at = need("density"); steps = need("verified_steps"); next }
      { count = $count_at; density = $density_at; checked += $steps }
      END { printf "%s elements, density %g %%, verification %s", count, 100 * density, checked ? "on" : "off" }' "${counted[@]}")
    echo "Counted on the CPU stand-in, without GPUs: $words; raw: $(raw_files "${counted[@]}")."
  fi
}

# What a picture shows, and the sources of its series.
picture_caption() { # picture_caption NAME
  local script=scripts/plots/$1.gnuplot files
  [ -f "$script" ] || return 0
  mapfile -t files < <(plotted_files "$1")
  sed -n 's/^# caption: //p' "$script"
  [ ${#files[@]} = 0 ] || sources "${files[@]}"
}
