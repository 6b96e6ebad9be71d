# SPDX-License-Identifier: Apache-2.0
# 04_sparse_allreduce: what a user sees, its options, its files, and that verification verifies.
load helper

# shellcheck disable=SC2034 # for setup_file
EXAMPLES="04_sparse_allreduce"
SMALL=(--count 3000 --steps 5)

sparse() { start "$1" "$2" 04_sparse_allreduce "${@:3}"; } # sparse LAUNCHER RANKS [OPTIONS]

verified() {
  sparse "$@"
  exits_with 0
  prints '^All paths verified correctly$'
}

refused() { # refused PATTERN-OF-THE-LINE [OPTIONS]: on two ranks
  sparse pthread 2 "${@:2}"
  exits_with 2
  one_line "^sparse_allreduce: $1"
  prints_nothing
}

digest() { # digest LAUNCHER RANKS [OPTIONS]: adds the line to $WORK/digests
  verified "$@" --digest
  grep '^Digest: [0-9a-f]\{16\}$' "$WORK/out" >>"$WORK/digests"
}

one_digest() {
  cat "$WORK/digests"
  [ "$(sort -u "$WORK/digests" | wc -l)" = 1 ]
  rm "$WORK/digests"
}

masked() { "$TOP/tests/golden.sh" --mask 04_sparse_allreduce <"$WORK/out"; }

# ---- output ----------------------------------------------------------------------------------------

@test "golden output: without options, and on 1, 2, 3 and 7 ranks, both launchers" {
  diff "$TOP/tests/golden/04_sparse_allreduce.4" <("$TOP/tests/golden.sh" 04_sparse_allreduce 4)
  sparse pthread -
  exits_with 0
  diff "$TOP/tests/golden/04_sparse_allreduce.4" <(masked) || show
  says_not '^[^n]|^n[^o]' # notes only
  for launcher in $LAUNCHERS; do
    for ranks in 1 2 3 4 7; do
      verified "$launcher" $ranks --count 2000
      diff <("$TOP/tests/golden.sh" 04_sparse_allreduce $ranks) <(masked) || show
    done
  done
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
}

@test "sizes: one element, fewer than ranks, all of them, a thousand steps" {
  for count in 1 2 3 4 15 4096 4097; do verified pthread 4 --count $count --steps 3; done
  for density in 1e-9 1; do verified pthread 3 --count 1000 --steps 3 --density $density; done
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
  [ -z "$(find "$WORK" -name '*.tmp')" ]
  refused "cannot write $WORK/no/table.csv: No such file" "${SMALL[@]}" -J "$WORK/no/table.csv"
  refused "cannot write $WORK/no/table.csv: No such file" --bench -J "$WORK/no/table.csv"
  mkdir "$WORK/folder.csv"
  refused "cannot write $WORK/folder.csv: Is a directory" "${SMALL[@]}" -J "$WORK/folder.csv"
}

@test "--bench: rows for every size and density, verified, as files too" {
  sparse pthread 3 --bench --steps 4 -J "$WORK/bench.csv"
  exits_with 0
  prints '^# 16384 elements, density 0.01; dense us:'
  prints '^# 65536 elements, density 0.02; dense us:'
  prints '^# as fast as dense at density'
  [ "$(grep -c '^oktopk ' "$WORK/out")" = 4 ]
  [ "$(awk -F, '{ print NF }' "$WORK/bench.csv" | sort -u | wc -l)" = 1 ]
  [ "$(wc -l <"$WORK/bench.csv")" = $((1 + 4 * 12)) ]
  sparse "${LAUNCHERS##* }" 2 --bench --count 5000 --density 0.1 --algorithm topkSA --steps 2 -d half -J "$WORK/bench.json"
  exits_with 0
  python3 -c "import json; d = json.load(open('$WORK/bench.json')); assert [r['path'] for r in d] == ['plain allreduce', 'symmetric allreduce', 'topkSA'], d"
}

