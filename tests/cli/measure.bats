# SPDX-License-Identifier: Apache-2.0
# scripts/bench.sh and scripts/compare.sh: with the examples on the stand-in, and with a suite of two
# programs that do what a test asks of them, on a machine that only looks as if it had GPUs.
# shellcheck disable=SC2016,SC2034 # code for other shells; the variable code is read by the helper
load helper

script() { # script PATH [ARGUMENTS]: sets code, $WORK/out, $WORK/err
  code=0
  "$@" >"$WORK/out" 2>"$WORK/err" </dev/null || code=$?
}

# A suite with the examples 01_x and 02_y, whose programs write a CSV of one row and count their runs;
# $WORK/do/x.mpi.1 with shell code in it is what x does instead under MPI with -G 1.
suite() {
  mkdir -p "$WORK/suite/scripts" "$WORK/bin" "$WORK/cuda/bin" "$WORK/nccl/include" "$WORK/nccl/lib" "$WORK/do"
  cp -r "$TOP"/scripts/{bench.sh,lib} "$WORK/suite/scripts"
  printf '#!/bin/sh\n' >"$WORK/suite/scripts/setup.sh" # nothing is missing
  chmod +x "$WORK/suite/scripts/setup.sh"
  for name in x y; do
    folder=$WORK/suite/01_x
    [ $name = x ] || folder=$WORK/suite/02_y
    mkdir "$folder"
    printf 'PROGRAM := %s\nV := build/gpu-$(if $(MPI),mpi,pthread)\nall:\n\tmkdir -p $(V) && cp program $(V)/$(PROGRAM)\n' \
      $name >"$folder/Makefile"
    cat >"$folder/program" <<'PROGRAM'
#!/bin/bash
variant=${0%/*} graph=0 output=
[ "$1" != --version ] || { echo "${0##*/} 1.0.0" && exit 0; }
while [ $# -gt 0 ]; do
  case $1 in -G) graph=$2 ;; -J) output=$2 ;; esac
  shift
done
name=${0##*/}.${variant##*-}.$graph
echo "$name NTHREADS=$NTHREADS" >>"$WORK/runs"
if [ -f "$WORK/do/$name" ]; then . "$WORK/do/$name"; fi
echo "the log of $name"
printf 'bytes,variant,us,us_min,us_max,wrong\n1024,plain,8.5,8.0,9.0,0\n' >"$output"
PROGRAM
    chmod +x "$folder/program"
  done
  printf '#!/bin/bash\ncase "$*" in -L) printf "GPU 0: X\\nGPU 1: X\\n" ;; topo*) echo "a topology" ;; *) echo "0, X, 580.1, 1 MiB" ;; esac\n' \
    >"$WORK/bin/nvidia-smi"
  printf '#!/bin/bash\n[ "$1 $2" = "-np 2" ] || exit 9\nshift 2\nexec "$@"\n' >"$WORK/bin/mpirun"
  touch "$WORK/cuda/bin/nvcc" "$WORK/nccl/include/nccl.h" "$WORK/nccl/lib/libnccl.so.2"
  chmod +x "$WORK/bin"/* "$WORK/cuda/bin/nvcc"
  export WORK PATH=$WORK/bin:$PATH CUDA_HOME=$WORK/cuda NCCL_HOME=$WORK/nccl MPICC=true NCCL_ALGO=Ring
  unset CUDA_VISIBLE_DEVICES
}
bench() { script "$WORK/suite/scripts/bench.sh" --no-install --out "$WORK/results" "$@"; }

@test "bench.sh: a file, a log and a line per part; provenance" {
  suite
  bench --quick
  exits_with 0
  for name in x.pthread.0 x.pthread.1 x.mpi.0 x.mpi.1 y.pthread.0 y.pthread.1 y.mpi.0 y.mpi.1; do
    [ "$(grep -c "^$name " "$WORK/runs")" = 1 ] || show
  done
  grep -q '^x.pthread.0 NTHREADS=2$' "$WORK/runs"
  prints '^\[1/8\] 01_x +pthread eager +done, .* s; about .* left$'
  prints '^\[8/8\] 02_y +mpi +graph +done, .* s$'
  grep -qx '1024,plain,8.5,8.0,9.0,0' "$WORK/results/02_y.mpi.graph.csv"
  grep -qx 'the log of y.mpi.1' "$WORK/results/02_y.mpi.graph.txt"
  for line in 'date: 20..-..-..T..:..:..Z' 'command: scripts/bench.sh --no-install --out .* --quick' 'ranks: 2' 'part: 02_y.mpi.graph --bench .*--repetitions 5 -G 1' \
    'gpu: 0, X, 580.1, 1 MiB' 'version: x 1.0.0' 'environment: NCCL_ALGO=Ring' 'topology: a topology' 'commit: .*'; do
    grep -qx "$line" "$WORK/results/provenance.txt" || { cat "$WORK/results/provenance.txt" && false; }
  done
  [ ! -e "$WORK/results/unfinished" ]
}

@test "bench.sh: a failing part is said and tried again by the same command, finished ones are not" {
  suite
  echo 'echo half a table; echo "[rank 1] it broke" >&2; exit 3' >"$WORK/do/x.mpi.1"
  bench
  exits_with 1
  prints '^\[.*\] 01_x +mpi +graph +failed: exit code 3, see .*/unfinished/01_x.mpi.graph.txt'
  says '^bench.sh: 1 of 8 parts failed'
  grep -q 'it broke' "$WORK/results/unfinished/01_x.mpi.graph.err"
  [ ! -e "$WORK/results/01_x.mpi.graph.csv" ]
  [ ! -e "$WORK/results/01_x.mpi.graph.txt" ]
  [ -f "$WORK/results/02_y.mpi.graph.csv" ]
  rm "$WORK/do/x.mpi.1" "$WORK/runs"
  : >"$WORK/results/02_y.mpi.eager.csv" # an empty file is no result
  bench
  exits_with 0
  [ "$(xargs <"$WORK/runs")" = "x.mpi.1 NTHREADS= y.mpi.0 NTHREADS=" ]
  [ "$(grep -c 'there already$' "$WORK/out")" = 6 ]
  [ -s "$WORK/results/02_y.mpi.eager.csv" ]
  grep -q '^continued: ' "$WORK/results/provenance.txt"
  [ ! -e "$WORK/results/unfinished" ]
}

