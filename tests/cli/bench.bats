# SPDX-License-Identifier: Apache-2.0
# --bench: the sweep, the table, the files. The times of the stand-in mean nothing and are not shown.
load helper

QUICK="--bench -b 1K -e 16K -n 3 -w 1 --repetitions 3"

json() { # json EXPRESSION: true for the parsed file d
  python3 -c "import json; d = json.load(open('$WORK/out.json')); assert $1, (str(d)[:400], '''$1''')"
}

@test "the sweep runs and verifies, both launchers, eager and as a graph" {
  for example in $EXAMPLES; do
    for launcher in $LAUNCHERS; do
      for graph in 0 2; do
        # shellcheck disable=SC2086
        start "$launcher" 3 "$example" $QUICK -G $graph
        exits_with 0
        [ "$(grep -cE '^ +(1024|4096|16384) .* 0$' "$WORK/out")" = 3 ] || show
        prints 'plain +(registered|symmetric)'
      done
    done
  done
}

@test "--bench writes valid JSON with everything that was measured" {
  # shellcheck disable=SC2086
  start pthread 2 01_allreduce_ub $QUICK -d half -G 1 -J "$WORK/out.json"
  exits_with 0
  python3 -m json.tool "$WORK/out.json" >/dev/null
  json "d['ranks'] == 2 and d['type'] == 'half' and d['graph_launches'] == 1 and d['stand_in']"
  json "[(r['bytes'], r['variant']) for r in d['rows']] == [(b, v) for b in (1024, 4096, 16384) for v in ('plain', 'registered')]"
  json "all(r['count'] * 2 == r['bytes'] and r['wrong'] == 0 and r['us'] is None for r in d['rows'])"
  [ "$(ls "$WORK")" = $'err\nout\nout.json\ntmp' ] # no temporary file left
}

@test "--bench writes valid CSV" {
  # shellcheck disable=SC2086
  start pthread 2 02_allreduce_sm $QUICK -d bfloat16 -J "$WORK/out.csv"
  exits_with 0
  python3 - "$WORK/out.csv" <<'PY'
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1])))
assert len(rows) == 9, rows
for row in rows:
    assert None not in row and None not in row.values(), row
    assert row['type'] == 'bfloat16' and row['ranks'] == '2' and row['wrong'] == '0', row
assert [r['variant'] for r in rows[:3]] == ['plain', 'symmetric', 'own'], rows
PY
}

@test "both launchers write the same file" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  for launcher in pthread mpi; do
    # shellcheck disable=SC2086
    start $launcher 2 01_allreduce_ub $QUICK -J "$WORK/$launcher.json"
    exits_with 0
  done
  diff "$WORK/pthread.json" "$WORK/mpi.json"
}

@test "sizes that are no multiple of the element, or below it" {
  start pthread 2 01_allreduce_ub --bench -b 1 -e 30 -f 3 -d double -n 2 --repetitions 1 -J "$WORK/out.json"
  exits_with 0
  json "[(r['bytes'], r['count']) for r in d['rows'] if r['variant'] == 'plain'] == [(8, 1), (24, 3)]"
}

@test "all types" {
  for type in float double half bfloat16 int32; do
    for example in $EXAMPLES; do
      start pthread 3 "$example" --bench -b 64 -e 4K -n 2 --repetitions 1 -d $type
      exits_with 0
    done
  done
}

@test "-J to a path that cannot be written: exit code 2 at once, one line, nothing left" {
  for launcher in $LAUNCHERS; do
    # shellcheck disable=SC2086
    start "$launcher" 2 01_allreduce_ub $QUICK -J "$WORK/none/out.json"
    exits_with 2
    one_line '^allreduce_ub: cannot write .*/none/out.json: No such file'
    prints_nothing
  done
  mkdir "$WORK/out.csv"
  # shellcheck disable=SC2086
  start pthread 2 01_allreduce_ub $QUICK -J "$WORK/out.csv"
  exits_with 2
  one_line '^allreduce_ub: cannot write .*/out.csv: Is a directory'
  [ "$(ls "$WORK")" = $'err\nout\nout.csv\ntmp' ]
}

@test "-J keeps mode and symbolic link, and writes to a FIFO" {
  echo old >"$WORK/real.csv"
  chmod 600 "$WORK/real.csv"
  ln -s real.csv "$WORK/link.csv"
  # shellcheck disable=SC2086
  start pthread 2 01_allreduce_ub $QUICK -J "$WORK/link.csv"
  exits_with 0
  [ -L "$WORK/link.csv" ]
  [ "$(stat -c %a "$WORK/real.csv")" = 600 ]
  [ "$(wc -l <"$WORK/real.csv")" = 7 ]
  mkfifo "$WORK/fifo.csv"
  timeout 60 cat "$WORK/fifo.csv" >"$WORK/read.csv" &
  # shellcheck disable=SC2086
  start pthread 2 01_allreduce_ub $QUICK -J "$WORK/fifo.csv"
  wait
  exits_with 0
  [ -p "$WORK/fifo.csv" ]
  diff "$WORK/real.csv" "$WORK/read.csv"
}

@test "a sweep that fails leaves the old file, and nothing else" {
  echo old >"$WORK/out.csv"
  # shellcheck disable=SC2086
  FAULT=fail:ncclAllReduce:20:1 start pthread 2 01_allreduce_ub $QUICK -J "$WORK/out.csv"
  exits_with 3
  [ "$(cat "$WORK/out.csv")" = old ]
  [ "$(ls "$WORK")" = $'err\nout\nout.csv\ntmp' ]
}

@test "wrong data in the sweep: exit code 1, counted, and no time is shown" {
  for launcher in $LAUNCHERS; do
    for call in 1 21; do # the first one of the check before the timing, and of the last timed repetition
      # shellcheck disable=SC2086
      FAULT=corrupt:ncclAllReduce:$call:1 start "$launcher" 2 01_allreduce_ub $QUICK -J "$WORK/out.json"
      exits_with 1
      says '^\[rank 1\] bench: element 255 is '
      json "[r['wrong'] for r in d['rows']] == [1, 0, 0, 0, 0, 0]"
    done
  done
}
