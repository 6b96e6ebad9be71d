# SPDX-License-Identifier: Apache-2.0
# 03_alltoallv_sm: what a user sees, and alltoallv.h in a user's program.
load helper

# shellcheck disable=SC2034 # for setup_file
EXAMPLES="03_alltoallv_sm tests/gpu/alltoallv"

verified() { # verified LAUNCHER RANKS [OPTIONS]
  start "$1" "$2" 03_alltoallv_sm "${@:3}"
  exits_with 0
  prints '^Results structure verified correctly$'
}

@test "golden output on 1, 2, 3, 4, 7 and 12 ranks, both launchers" {
  for launcher in $LAUNCHERS; do
    for ranks in 1 2 3 4 7 12; do
      verified "$launcher" $ranks
      diff <("$TOP/tests/golden.sh" 03_alltoallv_sm $ranks) "$WORK/out"
    done
  done
}

@test "every pattern, by the library and by every method; types of 1, 2, 4 and 8 bytes" {
  for pattern in halving uniform skew unaligned zipf:0.5 zipf:2 one-hot diagonal zero random single-sender \
    single-receiver moe; do
    verified pthread 4 --pattern $pattern
    for method in sendrecv barrier lines copy-engine; do
      verified pthread 3 --pattern $pattern -d int8 --count 100000 --method $method
    done
  done
  for type in int8 half double; do verified pthread 4 --pattern unaligned -d $type; done
}

@test "every method says what ran; the digest depends on the type only" {
  for launcher in $LAUNCHERS; do
    while read -r method ran; do
      verified "$launcher" 3 --method "$method" --pattern random --digest
      says "^note: AlltoAllV: $ran$"
      grep '^Digest: [0-9a-f]\{16\}$' "$WORK/out" >>"$WORK/digests"
    done <<'EXPECTED'
auto alltoallv: one-sided kernel among 3 ranks
sendrecv send/recv: simple/
barrier barrier: simple/
lines lines: simple/
copy-engine copy engine: simple/
lsa alltoallv: one-sided kernel among 3 ranks
lib-sendrecv alltoallv: send/recv: as requested
device-counts device counts: one-sided kernel among 3 ranks
EXPECTED
  done
  [ "$(sort -u "$WORK/digests" | wc -l)" = 1 ]
  verified pthread 3 --pattern random -d double --digest
  if grep -qf "$WORK/digests" "$WORK/out"; then false; fi
}

@test "a method that cannot run here is exit code 77 and one clear line" {
  for method in barrier lines copy-engine; do
    CPU_STANDIN_LSA_RANKS=2 start pthread 4 03_alltoallv_sm --method $method
    exits_with 77
    one_line '^alltoallv_sm: --method: the kernel cannot be used: not all ranks share memory; allowed: auto, sendrecv, lib-sendrecv$'
  done
  CPU_STANDIN_PCIE=3 start pthread 4 03_alltoallv_sm --method lsa
  exits_with 77
  one_line '^alltoallv_sm: --method: the kernel cannot be used: a GPU may be on PCIe; the kernel needs NVLink; allowed: auto, sendrecv, lib-sendrecv$'
}

@test "--bench measures every method and writes valid JSON and CSV" {
  start pthread 3 03_alltoallv_sm --bench -e 16K -n 3 --repetitions 2 -J "$WORK/out.json"
  exits_with 0
  python3 - "$WORK/out.json" <<'PYTHON'
import json, sys
rows = json.load(open(sys.argv[1]))
assert {r["pattern"] for r in rows} == {"uniform", "skew", "unaligned"}
assert {r["variant"] for r in rows} >= {"send/recv", "barrier", "lines", "alltoallv", "device counts", "copy engine"}
assert all(r["wrong"] == 0 for r in rows)
PYTHON
  start pthread 3 03_alltoallv_sm --bench --pattern skew -b 4 -e 16 -n 3 --repetitions 2 -G 1 -J "$WORK/out.csv"
  exits_with 0
  says '^note: no column copy engine: it was never tried in a graph$'
  grep '^skew,16,4,float,3,1,send/recv,' "$WORK/out.csv"
}