@test "bench.sh: an example that does not build fails, with what was built before too" {
  suite
  bench
  rm -r "$WORK/results"
  sed -i 's/mkdir/$(if $(MPI),false \&\&) mkdir/' "$WORK/suite/02_y/Makefile"
  rm "$WORK/runs"
  bench
  exits_with 1
  prints '02_y +mpi +graph +failed: does not build, see .*/unfinished/02_y.mpi.build'
  [ -s "$WORK/results/unfinished/02_y.mpi.build" ]
  [ -s "$WORK/results/02_y.pthread.graph.csv" ]
  if grep '^y.mpi' "$WORK/runs"; then false; fi
}

@test "bench.sh: killed in the middle it leaves no half part, and goes on" {
  suite
  echo 'printf half >"$output"; kill -9 $PPID; sleep 1' >"$WORK/do/y.pthread.0"
  bench
  [ $code != 0 ]
  [ ! -e "$WORK/results/02_y.pthread.eager.csv" ]
  rm "$WORK/do/y.pthread.0" "$WORK/runs"
  flock "$WORK/results" true # until the program has ended, too
  bench
  exits_with 0
  grep -q '^y.pthread.0 ' "$WORK/runs"
  if grep '^x.pthread' "$WORK/runs"; then false; fi
}

@test "bench.sh: two at once do not write into one folder; a checkout of another user has its commit" {
  suite
  git -C "$WORK/suite" init -q
  git -C "$WORK/suite" -c user.name=x -c user.email=x@example.org commit -q --allow-empty -m first
  mkdir "$WORK/results"
  exec 8<"$WORK/results"
  flock 8
  bench
  exits_with 2
  one_line '^bench.sh: another bench.sh is at work in .*/results; allowed: another --out$'
  [ ! -e "$WORK/results/unfinished" ]
  exec 8<&-
  GIT_TEST_ASSUME_DIFFERENT_OWNER=1 bench
  exits_with 0
  grep -qx "commit: $(git -C "$WORK/suite" describe --always)" "$WORK/results/provenance.txt"
}