@test "--bench -G 1: steps as graphs, but for the path whose host takes part; -G without --bench is refused" {
  sparse pthread 2 --bench -G 1 --count 5000 --density 0.1 --algorithm oktopk,topkSA --steps 4 -J "$WORK/bench.json"
  exits_with 0
  prints ', in CUDA graphs$'
  python3 -c "import json; d = json.load(open('$WORK/bench.json')); assert [r['path'] for r in d][2:] == ['oktopk', 'topkSA'] and all(r['wrong'] == 0 for r in d), d"
  sparse pthread 2 -G 1
  exits_with 2
  says '^sparse_allreduce: -G is for --bench; allowed: --bench -G 1$'
}

@test "--bench: a wrong dense baseline is said, and marked in its own row" {
  FAULT=corrupt:ncclAllReduce:1:1 sparse pthread 2 --bench --count 5000 --density 0.1 --algorithm topkA --steps 2 -J "$WORK/bench.json"
  exits_with 1
  says '^\[rank [01]\] ncclAllReduce: '
  prints ' steps a cycle; WRONG$'
  python3 -c "import json; d = json.load(open('$WORK/bench.json')); assert [r['wrong'] for r in d] == [1, 0, 0] and d[0]['us'] is None, d"
}

# ---- options ---------------------------------------------------------------------------------------

