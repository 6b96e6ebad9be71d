# SPDX-License-Identifier: Apache-2.0
# scripts/results.py on the published results and on changed copies of them.
# shellcheck disable=SC2034 # the variable code is read by the helper
load helper

# needs no program
setup_file() { :; }
setup() {
  have python3 || skip "no python3"
  WORK=$(mktemp -d)
}

# sets code, $WORK/out, $WORK/err
results() {
  code=0
  "${SUITE:-$TOP}/scripts/results.py" "$@" >"$WORK/out" 2>"$WORK/err" </dev/null || code=$?
}

# compared ROWS [OPTIONS]: an old folder with three rows against a new one with these
compared() {
  for side in old new; do
    mkdir -p "$WORK/$side"
    printf 'date: 2026\ngpu: 0, X, 580.1, 1 MiB\nversion: NCCL header 1\n' >"$WORK/$side/provenance.txt"
    echo "bytes,variant,us,us_min,us_q1,us_q3,us_max,wrong" >"$WORK/$side/01_x.mpi.graph.csv"
  done
  printf '%s\n' 1024,plain,10,1,9,11,99,0 4096,plain,20,1,19,21,99,0 16384,plain,40,1,39,41,99,0 >>"$WORK/old/01_x.mpi.graph.csv"
  printf '%b' "$1" >>"$WORK/new/01_x.mpi.graph.csv"
  results compare "$WORK/old" "$WORK/new" "${@:2}"
}

@test "compare: ratio per row, the noise from the quartiles, exit code 1 for what is too slow" {
  compared '1024,plain,10.5,1,9.5,11.5,99,0\n4096,plain,16,1,15,17,99,0\n16384,plain,44,1,43,45,99,0\n'
  exits_with 0
  prints '^\| 1024 \| plain \| 10.00 \| 10.50 \| 1.050x \|  \|$'
  prints '^\| 4096 \| plain \| 20.00 \| 16.00 \| 0.800x \| \* \|$'
  # not more than 10 %
  prints '^\| 16384 \| plain \| 40.00 \| 44.00 \| 1.100x \| \* \|$'
  prints '^\| bytes \| variant \| old, us \| new, us \| new/old \| mark \|$'
  results compare "$WORK/old" "$WORK/new" --percent 5.5
  exits_with 1
  prints '^\| 16384 \| plain .* \* SLOWER \|$'
  prints '^3 rows in both: 2 outside the noise, 1 slower by more than 5.5 %, 0 lost$'
}

@test "compare: a time that is lost, what only one side has, nothing in common, a broken file" {
  compared '1024,plain,,,,,,3\n4096,fast,1,1,1,1,1,0\n'
  exits_with 1
  prints '^\| 1024 \| plain \| 10.00 \| - \| - \| LOST \|$'
  prints '^1 rows in both: 0 outside the noise, .* 1 lost$'
  compared '2048,plain,10,1,9,11,99,0\n'
  exits_with 2
  one_line '^results.py: no row with a time is in both folders; allowed: results of '
  compared '1024,plain,10,1,9\n'
  exits_with 2
  one_line '^results.py: .*/new/01_x.mpi.graph.csv:2: 5 fields, the header has 8; allowed: a CSV file of --bench$'
}

