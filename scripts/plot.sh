#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Draws the pictures of a results folder with gnuplot: DIR/plots/NAME.svg for each
# scripts/plots/NAME.gnuplot, and NAME.dat with what is plotted.
#
#   scripts/plot.sh [--png] DIR      --png: also NAME.png
#   scripts/plot.sh --check DIR      fail if data or pictures there are not those of DIR's results
#
# The first lines of NAME.gnuplot say what it plots, each of them one or more blocks of NAME.dat:
#
#   # data: lines FILE.csv COLUMN+COLUMN     a block per value of these columns, named by them:
#                                            bytes us q1 q3 min max rate ratio
#   # data: columns FILE.csv COLUMN+COLUMN NAME+NAME
#                                            the same with the named columns; words in quotes, no value: NaN.
#                                            FILE may have a * in it, ranks* stands for two or more
#   # data: limit                            what the links can do at best: GB/s
#   # caption: WORDS                         what is shown, for the text below the picture in pages
#   # size: WIDTH,HEIGHT                     of the picture
#
# A picture whose files are not in DIR, or have no times, is left out. All others are drawn or, where something fails, none.
# Exit code 0: drawn; 1: something failed; 2: usage, or a file is not understood.
set -euo pipefail
# shellcheck source=scripts/lib/lib.sh
. "$(dirname "$(realpath "$0")")/lib/lib.sh"
# shellcheck source=scripts/lib/results.sh
. "$TOP/scripts/lib/results.sh"
# shellcheck source=scripts/lib/files.sh
. "$TOP/scripts/lib/files.sh"

png=no check=no
while [[ ${1:-} = -* ]]; do
  case $1 in
  --png) png=yes ;;
  --check) check=yes ;;
  -h | --help) show_help ;;
  *) die "unknown option '$1'; allowed: --png --check" ;;
  esac
  shift
