# SPDX-License-Identifier: Apache-2.0
# 03_alltoallv_sm: what a user sees, and alltoallv.h in a program of one's own.
load helper

# shellcheck disable=SC2034 # for setup_file
EXAMPLES="03_alltoallv_sm"

verified() { # verified LAUNCHER RANKS [OPTIONS]
  start "$1" "$2" 03_alltoallv_sm "${@:3}"
  exits_with 0
  prints '^Results structure verified correctly$'
}

@test "golden output on 1, 2, 3, 4, 7 and 12 ranks, both launchers" {
  diff "$TOP/tests/golden/03_alltoallv_sm.4" <("$TOP/tests/golden.sh" 03_alltoallv_sm 4)
  for launcher in $LAUNCHERS; do
    for ranks in 1 2 3 4 7 12; do
      verified "$launcher" $ranks
      diff <("$TOP/tests/golden.sh" 03_alltoallv_sm $ranks) "$WORK/out"
    done
  done
}

@test "every pattern with types of 1, 2, 4 and 8 bytes" {
  for pattern in halving uniform skew unaligned zipf:0.5 zipf:2 one-hot diagonal zero random single-sender \
    single-receiver moe; do
    for type in int8 half float double; do verified pthread 4 --pattern $pattern -d $type; done
    verified pthread 3 --pattern $pattern --count 100000
    for method in sendrecv barrier; do verified pthread 3 --pattern $pattern -d int8 --method $method; done
  done
}

@test "every method, with counts of the host and of the device, says what ran" {
  for launcher in $LAUNCHERS; do
    while read -r method ran; do
      verified "$launcher" 3 --method "$method" --pattern random
      says "^note: AlltoAllV: $ran$"
    done <<'EXPECTED'
auto one-sided kernel among 3 ranks
sendrecv grouped send/recv \(simple\)
barrier push between two barriers \(simple\)
lsa one-sided kernel among 3 ranks
copy-engine one-sided kernel among 3 ranks \(plan, copy engines\)
lib-sendrecv send/recv: asked for
EXPECTED
    for method in auto lsa copy-engine lib-sendrecv; do
      verified "$launcher" 3 --method $method --pattern random --device-counts
      says '^note: AlltoAllV: .* \(device counts\)$'
    done
  done
}

@test "where not all ranks share memory, --method barrier is exit code 77, and no column" {
  export CPU_STANDIN_LSA_RANKS=2
  start pthread 4 03_alltoallv_sm --method barrier
  exits_with 77
  one_line '^alltoallv_sm: --method: not all ranks share memory; allowed: auto, sendrecv$'
  start pthread 4 03_alltoallv_sm --bench --pattern skew -e 1K -n 3 --repetitions 2
  exits_with 0
  says '^note: no column barrier: not all ranks share memory$'
  prints '^# +send/recv +alltoallv \(kernel \+ send/recv\)$'
}

@test "where one rank's GPU is reached over PCIe, or nobody knows, all ranks take send/recv" {
  for launcher in $LAUNCHERS; do
    CPU_STANDIN_PCIE=2 verified "$launcher" 4
    says '^note: AlltoAllV: send/recv: a GPU is reached over PCIe, '
    CPU_STANDIN_PCIE=2 start "$launcher" 4 03_alltoallv_sm --method lsa
    exits_with 77
    CPU_STANDIN_UNKNOWN_LINK=0 verified "$launcher" 4
    says '^note: AlltoAllV: send/recv: a process does not see '
    CPU_STANDIN_UNKNOWN_LINK=0 verified "$launcher" 4 --method lsa
    says '^note: AlltoAllV: one-sided kernel among 4 ranks$'
  done
}

