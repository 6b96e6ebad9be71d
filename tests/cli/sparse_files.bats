# SPDX-License-Identifier: Apache-2.0
# 04_sparse_allreduce: --input, --results, --residual, good, malformed and impossible.
load helper
export EXAMPLES="04_sparse_allreduce"

refused() { # refused PATTERN-OF-THE-LINE [OPTIONS]: on two ranks
  sparse pthread 2 "${@:2}"
  exits_with 2
  one_line "^sparse_allreduce: $1"
  prints_nothing
}

@test "--input, --results, --residual: what goes out can come in, and is right" {
  local out=$WORK/avg_%r.npy
  for launcher in $LAUNCHERS; do
    verified "$launcher" 3 --count 500 --steps 4 --algorithm oktopk --results "$out" --residual "$WORK/res_%r.npy"
    cmp "$WORK/avg_0.npy" "$WORK/avg_2.npy"
    if cmp -s "$WORK/res_0.npy" "$WORK/res_1.npy"; then false; fi
    [ "$(stat -c %s "$WORK/avg_1.npy")" = $((128 + 4 * 4 * 500)) ]
    [ "$(stat -c %s "$WORK/res_1.npy")" = $((128 + 4 * 500)) ]
    cp "$WORK/res_1.npy" "$WORK/kept.npy"
    verified "$launcher" 3 --count 500 --steps 4 --algorithm oktopk --result entries --residual "$WORK/res_%r.npy"
    cmp "$WORK/res_1.npy" "$WORK/kept.npy"
    verified "$launcher" 3 --input "$out" --algorithm gaussiankconcat,topkSA # all ranks' files
    prints "^Gradient: 500 elements of type float, .*avg_%r.npy, 4 steps; "
    [ -z "$(find "$WORK" -name '*.tmp')" ]
  done
  # everything chosen on one rank: the average is the gradient
  verified pthread 1 --input "$WORK/res_1.npy" --algorithm topkA --density 1 --results "$WORK/same.npy"
  prints ' 1 step x 1 rank'
  cmp "$WORK/res_1.npy" "$WORK/same.npy"
  # nothing lost: the averages of equal gradients, here of integers, are what was sent; the rest is kept, from step to step
  python3 - "$WORK" <<'PYTHON'
import random, struct, sys
header = "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 500), }".ljust(117) + "\n"
random.seed(1)
data = struct.pack("<2000f", *(random.randrange(-9999, 9999) for _ in range(2000)))
for rank in "01":
    open(f"{sys.argv[1]}/g_{rank}.npy", "wb").write(b"\x93NUMPY\1\0" + struct.pack("<H", 118) + header.encode() + data)
PYTHON
  verified pthread 2 --input "$WORK/g_%r.npy" --algorithm topkA --density 0.1 --results "$out" --residual "$WORK/res_%r.npy"
  python3 - "$WORK" <<'PYTHON'
import struct, sys
read = lambda name, n: struct.unpack(f"<{n}f", open(f"{sys.argv[1]}/{name}.npy", "rb").read()[-4 * n:])
g, sent, kept = read("g_0", 2000), read("avg_1", 2000), read("res_1", 500)
for i in range(500):
    assert sum(g[i::500]) == sum(sent[i::500]) + kept[i], i
assert sum(a != 0 for a in sent) == 4 * 50
PYTHON
}

malformed() { # malformed PATTERN: $WORK/bad_1.npy is refused on rank 1, and nothing is written
  refused "$WORK/bad_1.npy: $1" --input "$WORK/bad_%r.npy" --algorithm topkA --results "$WORK/never_%r.npy"
  [ -z "$(find "$WORK" -name 'never*')" ]
  cp "$WORK/bad_0.npy" "$WORK/bad_1.npy"
}

@test "malformed input: one line that says what is wrong and what is allowed" {
  local bad=$WORK/bad_1.npy
  verified pthread 2 --count 100 --steps 3 --algorithm topkA --results "$WORK/bad_%r.npy"
  truncate -s +1 "$bad"
  malformed '1201 bytes of data do not fit the shape \(3, 100\); allowed: a float32 array of shape \[n\] or \[steps, n\]'
  truncate -s 50 "$bad"
  malformed 'the header is too long or truncated; allowed'
  : >"$bad"
  malformed 'this is not a .npy file; allowed'
  sed -i 's/<f4/<f8/' "$bad"
  malformed "the header is \{'descr': '<f8', 'fortran_order': False, 'shape': \(3, 100\), \}; allowed"
  sed -i 's/False/True /' "$bad"
  malformed "the header is .*'fortran_order': True , .*; allowed"
  sed -i 's/(3, 100)/(1,3,10)/' "$bad"
  malformed "the header is .*'shape': \(1,3,10\), \}; allowed"
  sed -i 's/(3, 100)/(3, 101)/' "$bad"
  malformed '1200 bytes of data do not fit the shape \(3, 101\); allowed'
  rm "$bad"
  mkfifo "$bad" # which nobody writes to
  refused "$bad: this is not a regular file; allowed" --input "$WORK/bad_%r.npy"
}

