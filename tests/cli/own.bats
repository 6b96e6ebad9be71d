# SPDX-License-Identifier: Apache-2.0
# The AllReduce in 02_allreduce_sm/own, on the stand-in.
# shellcheck disable=SC2030,SC2031,SC2034 # the variable code is read by the helper
load helper

setup_file() {
  local launcher
  for launcher in $LAUNCHERS; do
    make_variant 02_allreduce_sm "$launcher" >&2
    make_variant tests/gpu/allreduce_own "$launcher" >&2
  done
  FAULT_FOLDER=$(mktemp -d)
  export FAULT_FOLDER
  gcc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Wpedantic -Werror -shared -fPIC \
    -isystem "$TOP/common/cpu/include" -o "$FAULT_FOLDER/fault.so" "$TOP/tests/fault.c" -ldl >&2
}

@test "all cases, with both launchers" {
  for launcher in $LAUNCHERS; do
    for ranks in 1 2 5; do
      start "$launcher" "$ranks" tests/gpu/allreduce_own
      exits_with 0
      prints '^ok - types, counts and places$'
      prints_not '^not ok'
    done
  done
}

@test "--method own prints what --method nccl prints, and has the same digest" {
  for type in float double half bfloat16 int32 int64; do
    start pthread 3 02_allreduce_sm --count 100003 -d $type --digest
    exits_with 0
    cp "$WORK/out" "$WORK/nccl"
    for launcher in $LAUNCHERS; do
      start "$launcher" 3 02_allreduce_sm --method own --count 100003 -d $type --digest
      exits_with 0
      diff "$WORK/nccl" "$WORK/out"
      says_not 'NCCL.s AllReduce is taken'
    done
  done
}

@test "where not all ranks share memory NCCL's AllReduce is taken, on all ranks, with a note" {
  for launcher in $LAUNCHERS; do
    CPU_STANDIN_LSA_RANKS=2 start "$launcher" 4 02_allreduce_sm --method own --count 1000
    exits_with 0
    says "^note: own: NCCL's AllReduce is taken: not all ranks share memory$"
    FAULT=corrupt:ncclAllReduce:2:3 CPU_STANDIN_LSA_RANKS=2 start "$launcher" 4 02_allreduce_sm --method own
    exits_with 1
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
  mpi_job 3 "$WORK/one" --method own --count 1000 >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 0
  says "^note: own: NCCL's AllReduce is taken: another rank cannot$"
}

@test "a call that fails on one rank while a handle is made: every rank ends with an error" {
  local launcher fault says
  while read -r fault says; do
    for launcher in $LAUNCHERS; do
      FAULT=fail:$fault:1 start "$launcher" 3 tests/gpu/allreduce_own --create -T 10
      exits_with 0
      prints "^rank 1: [a-z ]+: .*$says"
      prints '^rank 0: remote process exited.*: a call has failed on another rank$'
      prints '^rank 2: remote process exited.*: a call has failed on another rank$'
    done
  done <<'ROWS'
cudaDeviceGetPCIBusId:1 cudaDeviceGetPCIBusId
ncclMemAlloc:3 ncclMemAlloc
ROWS
}

@test "GPUs of different architectures: no rank uses wide lines" {
  cat >"$WORK/architectures.c" <<'C'
#include <dlfcn.h>
#include <stdlib.h>
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  int (*real)(int *, int, int) = (int (*)(int *, int, int))dlsym(RTLD_NEXT, "cudaDeviceGetAttribute");
  const char *odd = getenv("ODD");
  if (attribute != 76) return real(value, attribute, device); /* the minor compute capability */
  *value = odd && atoi(odd) == device;
  return 0;
}
C
  gcc -D_GNU_SOURCE -shared -fPIC -o "$FAULT_FOLDER/architectures.so" "$WORK/architectures.c" -ldl
  export LD_PRELOAD=$FAULT_FOLDER/architectures.so
  for launcher in $LAUNCHERS; do
    for odd in 0 1 2; do
      ODD=$odd start "$launcher" 3 tests/gpu/allreduce_own --create
      exits_with 0
      [ "$(grep -c '^rank [012]: wide lines up to 0 bytes$' "$WORK/out")" = 3 ] || show
    done
    start "$launcher" 3 tests/gpu/allreduce_own --create
    exits_with 0
    [ "$(grep -c '^rank [012]: wide lines up to 4194304 bytes$' "$WORK/out")" = 3 ] || show
  done
}

@test "NCCL's own calls are not used: what spoils them spoils nothing" {
  FAULT=corrupt:ncclAllReduce:1:1 start pthread 3 02_allreduce_sm --method own --count 1000
  exits_with 0
}