@test "bench.sh: what cannot run here is skipped with its reason" {
  suite
  echo 'echo "note: a note" >&2; echo "y: graphs can deadlock here" >&2; exit 2' >"$WORK/do/y.pthread.1"
  echo 'echo "y: needs more GPUs" >&2; echo "--- mpirun ---" >&2; exit 77' >"$WORK/do/y.mpi.0"
  bench
  exits_with 0
  prints '02_y +pthread graph +skipped: y: graphs can deadlock here'
  prints '02_y +mpi +eager +skipped: y: needs more GPUs'
  echo 'exit 2' >"$WORK/do/y.pthread.0" # usage elsewhere is a failure
  rm "$WORK/results/02_y.pthread.eager.csv"
  bench
  exits_with 1
}

@test "bench.sh: results of other circumstances are not mixed" {
  suite
  bench --quick
  NCCL_ALGO=Tree bench --quick
  exits_with 2
  says 'NCCL_ALGO=Tree'
  says 'has results of other circumstances'
  bench
  exits_with 2
}

@test "bench.sh without a GPU: the examples on the stand-in, marked, without times" {
  CUDA_HOME=/nowhere script "$TOP/scripts/bench.sh" --no-install --out "$WORK/results"
  exits_with 0
  prints 'no nvcc at .*: a trial on the CPU stand-in instead'
  for example in $(examples); do
    for launcher in $LAUNCHERS; do
      [ -s "$WORK/results/$example.$launcher.eager.csv" ]
    done
  done
  [ "$(head -n 1 "$WORK/results/04_sparse_allreduce.mpi.training.csv" | cut -d , -f 1)" = trained ]
  grep -q '^oktopk entries added,' "$WORK/results/04_sparse_allreduce.mpi.graph.entries.csv"
  grep -q '^stand-in: ' "$WORK/results/provenance.txt"
  grep -q '^version: NCCL header' "$WORK/results/provenance.txt"
  [ -s "$WORK/results/01_allreduce_ub.pthread.graph.csv" ]
  awk -F, 'FNR == 1 { for (us = 1; $us != "us"; us++); next } $us != "" { exit 1 }' "$WORK"/results/0[123]*.csv
}

@test "bench.sh: what cannot be written is exit code 1, and the old files stay" {
  suite
  bench --quick
  cp -r "$WORK/results" "$WORK/before"
  full_disk '*'
  bench --quick
  exits_with 1
  one_line '^tee: .*/provenance.txt.*.new: No space left on device$'
  rmdir "$WORK/results/unfinished"
  diff -r "$WORK/before" "$WORK/results"
  touch "$WORK/file"
  script "$WORK/suite/scripts/bench.sh" --no-install --out "$WORK/file/results"
  exits_with 1
  one_line '^mkdir: .*: Not a directory$'
}

@test "bench.sh: without a compiler one line, before anything is made" {
  suite
  printf '#!/bin/sh\necho "missing: make"\nexit 1\n' >"$WORK/suite/scripts/setup.sh"
  mkdir "$WORK/few"
  ln -s "$(command -v bash)" "$(command -v dirname)" "$(command -v date)" "$(command -v realpath)" "$WORK/few"
  PATH=$WORK/few script "$WORK/suite/scripts/bench.sh" --out "$WORK/results"
  exits_with 1
  prints '^missing: make$'
  [ ! -e "$WORK/results" ]
}

@test "bench.sh: wrong arguments are exit code 2" {
  for argument in --nonsense --out stray $'--out=a\nb'; do
    script "$TOP/scripts/bench.sh" "$argument"
    exits_with 2
    one_line '^bench.sh: '
  done
  script "$TOP/scripts/bench.sh" --out $'a\nb'
  exits_with 2
  one_line '^bench.sh: '
  script "$TOP/scripts/bench.sh" --help
  exits_with 0
  prints 'scripts/bench.sh \[--no-install\] \[--quick\]'
}

# ---- compare.sh ----------------------------------------------------------------------------------

