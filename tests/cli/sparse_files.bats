# SPDX-License-Identifier: Apache-2.0
# 04_sparse_allreduce: --input, --output, --residual, good, malformed and impossible.
load sparse_helper

@test "files that are the same under different names: exit code 2, and nothing is overwritten" {
  cd "$WORK"
  verified pthread 2 --count 100 --steps 3 --algorithm topkA --output 'g_%r.npy'
  cp g_0.npy good_0.npy
  refused "--output is the file of --input: ./g_0.npy; allowed" --input 'g_%r.npy' --output './g_%r.npy' --algorithm topkA
  refused "--residual is the file of --output: q_0.npy; allowed" --output 'q_%r.npy' --residual 'q_%r.npy' --algorithm topkA
  cmp g_0.npy good_0.npy
  verified pthread 1 --count 100 --steps 1 --algorithm topkA --output "$WORK/g_0.npy" --residual "$WORK/g_1.npy"
  refused "$WORK/g_1.npy: the shape \[100\] differs from rank 0's \[1, 100\]; allowed" --input "$WORK/g_%r.npy"
}

@test "--input, --output, --residual: what goes out can come in, and is right" {
  local out=$WORK/avg_%r.npy
  for launcher in $LAUNCHERS; do
    verified "$launcher" 3 --count 500 --steps 4 --algorithm oktopk --output "$out" --residual "$WORK/res_%r.npy"
    cmp "$WORK/avg_0.npy" "$WORK/avg_2.npy"
    if cmp -s "$WORK/res_0.npy" "$WORK/res_1.npy"; then false; fi
    [ "$(stat -c %s "$WORK/avg_1.npy")" = $((128 + 4 * 4 * 500)) ]
    [ "$(stat -c %s "$WORK/res_1.npy")" = $((128 + 4 * 500)) ]
    verified "$launcher" 3 --input "$out" --algorithm gaussiankconcat,topkSA # all ranks' files
    prints "^Gradient: 500 elements of type float, .*avg_%r.npy, 4 steps; "
    [ -z "$(find "$WORK" -name '*.unfinished.*')" ]
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
  refused "cannot write $WORK/x_1.npy: Is a directory" --algorithm topkA --residual "$WORK/x_%r.npy"
  [ ! -e "$WORK/x_0.npy" ]
}

@test "a run that fails leaves an old file as it was" {
  echo old >"$WORK/avg_0.npy"
  FAULT=fail:ncclAllGather:4:1 sparse pthread 2 "${SMALL[@]}" --algorithm topkA --output "$WORK/avg_%r.npy"
  exits_with 3
  [ "$(cat "$WORK/avg_0.npy")" = old ]
  [ ! -e "$WORK/avg_1.npy" ]
}

@test "whatever copy to the host is wrong, no file is: what is written was compared" {
  local copy good=0 caught=0
  local run=(--count 300 --steps 1 --algorithm topkA --output "$WORK/avg_%r.npy" --residual "$WORK/res_%r.npy")
  verified pthread 2 "${run[@]}"
  mkdir "$WORK/good" && mv "$WORK"/*.npy "$WORK/good"
  for copy in cudaMemcpyAsync:{1..17} cudaMemcpy:{1..14}; do
    FAULT=corrupt:$copy:1 sparse pthread 2 "${run[@]}"
    # shellcheck disable=SC2154 # set by start
    if [ "$code" = 0 ]; then
      good=$((good + 1))
      for name in avg_0 avg_1 res_0 res_1; do cmp "$WORK/$name.npy" "$WORK/good/$name.npy"; done
    else
      caught=$((caught + 1))
      [ -z "$(find "$WORK" -maxdepth 1 -name '*.npy')" ]
    fi
    rm -f "$WORK"/*.npy*
  done
  echo "$good times harmless, $caught times caught"
  [ $caught -ge 6 ] # what is compared, and what goes to the files
}

@test "a full disk: exit code 3, not a wrong step" {
  sparse pthread 1 "${SMALL[@]}" --algorithm topkA --output /dev/full
  exits_with 3
  one_line "^\[rank 0\] cannot write /dev/full: No space left on device"
  prints '^topkA .* stopped at step '
  prints_not 'NO:'
}

@test "gradients that are not finite: error, drop" {
  local i
  verified pthread 1 --count 100 --steps 3 --algorithm dense --output "$WORK/g_0.npy"
  cp "$WORK/g_0.npy" "$WORK/g_1.npy"
  for i in '\x00\x00\xc0\x7f' '\x00\x00\x80\x7f' '\x00\x00\x80\xff'; do
    # shellcheck disable=SC2059 # that is the format
    printf "$i" | dd of="$WORK/g_1.npy" bs=1 seek=$((128 + 4 * 150)) conv=notrunc status=none # step 1, element 50
    for launcher in $LAUNCHERS; do
      sparse "$launcher" 2 --input "$WORK/g_%r.npy" --algorithm oktopk,gtopk
      exits_with 1
      says "^\[rank 0\] gtopk, step 1: element 50 of rank 1's gradient is not finite; allowed: finite ones, or --nonfinite drop"
      says "^\[rank 0\] oktopk, step 1: element 50 of rank 1's gradient is not finite; allowed"
      [ "$(grep -c 'NO: step 1$' "$WORK/out")" = 2 ]
      prints '^Results are WRONG'
    done
    verified pthread 2 --input "$WORK/g_%r.npy" --nonfinite drop --density 0.02
  done
}