done
[ $# = 1 ] || die "wrong number of arguments; allowed: [--png] [--check] DIR"
times_folder "$1"
[ $check = yes ] || have gnuplot || prepare gnuplot --plots

# ---- the data ------------------------------------------------------------------------------------
# Each function is a word of `# data:` lines. In those that follow the CSV's columns are found by name; lines
# leaves out rows without a time. Names of blocks become parts of commands in gnuplot scripts:
# no character stays in them that means something there.
AWK_HARMLESS='
  function harmless(s) { gsub(/[^A-Za-z0-9_.+\/ -]/, "_", s); return s }'

# shellcheck disable=SC2317 # called by name
lines() { # lines FILE COLUMN+COLUMN
  awk -F, -v names="$2" "$AWK_CSV$AWK_HARMLESS"'
    NR == 1 {
      header()
      us = need("us")
      q1 = "us_q1" in column ? column["us_q1"] : us # older files have none: a bar without length
      q3 = "us_q3" in column ? column["us_q3"] : us
      least = need("us_min")
      most = need("us_max")
      rate = need("wire" in column ? "wire" : "busbw")
      ratio = need("ratio")
      bytes = need("bytes")
      n = split(names, name, "+")
      for (i = 1; i <= n; i++) key[i] = need(name[i])
      next
    }
    is_time($us) {
      for (i = 1; i <= NF; i++) $i = harmless($i)
      block = $key[1]
      for (i = 2; i <= n; i++) block = block " " $key[i]
      if (!(block in text)) blocks[++m] = block
      text[block] = text[block] sprintf("%s %s %s %s %s %s %s %s\n", $bytes, $us, $q1, $q3, $least, $most, $rate, $ratio)
    }
    END {
      for (i = 1; i <= m; i++) printf "# %s\n%s\n\n", blocks[i], text[blocks[i]]
      exit !m
    }' "$dir/$1"
}

# shellcheck disable=SC2317
columns() { # columns FILES COLUMN+COLUMN NAME+NAME
  local files
  # shellcheck disable=SC2086 # a pattern
  mapfile -t files < <(printf '%s\n' "$dir"/$1 | sort -V)
  awk -F, -v blocks="$2" -v names="$3" "$AWK_CSV$AWK_HARMLESS"'
    function value(s) { return s == "" ? "NaN" : s ~ /^[-+.0-9e]*$/ ? s : "\"" s "\"" }
    FNR == 1 {
      header()
      n = split(blocks, key, "+")
      m = split(names, name, "+")
      for (i = 1; i <= n; i++) need(key[i])
      for (i = 1; i <= m; i++) need(name[i])
      next
    }
    {
      for (i = 1; i <= NF; i++) $i = harmless($i)
      block = $column[key[1]]
      for (i = 2; i <= n; i++) block = block " " $column[key[i]]
      if (!(block in text)) order[++count] = block
      for (i = 1; i <= m; i++) text[block] = text[block] value($column[name[i]]) (i < m ? " " : "\n")
    }
    END {
      for (i = 1; i <= count; i++) printf "# %s\n%s\n\n", order[i], text[order[i]]
      exit !count
    }' "${files[@]}"
}

limit() {
  local value
  value=$(limit_of "$dir")
  [ -z "$value" ] || printf '# limit\n%s\n\n\n' "$value"
}

# The blocks that a gnuplot file asks for. Fails with 1 where a file is missing or has nothing to draw, or where there is
# one number of ranks only, which makes no line; with 2 where a file is not understood, which is said.
data() { # data NAME.gnuplot
  local what file arguments files
  while read -r what file arguments; do
    if [ "$what" != limit ]; then
      # shellcheck disable=SC2206 # a pattern
      files=("$dir"/$file)
      [ -f "${files[0]}" ] || return 1
      [[ $file != *ranks\** || ${#files[@]} -gt 1 ]] || return 1
      # shellcheck disable=SC2086 # several words
      "$what" "$file" $arguments || return
    else
      limit
    fi
  done < <(sed -n 's/^# data: //p' "$1")
}

# ---- the pictures --------------------------------------------------------------------------------
picture() { # picture NAME svg|png
  local script=$TOP/scripts/plots/$1.gnuplot target=$dir/plots/$1.$2 width height terminal
  IFS=', ' read -r width height < <(sed -n 's/^# size: //p' "$script")
  case $2 in
  svg) terminal="svg size $width,$height dynamic enhanced background 'white' font 'sans-serif,13' name '$1'" ;;
  png) terminal="pngcairo size $((2 * width)),$((2 * height)) enhanced font 'Sans,13' fontscale 1.6 linewidth 2" ;;
  esac
  begin_file "$target"
  # by the environment: whatever is in that name, nothing takes it for a command
  # shellcheck disable=SC2016 # for the shell that gnuplot starts
  DATA=$data_file \
    gnuplot -e "set terminal $terminal" -e 'data = system("printf %s \"$DATA\"")' "$TOP/scripts/plots/style" "$script" | write_file
  drawn+=("$target")
}

compare() { # compare NAME DATA: what is there is what would be made
  diff -u "$dir/plots/$1.dat" <(printf %s "$2") || { echo "plot.sh: $dir/plots/$1.dat differs from $dir" >&2 && return 1; }
  [ -s "$dir/plots/$1.svg" ] || { echo "plot.sh: no $dir/plots/$1.svg" >&2 && return 1; }
  ! have xmllint || xmllint --nonet --noout "$dir/plots/$1.svg"
}

failed=0 found=0 drawn=()
for file in "$TOP"/scripts/plots/*.gnuplot; do
  name=$(basename "$file" .gnuplot)
  code=0
  text=$(data "$file" && echo .) || code=$? # the dot keeps the newlines
  if [ $code = 1 ]; then
    few=$(grep -q '^# data: .*ranks\*' "$file" && echo ", or only those of one number of ranks") || few=
    echo "$name: left out, its files are not in $dir or have nothing to draw$few"
    continue
  fi
  [ $code = 0 ] || exit $code
  found=$((found + 1))
  if [ $check = yes ]; then
    compare "$name" "${text%.}" || failed=1
    continue
  fi
  mkdir -p "$dir/plots"
  begin_file "$dir/plots/$name.dat"
  data_file=$new
  printf %s "${text%.}" | write_file
  picture "$name" svg
  [ $png = no ] || picture "$name" png
done
[ $found -gt 0 ] || { echo "plot.sh: nothing to draw in $dir" >&2 && failed=1; }
keep_files
[ ${#drawn[@]} = 0 ] || printf '%s\n' "${drawn[@]}"
exit $failed