# compared NEW-ROWS: an old folder with three rows against a new one with these
compared() { # compared ROWS [OPTIONS]
  for folder in old new; do
    mkdir -p "$WORK/$folder"
    echo "gpu: 0, X, 580.1, 1 MiB" >"$WORK/$folder/provenance.txt"
    echo "bytes,variant,us,us_min,us_q1,us_q3,us_max,wrong" >"$WORK/$folder/01_x.mpi.graph.csv"
  done
  printf '1024,plain,10,1,9,11,99,0\n4096,plain,20,1,19,21,99,0\n16384,plain,40,1,39,41,99,0\n' \
    >>"$WORK/old/01_x.mpi.graph.csv"
  printf '%b' "$1" >>"$WORK/new/01_x.mpi.graph.csv"
  script "$TOP/scripts/compare.sh" "$WORK/old" "$WORK/new" "${@:2}"
}

@test "compare.sh: ratio per row, the noise from the quartiles, exit code 1 for what is too slow" {
  compared '1024,plain,10.5,1,9.5,11.5,99,0\n4096,plain,16,1,15,17,99,0\n16384,plain,44,1,43,45,99,0\n'
  exits_with 0
  prints '^  1024 +plain +10.00 +10.50 +1.050x *$'
  prints '^  4096 +plain +20.00 +16.00 +0.800x +\*$'
  prints '^  16384 plain +40.00 +44.00 +1.100x +\*$' # not more than 10 %
  prints '^  bytes variant +old, us +new, us +new/old$'
  prints '^3 rows compared, 0 of OLD not in NEW, 0 of NEW not in OLD; 2 outside the noise, 0 slower by more than 10 %, 0 lost$'
  script "$TOP/scripts/compare.sh" "$WORK/old" --percent 5.5 "$WORK/new"
  exits_with 1
  prints '^  16384 plain .* \* SLOWER$'
  prints ' 1 slower by more than 5.5 %, 0 lost$'
}

@test "compare.sh: a time that is lost, rows and files that only one side has, old files" {
  compared '1024,plain,,,,,,3\n4096,fast,1,1,1,1,1,0\n'
  exits_with 1
  prints '^  1024 +plain +10.00 +- +-  LOST$'
  prints '^1 row compared, 2 of OLD not in NEW, 1 of NEW not in OLD; .* 1 lost$'
  prints '^  not compared: 2 of OLD, only there: bytes 16384$'
  prints '^  not compared: 1 of NEW, only there: variant fast$'
  sed -i 's/us_q1,us_q3/a,b/' "$WORK"/*/01_x.mpi.graph.csv # then the extremes are the error bars
  sed -i '2s/.*/1024,plain,90,1,9,11,99,0/' "$WORK/new/01_x.mpi.graph.csv"
  touch "$WORK/new/02_y.mpi.graph.csv"
  script "$TOP/scripts/compare.sh" "$WORK/old" "$WORK/new"
  exits_with 1
  prints '^  1024 +plain +10.00 +90.00 +9.000x +SLOWER$'
  says '^note: without rows in NEW: 02_y.mpi.graph.csv$'
}

@test "compare.sh: what is no positive number is no time; a row of another length is refused" {
  for us in inf nan 0 -1 1e999 0x10; do
    compared "1024,plain,$us,1,9.5,11.5,99,0\\n"
    exits_with 1
    prints '^  1024 +plain +10.00 +- +-  LOST$'
    script "$TOP/scripts/compare.sh" "$WORK/new" "$WORK/old"
    exits_with 2
    one_line '^compare.sh: no row .*is in both folders'
    rm "$WORK"/*/*.csv
  done
  compared '1024,plain,10,1,9\n'
  exits_with 2
  one_line '^compare.sh: .*/new/01_x.mpi.graph.csv:2: 5 fields, the header has 8; allowed: a CSV file of --bench$'
}