@test "the digest depends on the type, not on launcher or method" {
  for type in int8 double; do
    rm -f "$WORK/digests"
    for launcher in $LAUNCHERS; do
      for method in sendrecv barrier lsa lib-sendrecv; do
        verified "$launcher" 4 --digest -d $type --method $method
        grep '^Digest: [0-9a-f]\{16\}$' "$WORK/out" >>"$WORK/digests"
      done
    done
    cat "$WORK/digests"
    [ "$(sort -u "$WORK/digests" | wc -l)" = 1 ]
    cat "$WORK/digests" >>"$WORK/all"
  done
  [ "$(sort -u "$WORK/all" | wc -l)" = 2 ]
}

refused() { # refused TEXT-OF-MATRIX PATTERN-OF-THE-LINE [OPTIONS]
  printf '%b' "$1" >"$WORK/matrix"
  for launcher in $LAUNCHERS; do
    start "$launcher" 2 03_alltoallv_sm --matrix "$WORK/matrix" "${@:3}"
    exits_with 2
    one_line "^alltoallv_sm: --matrix: .*$2"
    says "; allowed: "
  done
}

@test "matrices: good ones are exchanged, bad ones get one clear line" {
  printf '0 400 8\n4 0 8\n\n8 8 8\n' >"$WORK/matrix"
  verified pthread 2 --matrix "$WORK/matrix"
  prints '^  Received from rank 1: 1 elements at offset 0$'
  verified pthread 3 --matrix "$WORK/matrix" -d int8
  refused '1 2\n3\n' 'not a whole number|no whole number' # 4-byte elements
  refused '4 8\n12\n' 'is not square: row 2 has 1 numbers, row 1 has 2; allowed: a square$'
  refused '4 8\n' 'is not square: 1 rows, 2 columns; allowed: a square$'
  refused '4\n' 'is 1 x 1; allowed: at least 2'
  refused '4 -8\n4 4\n' "row 1, column 2: '-8' is not a number of bytes"
  refused '4 8\n4 x4\n' "row 2, column 2: 'x4' is not a number of bytes"
  refused '4 99999999999999999999999\n4 4\n' 'is not a number of bytes'
  refused '' 'is 0 x 0; allowed: at least 2'
  for size in "-b 4" "-e 4M" "--stepfactor 2"; do
    # shellcheck disable=SC2086 # an option and its argument
    refused '4 8\n4 4\n' 'the file sets the size, .*; allowed: it alone$' --bench $size
  done
  refused '4 8\n4 4\0' 'has a byte 0; allowed: a text file$'
  start pthread 2 03_alltoallv_sm --matrix "$WORK/nothing"
  exits_with 2
  one_line 'cannot read .*No such file or directory; allowed: a file with a matrix$'
  head -c $(((16 << 20) + 1)) /dev/zero | tr '\0' ' ' >"$WORK/matrix"
  start pthread 2 03_alltoallv_sm --matrix "$WORK/matrix"
  exits_with 2
  one_line 'is larger than 16 MiB; allowed: less$'
  printf '0 1099511627776\n0 0\n' >"$WORK/matrix"
  start pthread 2 03_alltoallv_sm --matrix "$WORK/matrix"
  exits_with 2
  one_line 'needs .* MiB of device memory'
}

@test "wrong options get one clear line" {
  for bad in "--pattern nonsense" "--pattern zipf:x" "--pattern zipf:-1" "--method nonsense" \
    "--seed -1" "--matrix x --pattern uniform" "--method barrier --device-counts" "--bench --method barrier"; do
    # shellcheck disable=SC2086 # several words
    start pthread 2 03_alltoallv_sm $bad
    exits_with 2
    one_line '^alltoallv_sm: .*; allowed: '
  done
  start pthread 2 03_alltoallv_sm --pattern "$(printf 'a%.0s' {1..2000})" # the reason is not cut off
  exits_with 2
  one_line '^alltoallv_sm: --pattern: unknown pattern .*; allowed: halving .* moe$'
  for exponent in "" " 1" +1 0x1 nan 1x 16.1; do
    start pthread 2 03_alltoallv_sm --pattern "zipf:$exponent"
    exits_with 2
    one_line "^alltoallv_sm: --pattern: 'zipf:.*' has a wrong exponent; allowed: a number from 0 to 16$"
  done
  start pthread 2 03_alltoallv_sm --pattern $'zipf:\n'
  exits_with 2
  one_line "^alltoallv_sm: --pattern: 'zipf:.*' has a wrong exponent; allowed: "
}

