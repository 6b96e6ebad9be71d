# SPDX-License-Identifier: Apache-2.0
# 04_sparse_allreduce: what a user sees, its options, and that verification verifies.
load sparse_helper

masked() { "$TOP/tests/golden.sh" --mask 04_sparse_allreduce <"$WORK/out"; }

# ---- output ----------------------------------------------------------------------------------------

@test "golden output: without options, and on 1, 2, 3, 4 and 7 ranks, both launchers" {
  diff "$TOP/tests/golden/04_sparse_allreduce.4" <("$TOP/tests/golden.sh" 04_sparse_allreduce 4)
  sparse pthread -
  exits_with 0
  diff "$TOP/tests/golden/04_sparse_allreduce.4" <(masked) || show
  says_not '^[^n]|^n[^o]' # notes only
  for ranks in 1 2 3 4 7; do
    verified pthread $ranks --count 2000
    diff <("$TOP/tests/golden.sh" 04_sparse_allreduce $ranks) <(masked) || show
  done
  if [[ $LAUNCHERS == *mpi* ]]; then
    verified mpi 3 --count 2000
    diff <("$TOP/tests/golden.sh" 04_sparse_allreduce 3) <(masked) || show
  fi
}

@test "a row per path that was asked for, in the table's order" {
  verified pthread 2 "${SMALL[@]}" --algorithm oktopk,topkA,oktopk
  [ "$(awk '/^path /{ rows = 1; next } /^All/{ rows = 0 } rows { print $1 }' "$WORK/out" | xargs)" = "topkA oktopk" ]
  verified pthread 2 "${SMALL[@]}" --algorithm dense
  prints '^dense .* 3000 .* 5 steps x 2 ranks$'
}

@test "every gradient, type and preset" {
  for gradient in heavy normal uniform ties one-region; do
    for type in float half bfloat16; do verified pthread 3 "${SMALL[@]}" --gradient $gradient -d $type --seed 7; done
  done
  for preset in vgg lstm bert; do verified pthread 4 --count 2000 --steps 6 --preset $preset --balance auto; done
  prints 'k = 20 \(density 0.01\)$'
  verified pthread 2 "${SMALL[@]}" --preset vgg
  prints 'k = 60 \(density 0.02\)$'
  verified pthread 2 "${SMALL[@]}" --preset vgg --density 0.5
  prints 'k = 1500 \(density 0.5\)$'
  # topkAopt has no other constant than its interval, which is 32 in all
  for preset in vgg bert; do
    verified pthread 2 --count 500 --steps 40 --density 0.02 --algorithm topkAopt --preset $preset --digest
    grep '^Digest: ' "$WORK/out" >"$WORK/$preset"
  done
  cmp "$WORK/vgg" "$WORK/bert"
}

@test "sizes: one element, fewer than ranks, all of them, a thousand steps" {
  verified pthread 4 --count 1 --steps 3 --algorithm dense,topkA,topkA2,topkAopt,gtopk,oktopk,topkSA
  for count in 2 3 4 15; do
    verified pthread 4 --count $count --steps 3 --gk-threshold gaussian # k is 1
    verified pthread 4 --count $count --steps 3 --density 1
  done
  for count in 4096 4097; do verified pthread 4 --count $count --steps 3; done
  for density in 1e-300 1e-9; do
    verified pthread 3 --count 1000 --steps 3 --density $density --gk-threshold gaussian
  done
  verified pthread 3 --count 1000 --steps 3 --density 1
  verified pthread 2 --count 257 --steps 1000 --gradient ties --algorithm oktopk,topkAopt
}

@test "--verify: sample compares every eighth step, off none" {
  verified pthread 2 --count 3000 --steps 17 --verify sample
  [ "$(grep -c '  3 steps x 2 ranks$' "$WORK/out")" = 10 ]
  sparse pthread 2 "${SMALL[@]}" --verify off
  exits_with 0
  [ "$(grep -c '  not compared$' "$WORK/out")" = 10 ]
  prints '^All paths ran, nothing was verified$'
}