@test "compare.sh: files that are missing or empty on one side count as rows that are not there" {
  compared '1024,plain,10,1,9,11,99,0\n4096,plain,20,1,19,21,99,0\n16384,plain,40,1,39,41,99,0\n'
  for name in 02_y 03_z; do cp "$WORK/old/01_x.mpi.graph.csv" "$WORK/old/$name.csv"; done
  echo 65536,plain,inf,1,9,11,99,0 >>"$WORK/old/03_z.csv"
  : >"$WORK/new/02_y.csv"
  script "$TOP/scripts/compare.sh" "$WORK/old" "$WORK/new"
  exits_with 0
  prints '^3 rows compared, 6 of OLD not in NEW, 0 of NEW not in OLD; 0 outside'
  says '^note: without rows in NEW: 02_y.csv$'
  says '^note: only in OLD: 03_z.csv$'
  script "$TOP/scripts/compare.sh" "$WORK/new" "$WORK/old"
  exits_with 0
  prints '^3 rows compared, 0 of OLD not in NEW, 6 of NEW not in OLD; 0 outside'
  says '^note: without rows in OLD: 02_y.csv$'
  says '^note: only in NEW: 03_z.csv$'
}

@test "compare.sh: headings above aligned columns; a column that only one side has is left out; reasons per file" {
  compared '1024,plain,10,1,9,11,99,0\n268435456,plain,20,1,19,21,99,0\n1024,own,5,4,4,6,99,0\n'
  for side in old new; do
    printf '%s\n' path,ranks,us,us_min,us_max {oktopk,topkA}",$([ $side = old ] && echo 4 || echo 2),5,4,6" >"$WORK/$side/04_y.mpi.eager.csv"
  done
  printf '%s\n' path,mode,us,us_min,us_max "oktopk,one-sided,5,4,6" >"$WORK/new/04_z.mpi.graph.csv"
  printf '%s\n' path,us,us_min,us_max oktopk,8,7,9 {a,b,c,d,e},1,1,1 >"$WORK/old/04_z.mpi.graph.csv"
  script "$TOP/scripts/compare.sh" "$WORK/old" "$WORK/new"
  exits_with 0
  diff <(sed '1,2d; s/ *$//' "$WORK/out") - <<'TEXT'
01_x.mpi.graph.csv
  bytes variant    old, us    new, us  new/old
  1024  plain        10.00      10.00   1.000x
  not compared: 2 of OLD, only there: bytes 4096, 16384
  not compared: 2 of NEW, only there: bytes 268435456; variant own
04_y.mpi.eager.csv
  not compared: 2 of OLD, only there: ranks 4
  not compared: 2 of NEW, only there: ranks 2
04_z.mpi.graph.csv
  path      old, us    new, us  new/old
  oktopk       8.00       5.00   0.625x  *
  not compared: 5 of OLD, only there: path a, b, c and 2 more
2 rows compared, 9 of OLD not in NEW, 4 of NEW not in OLD; 1 outside the noise, 0 slower by more than 10 %, 0 lost
TEXT
}

@test "compare.sh: where no row is in both, nothing is compared" {
  compared '2048,plain,10,1,9,11,99,0\n'
  exits_with 2
  one_line '^compare.sh: no row with a time is in both folders; allowed: results of '
}