@test "plot: pictures are XML; a changed number shows" {
  for name in 4xH200-nccl2.28 4xH200-nccl2.28-sparse words-standin; do
    cp -r "$TOP/results/$name" "$WORK/$name"
    results plot "$WORK/$name"
    exits_with 0
    prints '^left out, .*: '
    python3 -c 'import sys, xml.dom.minidom; [xml.dom.minidom.parse(name) for name in sys.argv[1:]]' "$WORK/$name"/plots/*.svg
  done
  [ -s "$WORK/4xH200-nccl2.28-sparse/plots/sparse_speedup.svg" ]
  sed -i '4s/,2620,2620,2620,/,2620,2720,2620,/; 3s/,1310,1310,1310,/,1410,1310,1310,/' "$WORK"/words-standin/*.csv
  results plot --check "$WORK/words-standin"
  exits_with 1
}

@test "plot: results of one GPU, which has no bandwidth" {
  cp -r "$TOP/results/2xH200-nccl2.28" "$WORK/one"
  rm -r "$WORK"/one/plots "$WORK"/one/0[13]*
  sed -E -i 's/^(([^,]*,){12})[0-9.e+]+/\10/' "$WORK"/one/02_*.csv
  results plot "$WORK/one"
  exits_with 0
  grep -q 'speedup' "$WORK/one/plots/allreduce.svg"
  ! grep -q 'bandwidth' "$WORK/one/plots/allreduce.svg" || show
}

@test "html: one page with pictures, tables and provenance" {
  for name in 2xH200-nccl2.28 4xH200-nccl2.28; do
    cp -r "$TOP/results/$name" "$WORK/$name"
    results html "$WORK/$name"
    exits_with 0
    grep -q '<details><summary>03_alltoallv_sm.mpi.graph.csv</summary>' "$WORK/$name/report.html"
    grep -q '<td>alltoallv: us / wire GB/s / ratio</td>' "$WORK/$name/report.html"
    [ "$(grep -c '<svg ' "$WORK/$name/report.html")" -ge 2 ]
  done
}

@test "pages: what differs from the results is shown, and filled in; what is not understood is refused" {
  SUITE=$WORK/suite page=01_allreduce_ub/README.md
  mkdir "$SUITE"
  cp -r "$TOP"/{README.md,docs,scripts,results,01_allreduce_ub,02_allreduce_sm} "$SUITE"
  results pages --check "$SUITE/results/2xH200-nccl2.28"
  exits_with 0
  row=$(grep '^| 256 MiB | ' "$SUITE/$page")
  sed -i 's/^| 256 MiB | .*/| 256 MiB | faster |/' "$SUITE/$page"
  results pages --check "$SUITE/results/2xH200-nccl2.28"
  exits_with 1
  grep -qxF -e "+$row" "$WORK/out" || show
  results pages "$SUITE/results/2xH200-nccl2.28"
  exits_with 0
  cmp "$TOP/$page" "$SUITE/$page"
  sed -i 's/^<!-- table: .*/<!-- table: 01_allreduce_ub.mpi.graph.csv, only 3 KiB -->/' "$SUITE/$page"
  results pages "$SUITE/results/2xH200-nccl2.28"
  exits_with 2
  one_line "has no '3 KiB'; allowed: its rows and columns$"
  sed -i '/^<!-- end of table -->/d' "$SUITE/$page"
  results pages "$SUITE/results/2xH200-nccl2.28"
  exits_with 2
  one_line "^results.py: $page: a table is not understood; allowed: "
}

@test "files of any kind, a full disk, a closed pipe: one line, exit code 2, which is not that of SLOWER" {
  cp -r "$TOP/results/words-standin" "$WORK/x"
  # no k
  sed -i '2,$s/^\(oktopk,[0-9]*,[0-9]*,[a-z]*,[0-9.]*\),[0-9]*/\1,/' "$WORK"/x/*.csv
  results plot "$WORK/x"
  exits_with 2
  one_line '^results.py: not understood: '
  rm "$WORK"/x/*.csv
  mkfifo "$WORK/x/pipe.csv"
  results html "$WORK/x"
  exits_with 2
  one_line '/x/pipe.csv is no file; allowed: a CSV file of --bench$'
  unset PYTHONUNBUFFERED
  for command in "compare results/2xH200-nccl2.28 results/2xH200-nccl2.28" --help; do
    code=0
    # shellcheck disable=SC2086 # words
    (cd "$TOP" && exec scripts/results.py $command) >/dev/full 2>"$WORK/err" || code=$?
    exits_with 2
    one_line '^results.py: a file cannot be read or written: .*No space left on device'
  done
  : >"$WORK/out"
  code=$("$TOP/scripts/results.py" --help 2>"$WORK/err" | : && echo "${PIPESTATUS[0]}")
  exits_with 2
  one_line '^results.py: .*Broken pipe'
}

@test "wrong arguments, a folder without times: one line, exit code 2; --help" {
  mkdir "$WORK/trial"
  echo "stand-in: no times" >"$WORK/trial/provenance.txt"
  for arguments in "" "plot" "nonsense $WORK" "plot --all results/pytorch" "compare results/pytorch" "plot $WORK" "html $WORK/trial" \
    "compare results/pytorch results/pytorch --percent x" "compare results/pytorch results/pytorch --percent nan"; do
    # shellcheck disable=SC2086 # words
    results $arguments
    exits_with 2
    prints_nothing
    one_line '^results.py: .*allowed: '
  done
  results --help
  exits_with 0
  prints 'scripts/results.py compare OLD NEW'
}