@test "a rank that is late or dead: exit code 4, and the step is named" {
  for launcher in $LAUNCHERS; do
    FAULT=hang:cudaStreamSynchronize:6:1 start "$launcher" 3 02_allreduce_sm --method own --count 1000 -T 3
    exits_with 4
    says '^\[rank 0\] no progress for [0-9]+ s in step: STEP [0-9]+'
    says '^\[rank 1\] no progress for [0-9]+ s in step: STEP [0-9]+'
  done
  [[ $LAUNCHERS == *mpi* ]] || return 0
  FAULT=kill:cudaStreamSynchronize:6:1 start mpi 3 02_allreduce_sm --method own --count 1000 -T 3
  [[ $code != 0 && $code != 124 ]] || show
}

@test "--bench has columns for the first and the last rung, every size verified" {
  for launcher in $LAUNCHERS; do
    for mode in "" "-G 1"; do
      # shellcheck disable=SC2086 # words
      start "$launcher" 3 02_allreduce_sm --bench -b 1K -e 4M -f 16 -n 2 -w 1 --repetitions 1 $mode -J "$WORK/out.csv"
      exits_with 0
      prints ' plain +symmetric +one-shot +own$'
      [ "$(grep -c ',own,' "$WORK/out.csv")" = 4 ]
    done
  done
  start pthread 2 02_allreduce_sm --bench -b 1K -e 1K -n 2 -w 1 --repetitions 1 -d half
  exits_with 0
  prints ' plain +symmetric +own$'
}

@test "--method is not for --bench" {
  start pthread 2 02_allreduce_sm --bench --method own
  exits_with 2
  says '^allreduce_sm: --method is not for --bench'
  start pthread 2 02_allreduce_sm --method mine
  exits_with 2
  says 'allowed: '
}

@test "the library stands alone: nothing of common, a header for C and C++" {
  mkdir "$WORK/own"
  cp "$TOP"/02_allreduce_sm/own/*.[ch] "$WORK/own"
  rm "$WORK/own/usage.c" # needs MPI, below
  for file in "$WORK"/own/*.c; do
    gcc -std=c11 -Wall -Wextra -Wpedantic -Werror -isystem "$TOP/common/cpu/include" -c -o "$WORK/object.o" "$file"
  done
  printf '#include "allreduce.h"\nint main() { return 0; }\n' >"$WORK/own/user.cc"
  g++ -Wall -Wextra -Werror -isystem "$TOP/common/cpu/include" -c -o "$WORK/object.o" "$WORK/own/user.cc"
}

# usage [FAULT]: usage.c, made of a copy of the folder, as three processes, in which this call fails on the last one.
usage() {
  local with=() own=$FAULT_FOLDER/own # not in a path with a blank, for the loader
  if [ ! -x "$own/usage" ]; then
    cp "$TOP/build/cpu-mpi/libcpu_standin.so" "$FAULT_FOLDER" # what is CUDA and NCCL here
    cp -r "$TOP/02_allreduce_sm/own" "$own"
    "$(mpicc_command)" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Wpedantic -Werror -DCPU_STANDIN \
      -isystem "$TOP/common/cpu/include" -I"$TOP/common/cpu" "$own"/*.c -o "$own/usage" \
      -L"$FAULT_FOLDER" -lcpu_standin -Wl,-rpath,"$FAULT_FOLDER" -lm
  fi
  [ $# = 0 ] || with=(env LD_PRELOAD="$FAULT_FOLDER/fault.so" FAULT="$1")
  code=0
  mpi_job 3 "${with[@]}" "$own/usage" >"$WORK/out" 2>"$WORK/err" || code=$?
}

@test "usage.c, made of the copied folder: the sum, by own/ or else by NCCL; a rank that fails says why" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  local sums="rank 0 has the sum 6 rank 1 has the sum 6 rank 2 has the sum 6"
  usage corrupt:ncclAllReduce:1:2 # which is not called
  exits_with 0
  [ "$(sort "$WORK/out" | xargs)" = "$sums" ]
  says_not taken
  CPU_STANDIN_LSA_RANKS=2 usage
  exits_with 0
  [ "$(sort "$WORK/out" | xargs)" = "$sums" ]
  one_line "^NCCL's AllReduce is taken: not all ranks share memory$"
  usage fail:cudaStreamCreate:1:2
  fails_at_once
  says '^cudaStreamCreate\(&stream\): out of memory$'
  usage fail:ncclMemAlloc:2:2 # the scratch memory
  fails_at_once
  says '^allreduce_create: (ncclMemAlloc.*system error|a call has failed on another rank)$'
  prints_nothing
}