@test "compare.sh, report.sh: a locale with a decimal comma changes no number" {
  have localedef || skip "no localedef"
  localedef -i de_DE -f UTF-8 "$WORK/de_DE.UTF-8" 2>/dev/null || skip "localedef has no sources of de_DE"
  export LOCPATH=$WORK LC_ALL=de_DE.UTF-8
  [ "$(env printf %.1f 1)" = 1,0 ] || skip "that locale is not found"
  compared '1024,plain,10.94,1,9,11,99,0\n4096,plain,20,1,19,21,99,0\n16384,plain,40,1,39,41,99,0\n' --percent 9
  exits_with 1
  prints '^  1024 +plain +10.00 +10.94 +1.094x +SLOWER$'
  rm "$WORK/new"/*.csv
  cp "$TOP/results/2xH200-nccl2.28"/{provenance.txt,02_*.mpi.graph.csv} "$WORK/new"
  script "$TOP/scripts/report.sh" --html "$WORK/new"
  exits_with 0
  mv "$WORK/new/report.html" "$WORK/comma.html"
  LC_ALL=C script "$TOP/scripts/report.sh" --html "$WORK/new"
  exits_with 0
  cmp "$WORK/comma.html" "$WORK/new/report.html"
}

@test "compare.sh: folders with odd names" {
  compared '1024,plain,10,1,9,11,99,0\n4096,plain,20,1,19,21,99,0\n16384,plain,40,1,39,41,99,0\n'
  cd "$WORK"
  mv old a=b
  mv new 'it'\''s [a] "b" \c'
  # without the fix awk waits for lines on stdin
  script timeout 20 "$TOP/scripts/compare.sh" a=b 'it'\''s [a] "b" \c'
  exits_with 0
  prints '^3 rows compared, 0 of OLD'
  mkdir $'a\nb'
  cp a=b/* $'a\nb'
  script "$TOP/scripts/compare.sh" a=b $'a\nb'
  exits_with 2
  one_line "^compare.sh: 'a b' has a control character"
}

@test "compare.sh: the results in the repository are as fast as themselves" {
  script "$TOP/scripts/compare.sh" "$TOP"/results/2xH200-nccl2.28{,} --percent 0
  exits_with 0
  prints ' 0 of OLD not in NEW, 0 of NEW not in OLD; 0 outside the noise, 0 slower by more than 0 %, 0 lost$'
}

@test "compare.sh: wrong arguments and nothing in common are exit code 2" {
  compared '1024,plain,10,1,9,11,99,0\n'
  for arguments in "" "$WORK/old" "$WORK/old $WORK/new more" "$WORK/old $WORK/nothing" "--nonsense" \
    "$WORK/old $WORK/new --percent" "$WORK/old $WORK/new --percent x" "$WORK/old $WORK/new --percent -1"; do
    # shellcheck disable=SC2086 # several words
    script "$TOP/scripts/compare.sh" $arguments
    exits_with 2
    prints_nothing
    one_line '^compare.sh: '
  done
  compared '1,plain,10,1,9,11,99,0\n'
  exits_with 2
  mv "$WORK/new/01_x.mpi.graph.csv" "$WORK/new/z.csv"
  script "$TOP/scripts/compare.sh" "$WORK/old" "$WORK/new"
  exits_with 2
  [ "$(tail -n 1 "$WORK/err")" = "compare.sh: no row with a time is in both folders; allowed: results of the same examples, of as many ranks" ] || show
}

# ---- beside nccl-tests, releases of NCCL ----------------------------------------------------------

# A suite with the real names, whose programs print the expected output, and measure 8 us at 1 KiB, 100 at 1 MiB
# times the number in $WORK/factor.
named_suite() {
  suite
  rm -r "$WORK/suite"/0*
  cp -r "$TOP/scripts/maintain" "$WORK/suite/scripts"
  mkdir -p "$WORK/suite/tests" "$WORK/tests"
  printf '#!/bin/sh\n[ "$1" = --mask ] && exec cat\necho "expected of $1 on $2"\n' >"$WORK/suite/tests/golden.sh"
  for name in 01_allreduce_ub 02_allreduce_sm 03_alltoallv_sm 04_sparse_allreduce; do
    mkdir "$WORK/suite/$name"
    printf 'PROGRAM := %s\nV := build/gpu-mpi\nall:\n\tmkdir -p $(V) && cp program $(V)/$(PROGRAM)\n' "${name#*_}" >"$WORK/suite/$name/Makefile"
    printf 'all:\n\t@for i in 0*; do $(MAKE) -s -C $$i || exit; done\n' >"$WORK/suite/Makefile"
    cat >"$WORK/suite/$name/program" <<'PROGRAM'
#!/bin/bash
example=$(basename "$(dirname "$(dirname "$(dirname "$0")")")")
[ "$1" != --version ] || { echo "NCCL header 2.27.7, runtime 2.27.7" && echo "NCCL header 2.30.7, runtime 2.30.7" && exit 0; }
[ "$1" = --bench ] || { echo "a note of $example" >&2 && cat "$WORK/wrong" 2>/dev/null; echo "expected of $example on 2"; exit "$(cat "$WORK/exit" 2>/dev/null || echo 0)"; }
while [ "$1" != -J ]; do shift; done
f=$(cat "$WORK/factor")
{
  echo bytes,variant,us
  for variant in plain registered symmetric own send/recv alltoallv; do echo "1024,$variant,$((8 * f))"; echo "1048576,$variant,$((100 * f))"; done
} >"$2"
[[ $example != 04_* ]] || printf 'path,us\noktopk,%d\n' $((50 * f)) >"$2"
PROGRAM
    chmod +x "$WORK/suite/$name/program" "$WORK/suite/tests/golden.sh"
  done
  echo 1 >"$WORK/factor"
}

@test "nccl_tests.sh: five turns of both, their medians and the ratio" {
  named_suite
  mkdir "$WORK/results"
  echo "gpu: 0, X, 580.1, 1 MiB" >"$WORK/results/provenance.txt"
  for name in all_reduce alltoall; do # the third turn takes ten times as long
    cat >"$WORK/tests/${name}_perf" <<'PERF'
#!/bin/bash
echo "# a heading, 1024 2048"
n=$(($(cat "$WORK/turns.${0##*/}$*" 2>/dev/null) + 1))
echo $n >"$WORK/turns.${0##*/}$*"
f=1 && [ $n != 3 ] || f=10
echo "        1024           256     float     sum      -1     $((10 * f)).00    0.10    0.15       0     9.18    0.11    0.17       0"
echo "     1048576        262144     float     sum      -1     $((100 * f)).00    0.10    0.15       0     9.18    0.11    0.17       0"
PERF
    chmod +x "$WORK/tests/${name}_perf"
  done
  script "$WORK/suite/scripts/maintain/nccl_tests.sh" "$WORK/tests" "$WORK/results"
  exits_with 0
  diff - "$WORK/results/nccl_tests/medians.csv" <<'CSV'