@test "shapes that differ between ranks: exit code 2" {
  verified pthread 1 --count 100 --steps 3 --algorithm topkA --results "$WORK/g_0.npy"
  for launcher in $LAUNCHERS; do
    start "$launcher" 1 04_sparse_allreduce --count 101 --steps 3 --algorithm topkA --results "$WORK/g_1.npy"
    start "$launcher" 2 04_sparse_allreduce --input "$WORK/g_%r.npy"
    exits_with 2
    one_line "^sparse_allreduce: $WORK/g_1.npy: the shape \(3, 101\) differs from rank 0's \(3, 100\); allowed: the same shape on all ranks"
  done
}

@test "a run that fails leaves no output, and an old one as it was" {
  echo old >"$WORK/avg_0.npy"
  FAULT=fail:ncclAllGather:4:1 sparse pthread 2 "${SMALL[@]}" --algorithm topkA --results "$WORK/avg_%r.npy"
  exits_with 3
  [ "$(cat "$WORK/avg_0.npy")" = old ]
}

@test "whatever copy to the host is wrong, no file is: what is written was compared" {
  local copy good=0 caught=0
  local run=(--count 300 --steps 1 --algorithm topkA --results "$WORK/avg_%r.npy" --residual "$WORK/res_%r.npy")
  verified pthread 2 "${run[@]}"
  mkdir "$WORK/good" && mv "$WORK"/*.npy "$WORK/good"
  for copy in cudaMemcpyAsync:{1..8} cudaMemcpy:{1..14}; do
    FAULT=corrupt:$copy:1 sparse pthread 2 "${run[@]}"
    # shellcheck disable=SC2154 # set by start
    if [ "$code" = 0 ]; then
      good=$((good + 1))
      for name in avg_0 avg_1 res_0 res_1; do cmp "$WORK/$name.npy" "$WORK/good/$name.npy"; done
    else
      caught=$((caught + 1))
      [ -z "$(find "$WORK" -maxdepth 1 -name '*.npy')" ]
    fi
    rm -f "$WORK"/*.npy
  done
  echo "$good times harmless, $caught times caught"
  [ $caught -ge 5 ] # what is compared, and what goes to the files
  # without files too: one of the copies is the residual's, one that of the entries
  for copy in cudaMemcpy:{8..20}; do
    FAULT=corrupt:$copy:1 sparse pthread 2 --count 300 --steps 1 --algorithm topkA
    cat "$WORK/err" >>"$WORK/all"
  done
  grep '^\[rank 1\] topkA, step 0: residual: element ' "$WORK/all"
  grep '^\[rank 1\] topkA, step 0: sum: element ' "$WORK/all"
}

@test "gradients that are not finite: error, drop" {
  local i
  verified pthread 1 --count 100 --steps 3 --algorithm dense --results "$WORK/g_0.npy"
  cp "$WORK/g_0.npy" "$WORK/g_1.npy"
  for i in '\x00\x00\xc0\x7f' '\x00\x00\x80\xff'; do
    # shellcheck disable=SC2059 # that is the format
    printf "$i" | dd of="$WORK/g_1.npy" bs=1 seek=$((128 + 4 * 150)) conv=notrunc status=none # step 1, element 50
    for launcher in $LAUNCHERS; do
      sparse "$launcher" 2 --input "$WORK/g_%r.npy" --algorithm oktopk,gtopk
      exits_with 1
      says "^\[rank 1\] .*oktopk, step 1: .*element 50 .*not finite; allowed: finite elements, or --nonfinite drop" ||
        says "^\[rank 0\] .*oktopk, step 1: .*element 50 .*not finite; allowed: finite elements, or --nonfinite drop"
      [ "$(grep -c 'NO: step 1$' "$WORK/out")" = 2 ]
      prints '^Results are WRONG'
    done
    sparse pthread 2 --input "$WORK/g_%r.npy" --algorithm oktopk --simple
    exits_with 1
    says '^\[rank 1\] oktopk, step 1: the gradient is not finite in 1 of its elements; allowed'
    verified pthread 2 --input "$WORK/g_%r.npy" --nonfinite drop --density 0.02
    verified pthread 2 --input "$WORK/g_%r.npy" --nonfinite drop --density 0.02 --simple
  done
}
