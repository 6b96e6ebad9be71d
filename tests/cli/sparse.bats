# SPDX-License-Identifier: Apache-2.0
# 04_sparse_allreduce: what a user sees. Options, sizes and faults are rows of cases/sparse.tsv.
load helper
export EXAMPLES="04_sparse_allreduce"

masked() { "$TOP/tests/golden.sh" --mask 04_sparse_allreduce <"$WORK/out"; }

@test "golden output: without options, and on 1, 3 and 7 ranks, both launchers" {
  sparse pthread -
  exits_with 0
  diff <("$TOP/tests/golden.sh" 04_sparse_allreduce 4) <(masked) || show
  says_not '^[^n]|^n[^o]' # notes only
  for ranks in 1 3 7; do
    verified pthread $ranks
    diff <("$TOP/tests/golden.sh" 04_sparse_allreduce $ranks) <(masked) || show
  done
  verified "${LAUNCHERS##* }" 3
  prints '^gtopk .* 1747 ' # of all ranks the mean, 8/3 k
  diff <("$TOP/tests/golden.sh" 04_sparse_allreduce 3) <(masked) || show
  verified "${LAUNCHERS##* }" 3 --count 2000 # the harness has the same table
  diff <("$TOP/tests/golden.sh" 04_sparse_allreduce 3 | sed -n '/^Gradient/,$p') <(masked) || show
}

@test "a row per path that was asked for, in the table's order" {
  verified pthread 2 "${SMALL[@]}" --algorithm oktopk,topkA,oktopk
  [ "$(awk '/^path /{ rows = 1; next } /^All/{ rows = 0 } rows { print $1 }' "$WORK/out" | xargs)" = "topkA oktopk" ]
}

@test "the digest: not of launcher, throttle, balance, exchange, result or --simple, but of seed and ranks" {
  local launcher n
  for launcher in $LAUNCHERS; do digest "$launcher" 4 --count 3000 --steps 34; done
  digest pthread 4 --count 3000 --steps 34 --throttle 1 --balance always
  digest pthread 4 --count 3000 --steps 34 --throttle 8 --balance never
  for n in sendrecv auto; do digest "${LAUNCHERS##* }" 4 --count 3000 --steps 34 --exchange $n --result entries; done
  digest pthread 4 --count 3000 --steps 34 --simple
  one_digest
  digest pthread 4 "${SMALL[@]}"
  digest pthread 4 "${SMALL[@]}" --seed 2
  digest pthread 3 "${SMALL[@]}"
  [ "$(sort -u "$WORK/digests" | wc -l)" = 3 ]
}

modes() { # modes LAUNCHER RANKS [OPTIONS]: what ran, of the paths in their order, as a note and in JSON
  verified "$@" "${SMALL[@]}" -J "$WORK/modes.json"
  sed -n 's/^note: \([a-zA-Z0-9]* (.*)\)$/\1/p' "$WORK/err" >"$WORK/notes"
  python3 -c "import json; print(*(r['path'] + ' (' + r['mode'] + ')' for r in json.load(open('$WORK/modes.json'))), sep='\n')" |
    diff - "$WORK/notes"
  paste -sd, "$WORK/notes"
}

@test "the program says what ran: the modes without the kernels, and the simple version" {
  local paths=topkA,gtopk,oktopk,topkSA
  [ "$(modes pthread 2 --algorithm $paths --exchange sendrecv)" = "topkA (send/recv),gtopk (send/recv),oktopk (send/recv),topkSA (send/recv)" ]
  [ "$(modes pthread 2 --algorithm $paths)" = "topkA (device counts),gtopk (send/recv),oktopk (device counts),topkSA (device counts)" ]
  [ "$(modes pthread 2 --simple --algorithm topkA,oktopk)" = "topkA (simple),oktopk (simple)" ]
  [[ $LAUNCHERS = *mpi* ]] || skip "no MPI"
  [ "$(modes mpi 2 --algorithm $paths)" = "topkA (device counts),gtopk (send/recv),oktopk (device counts),topkSA (device counts)" ]
}