@test "all cases of the AlltoAllV on 1, 3 and 4 ranks, by send/recv, on two hosts, and as processes" {
  for ranks in 1 3 4; do
    start pthread $ranks tests/gpu/alltoallv
    exits_with 0
    prints_not '^not ok'
  done
  start pthread 3 tests/gpu/alltoallv --method sendrecv
  exits_with 0
  CPU_STANDIN_LSA_RANKS=2 start pthread 4 tests/gpu/alltoallv
  exits_with 0
  [[ $LAUNCHERS = *mpi* ]] || skip "no MPI for the last part"
  start mpi 3 tests/gpu/alltoallv
  exits_with 0
}

# A copy of the library's folder, all of it, as processes on the stand-in.
build_usage() {
  [ ! -x "$FAULT_FOLDER/lib/usage" ] || return 0 # not in a path with a blank, for the loader
  cp "$TOP/build/cpu-mpi/libcpu_standin.so" "$FAULT_FOLDER" # what is CUDA and NCCL here
  cp -r "$TOP"/03_alltoallv_sm/lib "$FAULT_FOLDER"
  cd "$FAULT_FOLDER/lib" || return
  perl "$TOP/common/cpu/cuda.pl" g++ -O1 -c lsa.cu -o lsa.o
  "$(mpicc_command)" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Wpedantic -Werror -DCPU_STANDIN \
    -isystem "$TOP/common/cpu/include" \
    -I. ./*.c lsa.o -o usage -L"$FAULT_FOLDER" -lcpu_standin -Wl,-rpath,"$FAULT_FOLDER" -lm -lstdc++
}

@test "alltoallv.h stands alone: C++ takes it, usage.c compiles with it, and tokens come back" {
  [[ $LAUNCHERS = *mpi* ]] || skip "no MPI"
  echo '#include "alltoallv.h"
    alltoallv_config_t config = {};' |
    g++ -Wall -Wextra -Werror -fsyntax-only -x c++ -isystem "$TOP/common/cpu/include" -I"$TOP/03_alltoallv_sm/lib" -
  build_usage
  mpi_job 3 "$FAULT_FOLDER/lib/usage" >"$WORK/out" 2>"$WORK/err"
  [ "$(sort "$WORK/out")" = "$(for rank in 0 1 2; do
    echo "rank $rank: 100 tokens came back 3 times, wrong 0 times"
  done)" ]
  # slots that are too small: a sentence, and the way back finds nothing to send
  code=0
  mpi_job 3 "$FAULT_FOLDER/lib/usage" 20 >"$WORK/out" 2>"$WORK/err" || code=$?
  fails_at_once
  says '^result: rank [0-2] sends [0-9]+ elements to rank [0-2], where 20 fit \(exchange [0-9]+\)$'
  says_not 'signal'
  prints_nothing
}

@test "usage.c: a rank that fails says why and ends the others, which would wait for it" {
  [[ $LAUNCHERS = *mpi* ]] || skip "no MPI"
  build_usage
  for fault in cudaStreamCreate:1 ncclMemAlloc:2; do # the second is the scratch memory of the handle
    code=0
    mpi_job 3 env LD_PRELOAD="$FAULT_FOLDER/fault.so" FAULT="fail:$fault:2" "$FAULT_FOLDER/lib/usage" \
      >"$WORK/out" 2>"$WORK/err" || code=$?
    fails_at_once
    [ "$code" != 124 ] # the time limit of mpi_job
    prints_nothing
    [ $fault = ncclMemAlloc:2 ] || says '^cudaStreamCreate\(&stream\): out of memory$'
  done
  says '^alltoallv_create\(comm, NULL, &handle\): rank 2 cannot set up the kernel: .*system error'
  says_not 'alltoallv_create.*: rank [01] '
}

@test "the limits that alltoallv.h names are those of the code" {
  local name words value
  text=$(sed -n '/^ \* - Limits:/,/^ \*\//p' "$TOP/03_alltoallv_sm/lib/alltoallv.h" | tr -d '\n*' | tr -s ' ')
  while read -r name words; do
    value=$(sed -n "s/^#define ALLTOALLV_MAX_$name \([0-9]*\).*/\1/p" "$TOP/03_alltoallv_sm/lib/alltoallv_protocol.h")
    [[ -n $value && $text = *" $value $words"* ]] || { echo "$name is $value; the header: $text" && return 1; }
  done <<'LIMITS'
WINDOWS registered buffers
LSA_RANKS ranks that share memory
PAYLOADS buffers with the same device counts
BLOCKS blocks
LIMITS
}