example,variant,size,nccl-tests,its us,our us,ours / its
01,plain,1 KiB,all_reduce_perf R0,10.00,8.00,0.800
01,plain,1 MiB,all_reduce_perf R0,100.00,100.00,1.000
01,registered,1 KiB,all_reduce_perf R1,10.00,8.00,0.800
01,registered,1 MiB,all_reduce_perf R1,100.00,100.00,1.000
02,symmetric,1 KiB,all_reduce_perf R2,10.00,8.00,0.800
02,symmetric,1 MiB,all_reduce_perf R2,100.00,100.00,1.000
03,send/recv,1 KiB,alltoall_perf,10.00,8.00,0.800
03,send/recv,1 MiB,alltoall_perf,100.00,100.00,1.000
CSV
  [ "$(find "$WORK/results/nccl_tests" -type f | wc -l)" = 36 ] # three programs of ours, four runs of theirs, the medians
  sed -i 's/,variant,us$/,variant,other/' "$WORK/suite/02_allreduce_sm/program"
  script "$WORK/suite/scripts/maintain/nccl_tests.sh" "$WORK/tests" "$WORK/results"
  exits_with 2
  one_line '^nccl_tests.sh: .*/02.1.csv: no column us; allowed: a CSV file of --bench$'
  printf '#!/bin/sh\necho "no GPU for this"\nexit 3\n' >"$WORK/tests/alltoall_perf"
  script "$WORK/suite/scripts/maintain/nccl_tests.sh" "$WORK/tests" "$WORK/results"
  exits_with 1
  says '^no GPU for this$'
  says '^nccl_tests.sh: alltoall_perf failed$'
  for arguments in "" "$WORK/tests" "$WORK/bin $WORK/results" "$WORK/tests $WORK/bin"; do
    # shellcheck disable=SC2086 # several words
    script "$WORK/suite/scripts/maintain/nccl_tests.sh" $arguments
    exits_with 2
    one_line '^nccl_tests.sh: .*; allowed: '
  done
}