@test "-J: the table as JSON and CSV" {
  verified pthread 3 "${SMALL[@]}" -J "$WORK/table.json"
  verified pthread 3 "${SMALL[@]}" --warmup-steps 2 -J "$WORK/table.csv" # which have no part in the means
  verified pthread 1 "${SMALL[@]}" -J "$WORK/one.json"
  python3 - "$WORK" <<'PYTHON'
import csv, json, sys
rows = json.load(open(sys.argv[1] + "/table.json"))
lines = list(csv.DictReader(open(sys.argv[1] + "/table.csv")))
one = json.load(open(sys.argv[1] + "/one.json"))
assert len(rows) == len(lines) == 10
for row, line in zip(rows, lines):
    assert list(row) == list(line)
    assert row["path"] == line["path"] and row["ranks"] == 3 and row["count"] == 3000 and row["k"] == 30
    assert row["verified_steps"] == 5 and row["wrong"] == 0 and row["us"] is None and line["us"] == ""
assert lines[1]["local_k"] == "1"
assert rows[1]["words_sent"] == rows[1]["paper_words_low"] == 2 * 30 * 2
assert rows[0]["local_k"] is None and rows[1]["local_k"] == 1 and rows[4]["words_sent"] == 80 # of 3 ranks the mean
# what selecting costs: nothing with one rank and exactly its k largest, else something
assert one[1]["xi"] == 0 and 0 < rows[1]["xi"] < 1 and rows[0]["xi"] is None, (one[1], rows[1])
PYTHON
  verified pthread 2 "${SMALL[@]}" --algorithm dense,oktopk --result entries -J "$WORK/table.json"
  python3 -c "import json; assert [(r['mode'], r['result']) for r in json.load(open('$WORK/table.json'))] == [
    ('allreduce', 'entries'), ('device counts', 'entries')]"
  says '^note: oktopk \(device counts, entries\)$'
}

@test "--bench: rows for each size and its densities, as files too" {
  sparse pthread 3 --bench --steps 4 -J "$WORK/bench.csv"
  exits_with 0
  prints '^# 16384 elements, density 0.01; dense us:'
  prints '^# 16384 elements, density 0.02; dense us:'
  prints '^# 65536 elements, density 0.01; dense us:' # of the largest one density
  [ "$(grep -c '^oktopk ' "$WORK/out")" = 3 ]
  [ "$(grep -c '^simple oktopk  ' "$WORK/out")" = 3 ]
  [ "$(awk -F, '{ print NF }' "$WORK/bench.csv" | sort -u | wc -l)" = 1 ]
  [ "$(wc -l <"$WORK/bench.csv")" = $((1 + 3 * 15)) ]
  sparse "${LAUNCHERS##* }" 2 --bench -G 1 --count 5000 --density 0.1 --steps 4 --algorithm dense,oktopk,topkSA \
    --result entries -J "$WORK/bench.json"
  exits_with 0
  prints ', in CUDA graphs$'
  prints '^oktopk entries added .* (one-sided|device counts)$'
  python3 -c "import json
rows = json.load(open('$WORK/bench.json'))
paths = [r['path'] for r in rows]
assert paths == ['plain allreduce', 'symmetric allreduce', 'direct allreduce', 'dense', 'oktopk', 'simple oktopk',
  'oktopk entries', 'oktopk entries added', 'topkSA', 'topkSA entries', 'topkSA entries added'], paths
assert all(r['wrong'] == 0 for r in rows)"
}

# In a copy, with an error in the library that only one of the comparisons can see.
planted() { # planted FILE SED-SCRIPT PATTERN-OF-THE-LINE [OPTIONS]
  local file=$FAULT_FOLDER/own/04_sparse_allreduce/$1
  cp "$file" "$WORK/right"
  sed -i "$2" "$file"
  if cmp -s "$file" "$WORK/right"; then false; fi
  make -s -C "$FAULT_FOLDER/own" CPU=1 04_sparse_allreduce
  code=0
  NTHREADS=3 "$FAULT_FOLDER/own/04_sparse_allreduce/sparse_allreduce" "${@:4}" >"$WORK/out" 2>"$WORK/err" || code=$?
  cp "$WORK/right" "$file"
  exits_with 1
  says "$3"
}

