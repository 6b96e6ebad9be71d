# SPDX-License-Identifier: Apache-2.0
# --bench: the sweep, the table, the files. The times of the stand-in mean nothing and are not shown.
load helper

QUICK="--bench -b 1K -e 16K -n 3 -w 1 --repetitions 3"

# true for the parsed file, a list of rows by column
json() { python3 -c "import json; d = json.load(open('$WORK/out.json')); assert $1, (str(d)[:400], '''$1''')"; }

@test "the sweep runs and verifies, both launchers, eager and as a graph" {
  for example in $EXAMPLES; do
    for launcher in $LAUNCHERS; do
      for graph in 0 2; do
        # shellcheck disable=SC2086
        start "$launcher" 3 "$example" $QUICK -G $graph
        exits_with 0
        [ "$(grep -cE '^ +(1024|4096|16384)  (registered|symmetric) .* 0$' "$WORK/out")" = 3 ] || show
      done
    done
  done
}

@test "-J writes the same columns as JSON and CSV, under both launchers, and replaces an old file: at the end of a link, with its mode" {
  echo mine >"$WORK/out.csv.tmp"
  for launcher in $LAUNCHERS; do
    echo old >"$WORK/old.csv"
    chmod 600 "$WORK/old.csv"
    ln -s old.csv "$WORK/out.csv"
    # shellcheck disable=SC2086
    start "$launcher" 2 01_allreduce_ub $QUICK -d half -G 1 -J "$WORK/out.csv"
    exits_with 0
    # shellcheck disable=SC2086
    start "$launcher" 2 01_allreduce_ub $QUICK -d half -G 1 -J "$WORK/out.json"
    exits_with 0
    json "[(r['bytes'], r['variant']) for r in d] == [(b, v) for b in (1024, 4096, 16384) for v in ('plain', 'registered')]"
    json "all(r['count'] * 2 == r['bytes'] and r['ranks'] == 2 and r['wrong'] == 0 and r['us'] is None for r in d)"
    python3 - "$WORK/out.csv" "$WORK/out.json" <<'PY'
import csv, json, sys
rows, objects = list(csv.DictReader(open(sys.argv[1]))), json.load(open(sys.argv[2]))
assert [{k: "" if v is None else str(v) for k, v in o.items()} for o in objects] == rows
PY
    [ "$(ls "$WORK")" = $'err\nold.csv\nout\nout.csv\nout.csv.tmp\nout.json\ntmp' ] # no temporary file left
    [ "$(stat -c %a "$WORK/old.csv")" = 600 ]
    rm "$WORK/out.csv"
    mv "$WORK/old.csv" "$WORK/tmp/$launcher.csv"
  done
  [ "$(cat "$WORK/out.csv.tmp")" = mine ]
  [ ! -e "$WORK/tmp/mpi.csv" ] || diff "$WORK"/tmp/{pthread,mpi}.csv
}

@test "sizes that are no multiple of the element, or below it; all types" {
  start pthread 2 01_allreduce_ub --bench -b 1 -e 30 -f 3 -d double -n 2 --repetitions 1 -J "$WORK/out.json"
  exits_with 0
  json "[(r['bytes'], r['count']) for r in d if r['variant'] == 'plain'] == [(8, 1), (24, 3)]"
  for type in float half bfloat16 int32; do
    for example in $EXAMPLES; do
      start pthread 3 "$example" --bench -b 64 -e 4K -n 2 --repetitions 1 -d $type
      exits_with 0
    done
  done
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
  for launcher in $LAUNCHERS; do
    for call in 3 23; do # the last one of the check before the timing, and of the last timed repetition
      # shellcheck disable=SC2086
      FAULT=corrupt:ncclAllReduce:$call:1 start "$launcher" 2 01_allreduce_ub $QUICK -J "$WORK/out.json"
      exits_with 1
      says '^\[rank 1\] bench: element 767 is '
      json "[r['wrong'] for r in d] == [1, 0, 0, 0, 0, 0]"
    done
  done
}