@test "the digest depends on seed and ranks, not on launcher, throttle, balance, exchange or a restart" {
  local launcher n
  for launcher in $LAUNCHERS; do digest "$launcher" 4 --count 3000 --steps 7; done
  for n in 1 2 8; do digest pthread 4 --count 3000 --steps 7 --throttle $n; done
  for n in always auto; do digest pthread 4 --count 3000 --steps 7 --balance $n; done
  for n in sendrecv onesided; do digest "${LAUNCHERS##* }" 4 --count 3000 --steps 7 --exchange $n; done
  digest pthread 4 --count 3000 --steps 7 --restart-after 3
  one_digest
  digest pthread 4 --count 3000 --steps 7 --seed 2
  digest pthread 3 --count 3000 --steps 7
  digest pthread 3 --count 3000 --steps 6
  [ "$(sort -u "$WORK/digests" | wc -l)" = 3 ]
}

@test "--exchange onesided where ranks share no memory: refused, but gtopk and dense take NCCL's calls anyway" {
  export CPU_STANDIN_LSA_RANKS=1
  verified pthread 2 "${SMALL[@]}" --exchange onesided --algorithm gtopk,dense
  says '^note: gtopk \(send/recv\)$'
  sparse pthread 2 "${SMALL[@]}" --exchange onesided --algorithm gtopk,topkA2
  exits_with 77
  says '^sparse_allreduce: --exchange: exchange ONESIDED is not possible here: .*; allowed: auto, sendrecv$'
}

@test "a restart at any step goes on with the same bits" {
  for n in 1 31 32 33 63 64; do digest pthread 3 --count 1500 --steps 66 --restart-after $n; done
  digest pthread 3 --count 1500 --steps 66
  one_digest
  for n in 2 4 5; do digest pthread 3 "${SMALL[@]}" --steps 6 --warmup-steps 4 --restart-after $n; done
  one_digest
}

@test "warm-up steps, gtopk's exact residual, the Gaussian threshold" {
  verified pthread 3 --count 3000 --steps 70 --warmup-steps 3
  verified pthread 5 "${SMALL[@]}" --algorithm gtopk --gtopk-exact-residual
  verified pthread 3 "${SMALL[@]}" --algorithm gaussiankSA --gk-threshold gaussian
  verified pthread 2 "${SMALL[@]}" --warmup-steps 4
  refused "--warmup-steps 5: there are 5 steps, none would be sparse; allowed: fewer" "${SMALL[@]}" --warmup-steps 5
}

modes() { # modes LAUNCHER RANKS [OPTIONS]: what ran, of the paths in their order, as a note and in JSON
  verified "$@" "${SMALL[@]}" -J "$WORK/modes.json"
  sed -n 's/^note: \([a-zA-Z0-9]* (.*)\)$/\1/p' "$WORK/err" >"$WORK/notes"
  python3 -c "import json; print(*(r['path'] + ' (' + r['mode'] + ')' for r in json.load(open('$WORK/modes.json'))), sep='\n')" |
    diff - "$WORK/notes"
  paste -sd, "$WORK/notes"
}

@test "the program says what ran: oktopk has three modes, and the simple version" {
  local paths=topkA,gtopk,oktopk,topkSA
  [ "$(modes pthread 2 --algorithm $paths --exchange sendrecv)" = "topkA (send/recv),gtopk (send/recv),oktopk (send/recv),topkSA (send/recv)" ]
  [ "$(modes pthread 2 --algorithm $paths)" = "topkA (device counts),gtopk (send/recv),oktopk (device counts),topkSA (device counts)" ]
  [ "$(modes pthread 2 --simple)" = "topkA (simple),oktopk (simple)" ]
  CPU_STANDIN_LSA_RANKS=1 modes pthread 2 --algorithm oktopk >"$WORK/modes"
  grep -qx 'oktopk (send/recv)' "$WORK/modes"
  sparse pthread 2 --bench --count 500 --density 0.1 --steps 2 --algorithm dense,oktopk
  prints '^dense .*  allreduce$'
  prints '^oktopk .*  device counts$'
  prints '^simple oktopk .*  simple$'
  [[ $LAUNCHERS = *mpi* ]] || skip "no MPI"
  [ "$(modes mpi 2 --algorithm $paths)" = "topkA (device counts),gtopk (send/recv),oktopk (one-sided),topkSA (device counts)" ]
}