@test "nccl_releases.sh: golden runs and benches per release, a table of all, what is not as expected" {
  named_suite
  for version in 2.27.7 2.30.7; do
    mkdir -p "$WORK/nccl-$version/include"
    IFS=. read -r major minor patch <<<"$version"
    printf '#define NCCL_%s %s\n' MAJOR "$major" MINOR "$minor" PATCH "$patch" >"$WORK/nccl-$version/include/nccl.h"
  done
  script "$WORK/suite/scripts/maintain/nccl_releases.sh" --build "$WORK/out folder" "$WORK/nccl-2.27.7"
  exits_with 0
  [ -x "$WORK/suite/build/nccl/2.27.7/03_alltoallv_sm/build/gpu-mpi/alltoallv_sm" ]
  script "$WORK/suite/scripts/maintain/nccl_releases.sh" "$WORK/out folder" "$WORK/nccl-2.27.7"
  exits_with 0
  prints '^2.27.7: 4 of 4 examples as expected, .* s$'
  echo 2 >"$WORK/factor"
  echo "one line too many" >"$WORK/wrong"
  script "$WORK/suite/scripts/maintain/nccl_releases.sh" "$WORK/out folder" "$WORK/nccl-2.30.7"
  exits_with 1
  prints '^2.30.7: 0 of 4 examples as expected, .* s$'
  grep -qx '01_allreduce_ub: NOT as expected, exit code 0' "$WORK/out folder/2.30.7/golden.txt"
  grep -qx '  > one line too many' "$WORK/out folder/2.30.7/golden.txt"
  grep -qx '02_allreduce_sm: as expected' "$WORK/out folder/2.27.7/golden.txt"
  grep -qx '  a note of 02_allreduce_sm' "$WORK/out folder/2.27.7/golden.txt"
  grep -qx 'machine: 1 x X, driver 580.1; one process per GPU, in CUDA graphs; `NCCL_ALGO=Ring`' "$WORK/out folder/provenance.txt"
  for row in 'us of,size,2.27.7,2.30.7' '02 plain,1 KiB,8.00,16.00' '03 alltoallv,64 KiB,-,-' \
    '04 oktopk,14.7 M elements,50.00,100.00' '04 simple oktopk,14.7 M elements,-,-'; do
    grep -qx "$row" "$WORK/out folder/releases.csv" || { cat "$WORK/out folder/releases.csv" && false; }
  done
  rm "$WORK/wrong"
  echo 3 >"$WORK/exit"
  script "$WORK/suite/scripts/maintain/nccl_releases.sh" "$WORK/out folder" "$WORK/nccl-2.30.7"
  exits_with 1
  grep -qx '01_allreduce_ub: NOT as expected, exit code 3' "$WORK/out folder/2.30.7/golden.txt"
  mv "$WORK/out folder/releases.csv" "$WORK/before"
  sed -i '1s/us/other/' "$WORK/out folder/2.30.7/04_sparse_allreduce.mpi.graph.csv"
  script "$WORK/suite/scripts/maintain/nccl_releases.sh" "$WORK/out folder"
  exits_with 2
  one_line '^nccl_releases.sh: .*/04_sparse_allreduce.mpi.graph.csv: no column us; allowed: a CSV file of --bench$'
  sed -i '1s/other/us/' "$WORK/out folder/2.30.7/04_sparse_allreduce.mpi.graph.csv"
  script "$WORK/suite/scripts/maintain/nccl_releases.sh" "$WORK/out folder"
  exits_with 0
  cmp "$WORK/before" "$WORK/out folder/releases.csv"
  script "$WORK/suite/scripts/maintain/nccl_releases.sh"
  exits_with 2
  script "$WORK/suite/scripts/maintain/nccl_releases.sh" --bogus
  exits_with 2
  one_line "^nccl_releases.sh: unknown option '--bogus'; allowed: --build$"
  script "$WORK/suite/scripts/maintain/nccl_releases.sh" "$WORK/another" "$WORK/nowhere"
  exits_with 2
  [ ! -e "$WORK/another" ]
  one_line "^nccl_releases.sh: no include/nccl.h in '.*/nowhere'; allowed: "
  sed -i 's/PATCH 7/PATCH 9/' "$WORK/nccl-2.30.7/include/nccl.h"
  sed -i 's/header 2.30.7, runtime 2.30.7/header 2.30.9, runtime 2.30.7/' "$WORK/suite"/0*/program
  script "$WORK/suite/scripts/maintain/nccl_releases.sh" "$WORK/out folder" "$WORK/nccl-2.30.7"
  exits_with 2
  one_line '^nccl_releases.sh: another NCCL than 2.30.9 is loaded: header 2.27.7, .*; allowed: '
  sed -i 's/PATCH 9/PATCH 7/' "$WORK/nccl-2.30.7/include/nccl.h"
  echo 'all: ; false' >"$WORK/suite/Makefile"
  script "$WORK/suite/scripts/maintain/nccl_releases.sh" --build "$WORK/out folder" "$WORK/nccl-2.30.7"
  exits_with 1
  prints '^does not build: .*/build/nccl/2.30.7.log$'
}