@test "a corrupt element on rank 2 of 4: exit code 1, exchange, sender and element are named" {
  for launcher in $LAUNCHERS; do
    # the first four calls are those of the send/recv that everybody writes; the library's count bytes
    for wrong in '1:2:7 send/recv' '5:2:31 alltoallv'; do
      FAULT=corrupt:ncclRecv:${wrong%% *} start "$launcher" 4 03_alltoallv_sm --method lib-sendrecv
      exits_with 1
      one_line "^\[rank 2\] ${wrong#* }: element 7 from rank 0 is wrong \(1 elements wrong\)$"
      prints '^Results are WRONG'
      prints_not '^Results structure verified'
    done
  done
}

@test "a hung rank is exit code 4, a failing call 3, a killed rank a failure" {
  for launcher in $LAUNCHERS; do
    FAULT=hang:cudaStreamSynchronize:1:2 start "$launcher" 4 03_alltoallv_sm -T 3
    exits_with 4
    says '^\[rank 2\] no progress for .* in step: STEP 3'
    FAULT=fail:ncclMemAlloc:2:1 start "$launcher" 4 03_alltoallv_sm
    exits_with 3
    says '^\[rank 1\] main.c:[0-9]+: ncclMemAlloc'
    # the third is the handle's scratch memory: the other ranks do not wait for it
    FAULT=fail:ncclMemAlloc:3:1 start "$launcher" 4 03_alltoallv_sm -T 60
    exits_with 3
    says 'rank 1 cannot set up the kernel'
    # the first one frees that memory
    FAULT=fail:ncclMemFree:1:1 start "$launcher" 4 03_alltoallv_sm
    exits_with 3
    says '^\[rank 1\] main.c:[0-9]+: alltoallv_destroy.*cleanup: memory of the kernel'
    FAULT=kill:cudaStreamSynchronize:2:2 start "$launcher" 4 03_alltoallv_sm
    fails_at_once
  done
}

@test "--bench measures every method and writes valid JSON and CSV" {
  start pthread 3 03_alltoallv_sm --bench -e 16K -n 3 --repetitions 2 -G 1 -J "$WORK/out.json"
  exits_with 0
  python3 - "$WORK/out.json" <<'PYTHON'
import json, sys
rows = json.load(open(sys.argv[1]))
assert {r["pattern"] for r in rows} == {"uniform", "skew", "unaligned"}
assert {r["variant"] for r in rows} >= {"send/recv", "barrier", "alltoallv", "device counts", "plan"}
assert all(r["wrong"] == 0 for r in rows)
PYTHON
  printf '0 4000 8\n4 0 8\n8 8 8\n' >"$WORK/matrix"
  start pthread 3 03_alltoallv_sm --bench --matrix "$WORK/matrix" --repetitions 2 -J "$WORK/out.csv"
  exits_with 0
  grep '^matrix,4008,1002,float,3,0,send/recv,' "$WORK/out.csv"
}

@test "all cases of the AlltoAllV on 1, 3 and 4 ranks" {
  make_variant tests/gpu/alltoallv pthread >&2
  for ranks in 1 3 4; do
    start pthread $ranks tests/gpu/alltoallv -T 60
    exits_with 0
    prints_not '^not ok'
  done
  start pthread 3 tests/gpu/alltoallv -T 60 --method sendrecv
  exits_with 0
  CPU_STANDIN_LSA_RANKS=2 start pthread 4 tests/gpu/alltoallv -T 60 # two hosts
  exits_with 0
}