@test "-J: the table as JSON and CSV" {
  verified pthread 3 "${SMALL[@]}" -J "$WORK/table.json"
  verified pthread 3 "${SMALL[@]}" -J "$WORK/table.csv"
  python3 - "$WORK" <<'PYTHON'
import csv, json, sys
rows = json.load(open(sys.argv[1] + "/table.json"))
lines = list(csv.DictReader(open(sys.argv[1] + "/table.csv")))
assert len(rows) == len(lines) == 10
for row, line in zip(rows, lines):
    assert list(row) == list(line)
    assert row["path"] == line["path"] and row["ranks"] == 3 and row["count"] == 3000 and row["k"] == 30
    assert row["verified_steps"] == 5 and row["wrong"] == 0 and row["us"] is None and line["us"] == ""
assert rows[1]["words_sent"] == rows[1]["paper_words_low"] == 2 * 30 * 2
assert rows[0]["local_k"] is None and rows[1]["local_k"] == 1
PYTHON
  [ -z "$(find "$WORK" -name '*.unfinished.*')" ]
  refused "cannot write $WORK/no/table.csv: No such file" "${SMALL[@]}" -J "$WORK/no/table.csv"
  refused "cannot write $WORK/no/table.csv: No such file" --bench -J "$WORK/no/table.csv"
  mkdir "$WORK/folder.csv"
  refused "cannot write $WORK/folder.csv: Is a directory" "${SMALL[@]}" -J "$WORK/folder.csv"
}

@test "--bench: rows for each size and its densities, verified, as files too" {
  sparse pthread 3 --bench --steps 4 -J "$WORK/bench.csv"
  exits_with 0
  prints '^# 16384 elements, density 0.01; dense us:'
  prints '^# 16384 elements, density 0.02; dense us:'
  prints '^# 65536 elements, density 0.01; dense us:' # of the largest one density
  [ "$(grep -c '^# as fast as dense at density' "$WORK/out")" = 1 ]
  [ "$(grep -c '^oktopk ' "$WORK/out")" = 3 ]
  [ "$(grep -c '^simple oktopk  ' "$WORK/out")" = 3 ]
  [ "$(awk -F, '{ print NF }' "$WORK/bench.csv" | sort -u | wc -l)" = 1 ]
  [ "$(wc -l <"$WORK/bench.csv")" = $((1 + 3 * 15)) ]
  sparse "${LAUNCHERS##* }" 2 --bench --count 5000 --density 0.1 --algorithm topkSA --steps 2 -d half -J "$WORK/bench.json"
  exits_with 0
  python3 -c "import json; d = json.load(open('$WORK/bench.json')); assert [r['path'] for r in d] == ['plain allreduce', 'symmetric allreduce', 'direct allreduce', 'topkSA'], d"
}

@test "--bench -G 1: steps as graphs, but for the path whose host takes part; -G without --bench is refused" {
  sparse pthread 2 --bench -G 1 --count 5000 --density 0.1 --algorithm oktopk,topkSA --steps 4 -J "$WORK/bench.json"
  exits_with 0
  prints ', in CUDA graphs$'
  python3 -c "import json; d = json.load(open('$WORK/bench.json')); assert [r['path'] for r in d][2:] == ['direct allreduce', 'oktopk', 'simple oktopk', 'topkSA'] and all(r['wrong'] == 0 for r in d), d"
  sparse pthread 2 -G 1
  exits_with 2
  says '^sparse_allreduce: --cudagraph is for --bench only; allowed: both together$'
}

@test "--bench: a wrong dense baseline is said, and marked in its own row" {
  FAULT=corrupt:ncclAllReduce:1:1 sparse pthread 2 --bench --count 5000 --density 0.1 --algorithm topkA --steps 2 -J "$WORK/bench.json"
  exits_with 1
  says '^\[rank [01]\] ncclAllReduce: '
  prints ' steps a cycle; WRONG$'
  python3 -c "import json; d = json.load(open('$WORK/bench.json')); assert [r['wrong'] for r in d] == [1, 0, 0, 0, 0] and d[0]['us'] is None, d"
}

# ---- the version to read first -----------------------------------------------------------------------

