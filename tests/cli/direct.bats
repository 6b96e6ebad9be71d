# SPDX-License-Identifier: Apache-2.0
# The direct AllReduce of 02, on the stand-in: what rows of cases/direct.tsv cannot say.
# shellcheck disable=SC2030,SC2031,SC2034 # the variable code is read by the helper
load helper

EXAMPLES="02_allreduce_sm tests/gpu/allreduce_direct"

@test "the digest does not depend on method, launcher or ranks' memory" {
  local digest=
  for method in barrier lines direct; do
    for launcher in $LAUNCHERS; do
      start "$launcher" 3 02_allreduce_sm --method "$method" --count 100003 --digest
      exits_with 0
      digest=${digest:-$(grep ^Digest "$WORK/out")}
      prints "^$digest$"
    done
  done
}

@test "one rank that cannot is enough: it is decided by all together" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  # the launcher's processes have environments of their own
  # shellcheck disable=SC2016 # for the script
  printf '#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" != 1 ] || export CPU_STANDIN_LSA_RANKS=1\nexec "%s" "$@"\n' \
    "$(program_path 02_allreduce_sm mpi)" >"$WORK/one"
  chmod +x "$WORK/one"
  code=0
  mpi_job 3 "$WORK/one" --method direct --count 1000 >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 0
  says "^note: direct cannot run here \(it is not possible on another rank\); using NCCL's AllReduce$"
}

@test "a call that fails on one rank while a handle is made: every rank ends with an error" {
  for fault in cudaDeviceGetPCIBusId:1 ncclMemAlloc:2; do
    FAULT=fail:$fault:1 start pthread 3 tests/gpu/allreduce_direct --create -T 10
    exits_with 0
    prints "^rank 1: [a-z ]+: .*${fault%:*}"
    for rank in 0 2; do prints "^rank $rank: remote process exited.*: a call has failed on another rank$"; done
  done
}

@test "--bench has rows for simple/ and for lib/, every size verified" {
  while read -r launcher mode; do
    # shellcheck disable=SC2086 # words
    start "$launcher" 3 02_allreduce_sm --bench -b 1K -e 1M -f 32 -n 2 -w 1 --repetitions 1 $mode -J "$WORK/out.csv"
    exits_with 0
    [ "$(awk '$1 == 1024 { printf "%s ", $2 }' "$WORK/out")" = "plain symmetric barrier lines direct " ] || show
    [ "$(grep -c ',direct,' "$WORK/out.csv")" = 3 ]
  done < <(printf '%s\n' pthread "${LAUNCHERS##* } -G 1")
  start pthread 2 02_allreduce_sm --bench -b 1K -e 1K -n 2 -w 1 --repetitions 1 -d half
  exits_with 0
  [ "$(awk '$1 == 1024 { printf "%s ", $2 }' "$WORK/out")" = "plain symmetric direct " ] || show
}

@test "usage.c, made of a copy of lib/ alone: the sum, by the library or else by NCCL; a rank that fails says why" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  local copy=$FAULT_FOLDER/mine sums="rank 0 has the sum 6 rank 1 has the sum 6 rank 2 has the sum 6" file
  cp -r "$TOP/02_allreduce_sm/lib" "$copy" # not to a path with a blank, for the loader
  cp "$TOP/build/cpu-mpi/libcpu_standin.so" "$FAULT_FOLDER" # what is CUDA and NCCL here
  printf '#include "allreduce.h"\nint main() { return 0; }\n' >"$copy/user.cc"
  g++ -Wall -Wextra -Werror -isystem "$TOP/common/cpu/include" -c -o "$WORK/object.o" "$copy/user.cc"
  for file in "$copy"/*.c; do
    "$(mpicc_command)" -std=c11 -Wall -Wextra -Wpedantic -Werror -DCPU_STANDIN -isystem "$TOP/common/cpu/include" \
      -c -o "$file.o" "$file"
  done
  for file in "$copy"/*.cu; do perl "$TOP/common/cpu/cuda.pl" g++ -O1 -I"$TOP/common" -c "$file" -o "$file.o"; done
  "$(mpicc_command)" "$copy"/*.o -o "$copy/usage" -L"$FAULT_FOLDER" -lcpu_standin -Wl,-rpath,"$FAULT_FOLDER" -lm -lstdc++
  usage() {
    code=0
    mpi_job 3 env LD_PRELOAD="$FAULT_FOLDER/fault.so" FAULT="$1" "$copy/usage" >"$WORK/out" 2>"$WORK/err" || code=$?
  }
  usage corrupt:ncclAllReduce:1:2 # which is not called
  exits_with 0
  [ "$(sort "$WORK/out" | xargs)" = "$sums" ]
  says_not 'using NCCL'
  CPU_STANDIN_LSA_RANKS=2 usage corrupt:ncclAllReduce:9:2
  exits_with 0
  [ "$(sort "$WORK/out" | xargs)" = "$sums" ]
  one_line "^direct AllReduce: not all ranks share memory; using NCCL's$"
  usage fail:ncclMemAlloc:2:2 # the scratch memory
  fails_at_once
  says '^allreduce_create: (ncclMemAlloc.*system error|a call has failed on another rank)$'
  prints_nothing
}
