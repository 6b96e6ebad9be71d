# SPDX-License-Identifier: Apache-2.0
# --bench: the sweep, the table, the files. The times of the stand-in mean nothing and are not shown.
load helper

QUICK="--bench -b 1K -e 16K -n 3 -w 1 --repetitions 3"

# table FORMAT: the columns of the rows in $WORK/out.csv, such as '{bytes} {wrong}', a row a line
table() { python3 -c 'import csv, sys; [print(sys.argv[2].format(**row)) for row in csv.DictReader(open(sys.argv[1]))]' "$WORK/out.csv" "$1"; }

@test "-J: the same file under both launchers, in the place of an old one: at the end of a link, with its mode" {
  echo mine >"$WORK/out.csv.tmp"
  for launcher in $LAUNCHERS; do
    echo old >"$WORK/old.csv"
    chmod 600 "$WORK/old.csv"
    ln -s old.csv "$WORK/out.csv"
    # shellcheck disable=SC2086
    start "$launcher" 2 01_allreduce_ub $QUICK -d half -G 2 -J "$WORK/out.csv"
    exits_with 0
    [ "$(grep -cE '^ +(1024|4096|16384)  registered .* 0$' "$WORK/out")" = 3 ] || show
    [ "$(table '{bytes} {count} {variant} {ranks} {wrong} {us}')" = "\
1024 512 plain 2 0 
1024 512 registered 2 0 
4096 2048 plain 2 0 
4096 2048 registered 2 0 
16384 8192 plain 2 0 
16384 8192 registered 2 0 " ]
    # no temporary file left
    [ "$(ls "$WORK")" = $'err\nold.csv\nout\nout.csv\nout.csv.tmp\ntmp' ]
    [ "$(stat -c %a "$WORK/old.csv")" = 600 ]
    rm "$WORK/out.csv"
  done
  [ "$(cat "$WORK/out.csv.tmp")" = mine ]
}

@test "-J: JSON; sizes that are no multiple of the element, or below it" {
  start pthread 2 01_allreduce_ub --bench -b 1 -e 30 -f 3 -d double -n 2 --repetitions 1 -J "$WORK/out.json"
  exits_with 0
  python3 -c 'import json, sys
assert [(r["bytes"], r["count"], r["us"]) for r in json.load(open(sys.argv[1]))[::2]] == [(8, 1, None), (24, 3, None)]' "$WORK/out.json"
  # one size at least is measured
  start pthread 2 01_allreduce_ub --bench -b 1 -e 4 -d double -n 2 --repetitions 1
  exits_with 0
  prints '^ +8  registered .* 0$'
}

@test "a file that cannot be written is refused at once; a sweep that fails leaves the old one; a FIFO is written to" {
  mkdir "$WORK/folder.csv"
  # shellcheck disable=SC2086
  start pthread 2 01_allreduce_ub $QUICK -J "$WORK/folder.csv"
  exits_with 2
  one_line '^allreduce_ub: cannot write .*/folder.csv: Is a directory'
  echo old >"$WORK/out.csv"
  # shellcheck disable=SC2086
  FAULT=fail:ncclAllReduce:20:1 start pthread 2 01_allreduce_ub $QUICK -J "$WORK/out.csv"
  exits_with 3
  [ "$(cat "$WORK/out.csv")" = old ]
  ln -s /dev/full "$WORK/full.csv"
  # shellcheck disable=SC2086
  start pthread 2 01_allreduce_ub $QUICK -J "$WORK/full.csv"
  exits_with 3
  one_line '^\[rank 0\] cannot write .*/full.csv: No space left on device'
  mkfifo "$WORK/fifo.csv"
  timeout 60 cat "$WORK/fifo.csv" >"$WORK/read.csv" &
  # shellcheck disable=SC2086
  start pthread 2 01_allreduce_ub $QUICK -J "$WORK/fifo.csv"
  wait
  exits_with 0
  [ "$(wc -l <"$WORK/read.csv")" = 7 ]
}

@test "wrong data in the sweep: exit code 1, counted, and no time is shown" {
  # the last one of the check before the timing, and of the last timed repetition
  for call in 3 23; do
    # shellcheck disable=SC2086
    FAULT=corrupt:ncclAllReduce:$call:1 start pthread 2 01_allreduce_ub $QUICK -J "$WORK/out.csv"
    exits_with 1
    says '^\[rank 1\] bench: element 767 is '
    [ "$(table '{wrong}' | xargs)" = "1 0 0 0 0 0" ]
  done
}