@test "--help names every option; sweep options of other examples are unknown" {
  sparse pthread - --help
  exits_with 0
  for option in algorithm count density steps preset gradient seed throttle warmup-steps balance nonfinite \
    gtopk-exact-residual gk-threshold exchange verify restart-after input output residual bench digest timeout; do
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
  refused "--density: 0 is out of range; allowed: more than 0, up to 1" --density 0
  refused "--density: 1.5 is out of range" --density 1.5
  refused "--density: 'x' is not a number" --density x
  refused "--count: 0 is out of range; allowed: 1 to" --count 0
  refused "--count: 4294967295 is out of range" --count 4294967295
  refused "--steps: 0 is out of range" --steps 0
  refused "--throttle: 0 is out of range" --throttle 0
  for choice in preset gradient balance nonfinite gk-threshold exchange verify; do
    refused "--$choice: unknown 'x'; allowed: [a-z|-]+" --$choice x
  done
  refused "--datatype: unknown type 'double'; allowed: float half bfloat16" -d double
  refused "--restart-after 5: there are 5 steps; allowed: fewer" "${SMALL[@]}" --restart-after 5
  refused "-J: 'x.txt' has a wrong ending; allowed: .json and .csv" -J x.txt
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

@test "files that are the same under different names: exit code 2, and nothing is overwritten" {
  local one
  cd "$WORK"
  verified pthread 2 --count 100 --steps 3 --algorithm topkA --output 'g_%r.npy'
  cp g_0.npy good_0.npy && cp g_1.npy good_1.npy
  refused "--output is the file of --input: ./g_0.npy and g_0.npy" --input 'g_%r.npy' --output './g_%r.npy' --algorithm topkA
  refused "--residual is the file of --input" --input 'g_%r.npy' --residual "$WORK/g_%r.npy" --algorithm topkA
  refused "--output and --residual are the same file" --output 'q_%r.npy' --residual './q_%r.npy' --algorithm topkA
  ln -s . again && ln -s g_1.npy link_1.npy && cp g_0.npy link_0.npy
  refused "--output is the file of --input" --input 'g_%r.npy' --output 'again/g_%r.npy' --algorithm topkA
  refused "--output is the file of --input" --input 'link_%r.npy' --output 'g_%r.npy' --algorithm topkA
  mkdir d0 && ln -s d0 d1
  refused "--output: ranks 0 and 1 have the same file, d0/x.npy; allowed: one each" --output 'd%r/x.npy' --algorithm topkA
  for one in "--input a_%r.npy --output a_0.npy" "--output q.npy --residual ./q.npy"; do
    # shellcheck disable=SC2086 # options
    sparse pthread 1 $one --algorithm topkA
    exits_with 2
    one_line '^sparse_allreduce: --output (is the file of --input|and --residual are the same file)'
  done
  cmp g_0.npy good_0.npy && cmp g_1.npy good_1.npy
  [ -z "$(find . -name 'q*' -o -name '*.tmp' -o -name 'x.npy')" ]
}

@test "a size that does not fit: exit code 2 before a communicator" {
  CPU_STANDIN_MEMORY=$((64 << 20)) refused "rank 0 needs 64..* MiB of device memory; allowed: up to" --count 1000
  CPU_STANDIN_MEMORY=$((128 << 20)) refused "rank 0 needs .* MiB of device memory" --bench --count 8M
}

# ---- files -----------------------------------------------------------------------------------------

@test "--input, --output, --residual: what goes out can come in, and is right" {
  local out=$WORK/avg_%r.npy
  for launcher in $LAUNCHERS; do
    verified "$launcher" 3 --count 500 --steps 4 --algorithm oktopk --output "$out" --residual "$WORK/res_%r.npy"
    cmp "$WORK/avg_0.npy" "$WORK/avg_2.npy"
    ! cmp -s "$WORK/res_0.npy" "$WORK/res_1.npy"
    [ "$(stat -c %s "$WORK/avg_1.npy")" = $((128 + 4 * 4 * 500)) ]
    [ "$(stat -c %s "$WORK/res_1.npy")" = $((128 + 4 * 500)) ]
    verified "$launcher" 3 --input "$out" --algorithm gaussiankconcat,topkSA # all ranks' files
    prints "^Gradient: 500 elements of type float, .*avg_%r.npy, 4 steps; "
    [ -z "$(find "$WORK" -name '*.tmp')" ]
  done
  # everything chosen on one rank: the average is the gradient
  verified pthread 1 --input "$WORK/res_1.npy" --algorithm topkA --density 1 --output "$WORK/same.npy"
  prints ' 1 steps x 1 ranks'
  cmp "$WORK/res_1.npy" "$WORK/same.npy"
  # nothing lost: the average of two equal gradients is what was sent, the rest is kept
  cp "$WORK/res_1.npy" "$WORK/g_0.npy"
  cp "$WORK/res_1.npy" "$WORK/g_1.npy"
  verified pthread 2 --input "$WORK/g_%r.npy" --algorithm topkA --density 0.1 --output "$out" --residual "$WORK/res_%r.npy"
  python3 - "$WORK" <<'PYTHON'
import struct, sys
read = lambda name: struct.unpack("<500f", open(sys.argv[1] + "/" + name, "rb").read()[-2000:])
g, sent, kept = read("g_0.npy"), read("avg_1.npy"), read("res_1.npy")
assert all(a + b == c for a, b, c in zip(sent, kept, g)) and sum(a != 0 for a in sent) == 50
PYTHON
}

@test "files written by numpy are read, files written here are read by numpy" {
  python3 -c 'import numpy' 2>/dev/null || skip "no numpy"
  python3 - "$WORK" <<'PYTHON'
import numpy, sys
for rank in range(2):
    numpy.save(sys.argv[1] + "/in_%d.npy" % rank, numpy.random.default_rng(rank).normal(size=(3, 1000)).astype("f4"))
PYTHON
  verified pthread 2 --input "$WORK/in_%r.npy" --algorithm dense --output "$WORK/out_%r.npy"
  python3 - "$WORK" <<'PYTHON'
import numpy, sys
load = lambda name: numpy.load(sys.argv[1] + "/" + name)
assert numpy.allclose((load("in_0.npy") + load("in_1.npy")) / 2, load("out_0.npy"), atol=1e-6)
PYTHON
}

malformed() { # malformed PATTERN: $WORK/bad_1.npy is refused on rank 1, and nothing is written
  refused "$WORK/bad_1.npy: $1" --input "$WORK/bad_%r.npy" --algorithm topkA --output "$WORK/never_%r.npy"
  [ -z "$(find "$WORK" -name 'never*')" ]
  cp "$WORK/bad_0.npy" "$WORK/bad_1.npy"
}

@test "malformed input: one line that says what is wrong and what is allowed" {
  local bad=$WORK/bad_1.npy
  verified pthread 2 --count 100 --steps 3 --algorithm topkA --output "$WORK/bad_%r.npy"
  truncate -s -1 "$bad"
  malformed 'truncated: 1199 bytes of data, the shape says 1200; allowed: a float32 array of shape \[n\] or \[steps, n\]'
  truncate -s 50 "$bad"
  malformed 'truncated within the header; allowed'
  : >"$bad"
  malformed 'not a .npy file; allowed'
  echo >>"$bad"
  malformed '1201 bytes of data, but the shape says 1200; allowed'
  sed -i 's/<f4/<f8/' "$bad"
  malformed "elements are <f8, not float32 \('<f4'\); allowed"
  sed -i 's/<f4/>f4/' "$bad"
  malformed 'elements are >f4, not float32'
  sed -i 's/False/True /' "$bad"
  malformed 'the array is in Fortran order; allowed'
  sed -i 's/(3, 100)/(1,3,10)/' "$bad"
  malformed 'the array has 3 dimensions; allowed'
  sed -i 's/(3, 100)/()      /' "$bad"
  malformed 'the array has 0 dimensions; allowed'
  sed -i 's/shape/shake/' "$bad"
  malformed 'the header is not one of a .npy file; allowed'
  sed -i 's/NUMPY/NUMPX/' "$bad"
  malformed 'not a .npy file; allowed'
  rm "$bad"
  refused "cannot read $bad: No such file or directory" --input "$WORK/bad_%r.npy"
  mkdir "$bad"
  refused "$bad: not a file; allowed" --input "$WORK/bad_%r.npy"
  rmdir "$bad"
  mkfifo "$bad" # which nobody writes to
  refused "$bad: not a file; allowed" --input "$WORK/bad_%r.npy"
}

@test "shapes that differ between ranks: exit code 2" {
  verified pthread 1 --count 100 --steps 3 --algorithm topkA --output "$WORK/g_0.npy"
  for launcher in $LAUNCHERS; do
    start "$launcher" 1 04_sparse_allreduce --count 101 --steps 3 --algorithm topkA --output "$WORK/g_1.npy"
    start "$launcher" 2 04_sparse_allreduce --input "$WORK/g_%r.npy"
    exits_with 2
    one_line "^sparse_allreduce: $WORK/g_1.npy: the shape \[3, 101\] differs from rank 0's \[3, 100\]; allowed: the same shape on all ranks"
  done
  # [100] is not [1, 100]
  verified pthread 1 --count 100 --steps 1 --algorithm topkA --output "$WORK/g_0.npy" --residual "$WORK/g_1.npy"
  refused "$WORK/g_1.npy: the shape \[100\] differs from rank 0's \[1, 100\]; allowed" --input "$WORK/g_%r.npy"
}

@test "output that cannot be written: exit code 2 at once" {
  refused "cannot write $WORK/no/x_0.npy: No such file" --algorithm topkA --output "$WORK/no/x_%r.npy"
  mkdir "$WORK/x_1.npy"
  refused "cannot write $WORK/x_1.npy: it is not a file" --algorithm topkA --residual "$WORK/x_%r.npy"
  [ ! -e "$WORK/x_0.npy" ]
}

@test "a run that fails leaves no output, and an old one as it was" {
  echo old >"$WORK/avg_0.npy"
  FAULT=fail:ncclAllGather:4:1 sparse pthread 2 "${SMALL[@]}" --algorithm topkA --output "$WORK/avg_%r.npy"
  exits_with 3
  [ "$(cat "$WORK/avg_0.npy")" = old ] && [ "$(find "$WORK" -name 'avg*' | wc -l)" = 1 ]
}

@test "a rank whose file gets no name: exit code 3, and no rank leaves one" {
  FAULT=fail:rename:2:1 sparse pthread 2 "${SMALL[@]}" --algorithm topkA --output "$WORK/avg_%r.npy" --residual "$WORK/res_%r.npy"
  exits_with 3
  one_line "^\[rank 1\] cannot write $WORK/res_1.npy: Input/output error"
  prints '^Stopped, see standard error$'
  [ -z "$(find "$WORK" -name '*.npy*')" ]
}

@test "a full disk: the row says where it stopped, not that a step is wrong" {
  # a thread has no rank yet when it writes the header: the fourth is step 3
  FAULT=fail:fwrite:4:1 sparse pthread 2 "${SMALL[@]}" --algorithm topkA --output "$WORK/avg_%r.npy"
  exits_with 3
  one_line "^\[rank 1\] cannot write $WORK/avg_1.npy: No space left on device"
  prints '^topkA .* stopped at step 3$'
  prints_not 'NO:'
  [ -z "$(find "$WORK" -name 'avg*')" ]
}

@test "gradients that are not finite: error, drop, propagate" {
  local i
  verified pthread 1 --count 100 --steps 3 --algorithm dense --output "$WORK/g_0.npy"
  cp "$WORK/g_0.npy" "$WORK/g_1.npy"
  for i in '\x00\x00\xc0\x7f' '\x00\x00\x80\x7f' '\x00\x00\x80\xff'; do
    # shellcheck disable=SC2059 # that is the format
    printf "$i" | dd of="$WORK/g_1.npy" bs=1 seek=$((128 + 4 * 150)) conv=notrunc status=none # step 1, element 50
    for launcher in $LAUNCHERS; do
      sparse "$launcher" 2 --input "$WORK/g_%r.npy" --algorithm oktopk,gtopk
      exits_with 1
      says '^\[rank 0\] gtopk, step 1: the gradient of some rank is not finite; allowed: finite ones, or --nonfinite drop or propagate'
      says '^\[rank 0\] oktopk, step 1: the gradient of some rank is not finite'
      [ "$(grep -c 'NO: step 1$' "$WORK/out")" = 2 ]
      prints '^Results are WRONG'
    done
    verified pthread 2 --input "$WORK/g_%r.npy" --nonfinite drop
    verified pthread 2 --input "$WORK/g_%r.npy" --nonfinite propagate
  done
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

# ---- the reusable part -----------------------------------------------------------------------------

@test "sparse_allreduce.h stands alone: C++ takes it, usage.c compiles with it and runs" {
  [[ $LAUNCHERS = *mpi* ]] || skip "no MPI"
  local folder=$TOP/04_sparse_allreduce include=(-isystem "$TOP/common/cpu/include" -I"$TOP/common/cpu")
  echo '#include "sparse_allreduce.h"' | g++ -Wall -Wextra -Werror -fsyntax-only -x c++ "${include[@]}" -I"$folder" -
  # not in a path with a blank, for the loader
  mkdir "$FAULT_FOLDER/sparse_usage"
  cp "$folder/usage.c" "$folder"/sparse_*.[ch] "$folder"/path_*.c "$folder"/{select,exchange,ops_cpu}.c \
    "$folder"/{control,control_decide,ops}.h "$TOP"/03_alltoallv_sm/alltoallv*.[ch] \
    "$folder/build/cpu-mpi/libcpu_standin.so" "$FAULT_FOLDER/sparse_usage"
  cd "$FAULT_FOLDER/sparse_usage"
  "$(mpicc_command)" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Wpedantic -Werror -DCPU_STANDIN "${include[@]}" \
    ./*.c -o usage -L. -lcpu_standin -Wl,-rpath,"$PWD" -lm
  mpi_job 3 ./usage >"$WORK/out" 2>"$WORK/err"
  [ "$(sort "$WORK/out")" = "$(for rank in 0 1 2; do
    echo "rank $rank offered 100 of 10000 elements, the result has 100, the last is 20000"
  done)" ]
}

# ---- the library, without the program --------------------------------------------------------------

@test "random jobs: every step of every path is that of the reference, both launchers" {
  local switches
  for launcher in $LAUNCHERS; do
    switches=(CPU=1) && [ "$launcher" = pthread ] || switches+=(MPI=1)
    make -s -C "$TOP/tests/gpu/sparse_steps" "${switches[@]}"
    for ranks in 1 2 3 4 7; do
      steps=(--cases 250 --seed "${ranks}000" -T 60)
      if [ "$launcher" = mpi ]; then
        mpi_job $ranks "$TOP/tests/gpu/sparse_steps/build/cpu-mpi/sparse_steps" "${steps[@]}" >"$WORK/out" 2>"$WORK/err"
      else
        NTHREADS=$ranks "$TOP/tests/gpu/sparse_steps/build/cpu-pthread/sparse_steps" "${steps[@]}" >"$WORK/out" 2>"$WORK/err"
      fi
      grep -qx '250 jobs verified' "$WORK/out"
    done
  done
}

@test "long jobs: a hundred steps of oktopk on all kinds of gradients, replayed as graphs" {
  make -s -C "$TOP/tests/gpu/sparse_steps" CPU=1 MPI=1
  mpi_job 3 "$TOP/tests/gpu/sparse_steps/build/cpu-mpi/sparse_steps" --cases 6 --steps 100 --verbose >"$WORK/out" 2>"$WORK/err"
  grep -qx '6 jobs verified' "$WORK/out"
  [ "$(grep -c 'one-sided, graphs$' "$WORK/out")" = 6 ]
}

@test "a rank that is too late for a one-sided step: all ranks hear of it, nobody hangs" {
  for launcher in $LAUNCHERS; do
    switches=(CPU=1) && [ "$launcher" = pthread ] || switches+=(MPI=1)
    make -s -C "$TOP/tests/gpu/sparse_steps" "${switches[@]}"
    for ranks in 2 3; do
      if [ "$launcher" = mpi ]; then
        mpi_job $ranks "$TOP/tests/gpu/sparse_steps/build/cpu-mpi/sparse_steps" --late -T 30 >"$WORK/out" 2>"$WORK/err"
      else
        NTHREADS=$ranks "$TOP/tests/gpu/sparse_steps/build/cpu-pthread/sparse_steps" --late -T 30 >"$WORK/out" 2>"$WORK/err"
      fi
      grep -qx 'a rank that is late for a step is reported by all' "$WORK/out"
      grep -qx 'a rank that is late for an exact step is reported by all' "$WORK/out"
    done
  done
}

# With several GPUs in one process, loading a kernel at its first launch waits for kernels that wait for
# ranks which have not launched theirs yet.
@test "operators: every kernel is loaded when a handle is made" {
  cd "$TOP/04_sparse_allreduce"
  for file in ops_*.cu; do
    loaded=$(sed -n '/ops_load_kernels(/,/;/p' "$file" | tr -cs '[:alnum:]_' ' ')
    for kernel in $(tr '\n' ' ' <"$file" | grep -oP '__global__ void (?:[\w]+\((?:[^()]|\([^()]*\))*\)\s+)?\K\w+(?=\()'); do
      [[ " $loaded " = *" $kernel "* ]] || { echo "$file: $kernel is not loaded" && false; }
      kernels=$((${kernels:-0} + 1))
    done
  done
  [ "$kernels" -ge 18 ] # all were looked at
}

@test "operators: the twins do what ops.h says" {
  make -s -C "$TOP/tests/gpu/sparse" CPU=1
  NTHREADS=1 "$TOP/tests/gpu/sparse/build/cpu-pthread/sparse_cases" --quick >"$WORK/out" 2>"$WORK/err"
  [ "$(grep -c "^ok" "$WORK/out")" = "$(wc -l <"$WORK/out")" ] && [ -s "$WORK/out" ]
}