@test "all cases of the AlltoAllV as processes, against MPI_Alltoallv" {
  [[ $LAUNCHERS = *mpi* ]] || skip "no MPI"
  make_variant tests/gpu/alltoallv mpi >&2
  start mpi 3 tests/gpu/alltoallv -T 60
  exits_with 0
  prints '^ok - random matrices against MPI_Alltoallv$'
}

# A copy of the library's folder, all of it, as processes on the stand-in.
build_usage() {
  local include=(-isystem "$TOP/common/cpu/include" -I"$TOP/common/cpu")
  [ ! -x "$FAULT_FOLDER/usage/usage" ] || return 0 # not in a path with a blank, for the loader
  cp "$TOP/build/cpu-mpi/libcpu_standin.so" "$FAULT_FOLDER" # what is CUDA and NCCL here
  cp -r "$TOP/03_alltoallv_sm/lib" "$FAULT_FOLDER/usage"
  cd "$FAULT_FOLDER/usage" || return
  "$(mpicc_command)" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Wpedantic -Werror -DCPU_STANDIN "${include[@]}" \
    -I. ./*.c lsa/*.c -o usage -L"$FAULT_FOLDER" -lcpu_standin -Wl,-rpath,"$FAULT_FOLDER" -lm
}

@test "alltoallv.h stands alone: C++ takes it, usage.c compiles with it and runs" {
  [[ $LAUNCHERS = *mpi* ]] || skip "no MPI"
  echo '#include "alltoallv.h"
    alltoallv_config_t config = ALLTOALLV_CONFIG_INITIALIZER;' |
    g++ -Wall -Wextra -Werror -fsyntax-only -x c++ -isystem "$TOP/common/cpu/include" -I"$TOP/03_alltoallv_sm/lib" -
  build_usage
  mpi_job 3 "$FAULT_FOLDER/usage/usage" >"$WORK/out" 2>"$WORK/err"
  [ "$(sort "$WORK/out")" = "$(for rank in 0 1 2; do
    echo "rank $rank received 6 floats, the last is 2"
  done)" ]
}

# usage_fails RANKS FAULT: usage.c as so many processes, in which this call fails on the last one.
usage_fails() {
  code=0
  mpi_job "$1" env LD_PRELOAD="$FAULT_FOLDER/fault.so" FAULT="fail:$2:$(($1 - 1))" "$FAULT_FOLDER/usage/usage" \
    >"$WORK/out" 2>"$WORK/err" || code=$?
  fails_at_once
  [ "$code" != 124 ] # the time limit of mpi_job
  prints_nothing
}

@test "usage.c: a rank that fails says why and ends the others, which would wait for it" {
  [[ $LAUNCHERS = *mpi* ]] || skip "no MPI"
  build_usage
  usage_fails 3 cudaStreamCreate:1
  says '^cudaStreamCreate\(&stream\): out of memory$'
  usage_fails 3 ncclCommInitRank:1
  says '^ncclCommInitRank\(&comm, n, id, rank\): unhandled system error$'
  # The third is the scratch memory of the handle. The library tells all ranks, and any of them may end the job
  # before the others have said anything: each one names the rank, and that rank the call.
  usage_fails 3 ncclMemAlloc:3
  says '^alltoallv_init\(comm, NULL, &handle\): rank 2 cannot set up the kernel: .*system error'
  says_not 'alltoallv_init.*: rank [01] '
  usage_fails 1 ncclMemAlloc:3
  says '^alltoallv_init\(comm, NULL, &handle\): rank 0 cannot set up the kernel: ncclMemAlloc\(.*: .*system error'
}

@test "counts that differ end the job with exit code 3 and both numbers" {
  make_variant tests/gpu/alltoallv pthread
  start pthread 3 tests/gpu/alltoallv --mismatch -T 60
  exits_with 3
  says '^\[rank [02]\] alltoallv: invalid argument: rank 0 sends 11 elements to rank 2, which expects 10$'
}