@test "--simple: topkA and oktopk, verified, with the library's bits, both launchers" {
  local ranks gradient preset common launcher=pthread
  for ranks in 1 2 3 4 7; do
    for gradient in heavy normal uniform ties one-region; do
      case $ranks$gradient in *ties | *y) preset=vgg ;; *normal) preset=lstm ;; *) preset=bert ;; esac
      if [ $ranks = 3 ]; then launcher=${LAUNCHERS##* }; else launcher=pthread; fi
      common=(--count 2003 --steps 34 --gradient "$gradient" --preset "$preset")
      digest "$launcher" "$ranks" "${common[@]}" --simple
      [ "$(grep -c '^\(topkA\|oktopk\) .* 34 steps x ' "$WORK/out")" = 2 ]
      digest pthread "$ranks" "${common[@]}" --algorithm topkA,oktopk --balance never
      one_digest
    done
  done
  for count in 1 2 3 4 15 4097; do verified pthread 4 --count $count --steps 3 --simple; done
  for density in 1e-300 1; do verified pthread 3 --count 1000 --steps 3 --density $density --simple; done
  verified pthread 2 "${SMALL[@]}" --algorithm topkA --simple --output "$WORK/o%r.npy" --residual "$WORK/r%r.npy"
  cmp "$WORK/o0.npy" "$WORK/o1.npy"
}

@test "--simple: what it cannot do is refused in one line" {
  refused "--simple and --algorithm with other paths; allowed: topkA, oktopk" --simple --algorithm gtopk
  refused "--simple and --algorithm with other paths" --simple --algorithm all
  refused "--simple and --datatype with 16 bits; allowed: float" --simple -d half
  for option in "--balance always" "--nonfinite drop" "--exchange sendrecv" "--throttle 2" "--warmup-steps 1" \
    "--result entries" "--restart-after 1" --bench; do
    # shellcheck disable=SC2086 # an option and its argument
    refused "--simple and ${option%% *}[;,]" --simple $option
  done
}

# inexact_gradients: $WORK/g<rank>.npy for 4 ranks, whose sums depend on the order, as the generated ones' seldom do
inexact_gradients() {
  python3 - "$WORK" <<'PYTHON'
import random, struct, sys
draw = random.Random(1)
for rank in range(4):
    head = "{'descr': '<f4', 'fortran_order': False, 'shape': (34, 500), }"
    with open(f"{sys.argv[1]}/g{rank}.npy", "wb") as file:
        file.write(b"\x93NUMPY\x01\x00\x76\x00" + head.ljust(117).encode() + b"\n")
        file.write(struct.pack("<17000f", *(draw.gauss(0, 1) for _ in range(17000))))
PYTHON
}

@test "--simple: a line that is broken fails the verification" {
  inexact_gradients
  verified pthread 4 --simple --density 0.1 --input "$WORK/g%r.npy"
  local all=(--simple --density 0.1 --input "$WORK/g%r.npy")
  broken topkA simple/topka.c 'for (size_t r = 0; r < ranks; r++)' 'for (size_t r = ranks; r-- > 0;)' "${all[@]}"
  says 'topkA, step [0-9]*: sum: element '
  broken topkA simple/topka.c 'simple_clear_entries(s->acc, s->offered, k, NULL, stream);' '' "${all[@]}"
  says 'topkA, step 0: residual: element '
  broken oktopk simple/oktopk.c 'simple_add_entries(s->sums, parts[i], (size_t)(parts[i + 1] - parts[i]), stream)' \
    'simple_add_entries(s->sums, parts[P - 1 - i], (size_t)(parts[P - i] - parts[P - 1 - i]), stream)' "${all[@]}"
  says 'oktopk, step [0-9]*: sum: element '
  broken oktopk simple/oktopk.c 'simple_clear_entries(s->acc, s->offered, offered, s->sums, stream);' '' "${all[@]}"
  says 'oktopk, step 0: residual: element '
  broken oktopk simple/oktopk.c 'if (s->last.repartitioned)' 'if (s->steps > 1)' "${all[@]}"
  says 'oktopk, step 0: '
  broken oktopk simple/oktopk.c 'adapted(threshold, count, &c->local_band, s->t)' 'threshold' "${all[@]}"
  says 'oktopk, step [0-9]*: local threshold is '
}