# The section "A path of your own" of simple/README.md, followed to the letter in a copy. Then the verification is tried.
@test "a path of a reader's own, in simple/ alone: the page's recipe works, and what is wrong is noticed" {
  local copy=$FAULT_FOLDER/own page=$TOP/04_sparse_allreduce/simple/README.md
  mkdir -p "$copy/build"
  cp -rp "$TOP"/{Makefile,common,scripts,0*,tests} "$copy"
  cp -rp "$TOP"/build/cpu{,-pthread} "$copy/build" # others are being built meanwhile
  cd "$copy/04_sparse_allreduce/simple"
  awk '/^```c fixed.c/ { in_code = 1; next } /^```/ { in_code = 0 } in_code' "$page" >fixed.c
  awk '/^```sh/ { in_code = 1; next } /^```/ { in_code = 0 } in_code && /^sed/' "$page" >recipe.sh
  [ -s fixed.c ]
  [ "$(wc -l <recipe.sh)" = 2 ]
  bash recipe.sh
  make -s -C "$copy" CPU=1 04_sparse_allreduce
  NTHREADS=3 ../sparse_allreduce --simple --algorithm topkA,fixed --count 3000 --steps 5 >"$WORK/out"
  grep '^fixed .* 5 steps x 3 ranks$' "$WORK/out"
  grep '^All paths verified correctly$' "$WORK/out"
  code=0
  NTHREADS=3 FAULT=corrupt:ncclRecv:1:1 LD_PRELOAD=$FAULT_FOLDER/fault.so ../sparse_allreduce --simple --algorithm fixed \
    --count 3000 --steps 5 >"$WORK/out" 2>"$WORK/err" || code=$?
  [ $code = 1 ] && grep 'fixed, step 0: ' "$WORK/err"
  local removal='/^static void local_pass/,/^}/{/^  clear_pending(/d}' # as training does it, without a look at the residual
  planted cpu/ops_cpu.c "$removal" 'topkA, step [12]: ' --algorithm topkA --count 3000
  planted cpu/ops_cpu.c "$removal" 'oktopk, step [12]: ' --bench --steps 4 --algorithm oktopk --count 3000
  planted lib/result.c 's/out->boundaries = s->kept.boundaries;/out->boundaries = s->region_displs;/' \
    'oktopk, step 0: boundary of a region is ' --algorithm oktopk --count 3000
  # what only the comparison of weights sees, that of the threshold that the reference takes over, and that of main.c
  planted cpu/ops_cpu.c 's/fmaf(c->scale, average, c->vector\[at\])/c->scale * average + c->vector[at]/' \
    'oktopk, step [0-9]+: weights: ' --algorithm oktopk --count 3000 --result entries
  planted lib/create.c 's|normal_tail(density / 2)|normal_tail(density)|' \
    'gaussiank, step 0: gaussian_threshold is ' --algorithm gaussiank --count 3000
  planted lib/step.c '/ops_clear_pending/d' 'topkA, step 1: residual: '
  # with times, which mean nothing here: paths are compared with the fastest AllReduce, or if one is wrong, with nothing
  sed -i 's/bench_shows_times = false/bench_shows_times = true/' "$copy/common/bench/bench.c"
  make -s -C "$copy" CPU=1 04_sparse_allreduce
  local bench=(../sparse_allreduce --bench --count 3000 --density 0.1 --steps 64 --algorithm topkA -J "$WORK/rows.json")
  NTHREADS=2 "${bench[@]}"
  python3 -c "import json
rows = json.load(open('$WORK/rows.json'))
fastest = min(r['us'] for r in rows[:3])
for r in rows:
    moved = r['us'] * r['copy_gb_per_s'] * 1e3 / r['count']
    assert r['dense_us'] == fastest and abs(r['ratio'] * r['us'] / fastest - 1) < 1e-4
    assert abs(r['bytes_per_element'] / moved - 1) < 1e-4
assert rows[3]['us'] < 32 * rows[3]['us_median_step']" # a cycle has 64 steps
  code=0
  NTHREADS=2 FAULT=corrupt:ncclAllReduce:129:1 LD_PRELOAD=$FAULT_FOLDER/fault.so "${bench[@]}" \
    >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 1
  says '^\[rank 1\] ncclAllReduce: element '
  prints 'dense us: - plain: WRONG, '
  python3 -c "import json
rows = json.load(open('$WORK/rows.json'))
assert [r['us'] is None for r in rows] == [True] + 4 * [False] and all(r['ratio'] is None for r in rows)"
}