@test "--simple: with the gradients that the README names, no line of oktopk is passed over" {
  local line few many
  line=$(grep '^\./sparse_allreduce --simple ' "$TOP/04_sparse_allreduce/README.md")
  few=${line#./sparse_allreduce } few=${few%%#*}
  # shellcheck disable=SC2016 # backquotes of the page
  many=$(grep -o '`--gradient normal [^`]*`' "$TOP/04_sparse_allreduce/README.md" | tr -d '`')
  # shellcheck disable=SC2086 # options and their arguments
  {
    verified pthread 4 $few --steps 8
    broken oktopk simple/oktopk.c 'threshold / band->low_factor' 'threshold / (1.5 * band->low_factor)' $few --steps 8
    says 'oktopk, step [0-9]*: '
    broken oktopk simple/oktopk.c 'threshold * band->high_factor' 'threshold * (1.5 * band->high_factor)' $few --steps 8
    says 'oktopk, step [0-9]*: '
    broken oktopk simple/oktopk.c 'threshold *= c->raise_factor' 'threshold *= 1.1 * c->raise_factor' $few --steps 8
    says 'oktopk, step [0-9]*: '
    verified pthread 4 --simple $many --steps 3
    broken oktopk simple/oktopk.c 'simple_largest(s, s->acc, s->k, stream), stream);' \
      'simple_largest(s, s->acc, s->k / 2, stream), stream);' --simple $many --steps 3
    says 'oktopk, step [0-9]*: '
    broken oktopk simple/oktopk.c 'threshold = s->rule.above;' '' --simple $many --steps 3
    says 'oktopk, step [0-9]*: '
  }
}

@test "what leaves the residual is what the path says: the other answer fails the verification" {
  # exact sums of a dozen values, many of which are 0: what was offered is not in the result then
  local all=(--count 2003 --density 0.05 --gradient ties --steps 4)
  local exactly='entries(h, gradient, SPARSE_REMOVE_' above='select(h, gradient, SPARSE_REMOVE_'
  broken topkA lib/paths/topka.c "${exactly}OFFERED" "${exactly}IN_RESULT" "${all[@]}"
  says 'topkA, step [0-9]*: residual: '
  broken topkA2 lib/paths/topka.c REMOVE_IN_RESULT REMOVE_OFFERED "${all[@]}"
  says 'topkA2, step [0-9]*: residual: '
  broken topkAopt lib/paths/topka.c "${above}OFFERED" "${above}IN_RESULT" "${all[@]}"
  says 'topkAopt, step [0-9]*: residual: '
  broken topkSA lib/paths/sa.c "${exactly}OFFERED" "${exactly}IN_RESULT" "${all[@]}"
  says 'topkSA, step [0-9]*: residual: '
  broken gaussiankSA lib/paths/sa.c "${above}OFFERED" "${above}IN_RESULT" "${all[@]}"
  says 'gaussiankSA, step [0-9]*: residual: '
  broken gaussiank lib/paths/gaussiank.c REMOVE_OFFERED REMOVE_IN_RESULT "${all[@]}"
  says 'gaussiank, step [0-9]*: residual: '
  for path in gtopk oktopk; do
    broken $path lib/paths/$path.c REMOVE_IN_RESULT REMOVE_OFFERED "${all[@]}"
    says "^\\[rank [0-3]\\] $path, step [0-9]*: residual: "
  done
}

@test "what is offered, which sums are kept, which thresholds adapt: another line in the path fails the verification" {
  local all=(--count 2003 --density 0.05 --steps 9) entries='select_exact_entries' threshold='select_exact_threshold'
  # offered: exactly k, or what exceeds the k-th magnitude
  broken gtopk lib/paths/gtopk.c $entries $threshold "${all[@]}"
  broken topkSA lib/paths/sa.c $entries $threshold "${all[@]}"
  says '^\[rank [0-3]\] topkSA, step 0: '
  broken gaussiankSA lib/paths/sa.c ": $threshold" ': select_exact_entries' "${all[@]}"
  says '^\[rank [0-3]\] gaussiankSA, step 0: '
  for path in gaussiank gaussiankconcat; do
    broken $path lib/paths/gaussiank.c "select_gaussian(" "$threshold(" "${all[@]}"
    says "^\[rank [0-3]\] $path, step 0: "
  done
  broken topkAopt lib/paths/topka.c ': select_by_threshold' ': select_exact_threshold' "${all[@]}"
  says '^\[rank [0-3]\] topkAopt, step 1: ' # step 0 is exact
  broken topkA2 lib/paths/topka.c 'keep_largest(m, sparse_reduced(m)' 'keep_largest(m, sparse_offered(m)' "${all[@]}"
  # oktopk
  local path=lib/paths/oktopk.c
  broken oktopk $path 'h->now.exact_local ?' 'false ?' "${all[@]}"
  says '^\[rank [0-3]\] oktopk, step 0: '
  broken oktopk $path 'if (h->now.repartition)' 'if (0)' "${all[@]}"
  says '^\[rank [0-3]\] oktopk, step 0: '
  broken oktopk $path 'return ops_decide(m, SPARSE_GLOBAL_THRESHOLD, stream)' 'return ncclSuccess' "${all[@]}"
  says '^\[rank [0-3]\] oktopk, step [0-9]*: '
  broken oktopk $path SPARSE_ADAPT_BOTH SPARSE_ADAPT_LOCAL "${all[@]}"
  says 'oktopk, step [0-9]*: global threshold is '
  broken oktopk $path 'return ops_decide(m, SPARSE_ADAPT_BOTH, stream)' 'return ncclSuccess' "${all[@]}"
  says 'oktopk, step [0-9]*: local threshold is '
}

@test "oktopk one-sided: a line of its own file that is broken fails the verification" {
  [[ $LAUNCHERS = *mpi* ]] || skip "no MPI"
  local -x BROKEN_LAUNCHER=mpi
  local all=(--count 2003 --density 0.05 --steps 9)
  local path=lib/onesided/oktopk.c
  broken oktopk $path 'ops_pass_and_send(m, gradient, SPARSE_REMOVE_IN_RESULT' 'ops_pass_and_send(m, gradient, SPARSE_REMOVE_OFFERED' \
    "${all[@]}"
  says 'oktopk, step [0-9]*: residual: '
  broken oktopk $path 'select(h, gradient, SPARSE_REMOVE_IN_RESULT' 'select(h, gradient, SPARSE_REMOVE_OFFERED' "${all[@]}"
  says 'oktopk, step 0: residual: '
  broken oktopk $path ': SPARSE_COUNT_ADAPT_BOTH' ': SPARSE_COUNT_ADAPT_LOCAL' "${all[@]}"
  says 'oktopk, step 1: '
  broken oktopk $path 'exact ? SPARSE_COUNT_ADAPT_LOCAL :' 'exact ? SPARSE_THEN_NOTHING :' "${all[@]}"
  broken oktopk $path 'h->now.exact_local ?' 'false ?' "${all[@]}"
  says 'oktopk, step 0: '
}

# ---- options ---------------------------------------------------------------------------------------

@test "--help names every option; sweep options of other examples are unknown" {
  sparse pthread - --help
  exits_with 0
  for option in algorithm count density steps preset gradient seed throttle warmup-steps balance nonfinite \
    gtopk-exact-residual gk-threshold exchange result simple verify restart-after input output residual bench digest timeout; do
    prints " --$option( |$)"
  done
  prints '-J, --table FILE'
  prints_not 'minbytes|repetitions'
  refused "option '-b' is unknown" -b 4
}

@test "bad values and conflicts: one line, exit code 2" {
  refused "--algorithm: unknown 'topk'; allowed: all, dense, topkA, topkA2, .*, gaussiankSA$" --algorithm topkA,topk
  refused "--algorithm: unknown ''; allowed" --algorithm topkA,
  for names in topkA,all all,dense; do
    refused "--algorithm: 'all' beside other names; allowed: all alone, or names of paths" --algorithm $names
  done
  refused "--density: 0 is out of range; allowed: 1e-300 to 1" --density 0
  refused "--density: 1.5 is out of range" --density 1.5
  refused "--density: 1e-322 is out of range; allowed: 1e-300 to 1" --density 1e-322
  refused "--density: 'x' is not a number" --density x
  refused "--count: 0 is out of range; allowed: 1 to" --count 0
  refused "--count: 4294967295 is out of range" --count 4294967295
  refused "gaussiankSA with 199 elements, density 0.01: count . density must be 2 or more where " --count 199
  refused "gaussiank with 1 elements, density 1: count must be 2 or more where " --count 1 --density 1
  refused "gaussiankSA with 199 elements, density 0.01: " --bench --count 199
  refused "--steps: 0 is out of range" --steps 0
  refused "--throttle: 0 is out of range" --throttle 0
  for choice in preset gradient balance nonfinite gk-threshold exchange result verify; do
    refused "--$choice: unknown 'x'; allowed: [a-z|-]+" --$choice x
  done
  refused "--datatype: unknown type 'double'; allowed: float half bfloat16" -d double
  refused "--restart-after 5: there are 5 steps; allowed: fewer" "${SMALL[@]}" --restart-after 5
  refused "--table: 'x.txt' has a wrong ending; allowed: .json and .csv" -J x.txt
  refused "--warmup-steps is not for --bench" --bench --warmup-steps 2
  refused "--verify is not for --bench" --bench --verify off
  refused "--restart-after is not for --bench" --bench --restart-after 2
  refused "--output is not for --bench" --bench --output 'x%r.npy'
  refused "--digest is not for --bench" --bench --digest
  for option in "--count 5" "--steps 5" "--gradient ties" "--seed 5"; do
    # shellcheck disable=SC2086 # an option and its argument
    refused "--input and ${option% *} together; allowed: one of them" --input 'x%r.npy' $option
  done
  refused "--input with --datatype half; allowed: float" --input 'x%r.npy' -d half
  refused "--output with 10 paths; allowed: one, by --algorithm" --output 'x%r.npy'
  refused "--residual with 2 paths; allowed: one" --residual 'x%r.npy' --algorithm topkA,dense
  for option in input output residual; do
    refused "--$option: 'x.npy' is one file for 2 ranks; allowed: a name with %r" --$option x.npy --algorithm topkA
  done
  refused "--output and --residual are the same file" --output 'x%r' --residual 'x%r' --algorithm topkA
  refused "--output is the file of --input" --output 'x%r' --input 'x%r' --algorithm topkA
  refused "--residual is the file of --input" --residual 'x%r' --input 'x%r' --algorithm topkA
}

@test "a size that does not fit: exit code 2 before a communicator" {
  CPU_STANDIN_MEMORY=$((64 << 20)) refused "rank 0 needs 64..* MiB of device memory; allowed: up to" --count 1000
  CPU_STANDIN_MEMORY=$((128 << 20)) refused "rank 0 needs .* MiB of device memory" --bench --count 8M
}

# ---- verification ----------------------------------------------------------------------------------

@test "a corrupt element on rank 2 of 4: exit code 1, rank, path, step and element are named" {
  for launcher in $LAUNCHERS; do
    FAULT=corrupt:ncclAllReduce:5:2 sparse "$launcher" 4 "${SMALL[@]}" --algorithm dense
    exits_with 1
    one_line '^\[rank 2\] dense, step [0-9]: result: element 2999 is .*, expected '
    prints '^dense .* NO: step [0-9]$'
    prints '^Results are WRONG, see standard error$'
    prints_not 'verified correctly'
  done
}

# corrupted PATH CALL: rank 2 of 4 gets a wrong value
corrupted() {
  FAULT=corrupt:$2 sparse pthread 4 --count 3000 --steps 3 --algorithm "$1" --exchange sendrecv
  exits_with 1
  says "^\[rank [0-3]\] $1, step 0: "
  prints "^$1 .* NO: step 0$"
}

@test "a corrupt message to rank 2 of 4: no path says that it is verified" {
  corrupted topkA ncclAllGather:1:2:1
  corrupted topkA2 ncclAllGather:1:2:1
  corrupted topkAopt ncclRecv:1:2:1
  corrupted gtopk ncclRecv:1:2:1
  corrupted gtopk ncclBroadcast:1:2:1
  corrupted oktopk ncclRecv:1:2:0
  corrupted topkSA ncclRecv:1:2:1
  corrupted gaussiank ncclRecv:4:2:1 # behind three of indices
  corrupted gaussiankconcat ncclRecv:1:2:1
  corrupted gaussiankSA ncclRecv:1:2:1
}
