# SPDX-License-Identifier: Apache-2.0
# A rank that is wrong, fails, hangs or dies: the program has to say so and has to end.
# shellcheck disable=SC2034 # the variable code is read by the helper
load helper

@test "corrupt element on rank 2 of 4: exit code 1, rank and element are named" {
  local n=0 what
  for what in "constant data" "indexed data" "in place"; do
    n=$((n + 1))
    for example in $EXAMPLES; do
      for launcher in $LAUNCHERS; do
        FAULT=corrupt:ncclAllReduce:$n:2 start "$launcher" 4 "$example"
        exits_with 1
        one_line "^\[rank 2\] $what.*: element 1048575 is .*, expected .*\(1 elements? wrong\)"
        prints '^Results are WRONG'
        prints_not '^Results verified correctly'
      done
    done
  done
}

@test "corrupt first, middle and only element, of every type" {
  for type in float double half bfloat16 int32 int64; do
    FAULT=corrupt:ncclAllReduce:2:1:0 start pthread 2 01_allreduce_ub -d $type
    exits_with 1
    one_line '^\[rank 1\] indexed data: element 0 is '
    FAULT=corrupt:ncclAllReduce:2:0:777 start pthread 2 01_allreduce_ub -d $type
    exits_with 1
    one_line '^\[rank 0\] indexed data: element 777 is '
    FAULT=corrupt:ncclAllReduce:3:0 start pthread 1 02_allreduce_sm -d $type --count 1
    exits_with 1
    one_line '^\[rank 0\] in place: element 0 is '
  done
}

@test "a failing call on rank 1: exit code 3 with file, line, call and reason" {
  for launcher in $LAUNCHERS; do
    for example in $EXAMPLES; do
      FAULT=fail:ncclAllReduce:2:1 start "$launcher" 4 "$example"
      exits_with 3
      says '^\[rank 1\] main\.c:[0-9]+: ncclAllReduce\(.*\): unhandled system error'
    done
    FAULT=fail:ncclCommRegister:2:1 start "$launcher" 4 01_allreduce_ub
    exits_with 3
    says '^\[rank 1\] main\.c:[0-9]+: ncclCommRegister\(.*recv.*\): unhandled system error'
    FAULT=fail:ncclCommWindowRegister:1:1 start "$launcher" 4 02_allreduce_sm
    exits_with 3
    says '^\[rank 1\] main\.c:[0-9]+: ncclCommWindowRegister\(.*\): unhandled system error'
    FAULT=fail:cudaMalloc:1:1 start "$launcher" 4 01_allreduce_ub
    exits_with 3
    says '^\[rank 1\] verify\.c:[0-9]+: cudaMalloc\(.*\): out of memory'
  done
}

@test "every call that fails is noticed, first to last, on the last rank" {
  local call
  for call in cudaSetDevice cudaMemGetInfo ncclCommInitRank cudaStreamCreate ncclMemAlloc \
    ncclCommRegister cudaMalloc cudaMemsetAsync cudaStreamSynchronize cudaMemcpyAsync \
    ncclCommDeregister ncclMemFree cudaFree cudaStreamDestroy ncclCommFinalize ncclCommDestroy; do
    FAULT=fail:$call:1:2 start pthread 3 01_allreduce_ub --count 100
    exits_with 3
    says "^\[rank 2\] [a-z_]+\.c:[0-9]+: $call\(.*\): "
  done
}

@test "every call that fails is noticed in 04 too" {
  local call
  make_variant 04_sparse_allreduce pthread
  for call in cudaSetDevice cudaMemGetInfo ncclCommInitRank cudaStreamCreate cudaStreamCreateWithFlags cudaMalloc \
    ncclMemAlloc ncclAllGather ncclAllReduce cudaMemsetAsync cudaMemcpyAsync cudaEventRecord \
    cudaEventSynchronize cudaStreamSynchronize ncclCommFinalize; do
    FAULT=fail:$call:1:2 start pthread 3 04_sparse_allreduce --count 200 --steps 2 --algorithm oktopk
    exits_with 3
    says "^\[rank 2\] [a-z_]+\.c:[0-9]+: "
  done
  for call in ncclGroupStart ncclSend ncclRecv ncclGroupEnd; do
    FAULT=fail:$call:1:2 start pthread 3 04_sparse_allreduce --count 200 --steps 2 --algorithm oktopk --exchange sendrecv
    exits_with 3
    says "^\[rank 2\] [a-z_]+\.c:[0-9]+: "
  done
}

hang() { # hang LAUNCHER RANK CALL STEP
  SECONDS=0
  FAULT=hang:$3:1:$2 start "$1" 4 01_allreduce_ub --timeout 2
  exits_with 4
  [ $SECONDS -le 12 ] || { echo "took $SECONDS s" && show; }
  says "^\[rank $2\] no progress for [0-9]+ s in step: $4"
}

@test "pthread: a hung rank: exit code 4 within the timeout, with its step" {
  hang pthread 1 ncclAllReduce "STEP 6"
  hang pthread 0 ncclCommDeregister "STEP 8"
}

@test "MPI: a hung rank: exit code 4 within the timeout, with its step" {
  hang mpi 1 ncclAllReduce "STEP 6"
  hang mpi 0 ncclCommInitRank "STEP 2"
}

@test "a hung rank is noticed after the work too" {
  hang pthread 3 ncclCommDestroy "STEP 8"
}

@test "MPI: a stopped rank before, between and after the steps: exit code 4 within the timeout" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  local call rank step try
  while read -r call rank step; do
    for try in 1 2; do # mpirun of Open MPI 4 may hang itself when all ranks have ended: once in a few hundred jobs
      SECONDS=0
      FAULT=stop:$call:1:$rank start mpi 3 01_allreduce_ub --timeout 2 --count 100
      [ "$code" = 137 ] || break # not killed with mpirun
    done
    exits_with 4
    [ $SECONDS -le 15 ] || { echo "took $SECONDS s" && show; }
    says "^\[rank 2\] no progress for [0-9]+ s in step: $step"
  done <<'ROWS'
ncclGetVersion 1 options
cudaGetDeviceCount 0 placement
MPI_Finalize 1 end of the job
ROWS
}

@test "stdout that nobody reads: exit code 4 within the timeout" {
  local launcher
  mkfifo "$WORK/pipe"
  exec 7<>"$WORK/pipe"
  head -c 65536 /dev/zero >&7 # full
  for launcher in $LAUNCHERS; do
    SECONDS=0 code=0
    NTHREADS=2 timeout -k 5 60 "$(program_path 01_allreduce_ub "$launcher")" -T 1 >"$WORK/pipe" 2>"$WORK/err" || code=$?
    : >"$WORK/out"
    exits_with 4
    [ $SECONDS -le 15 ] || { echo "took $SECONDS s" && show; }
    says '^\[rank 0\] no progress for [0-9]+ s in step: '
  done
  exec 7>&-
}

@test "a killed rank: a failing exit, nobody and nothing left behind" {
  local mark=$((10000 + RANDOM)) # a harmless value by which the processes are known
  for launcher in $LAUNCHERS; do
    for call in ncclCommInitRank ncclAllReduce ncclMemFree; do
      find /dev/shm /tmp -maxdepth 1 | sort >"$WORK/before"
      FAULT=kill:$call:1:1 start "$launcher" 4 01_allreduce_ub --timeout 60 --count $mark
      fails_at_once
      nobody_left "$mark"
      # other programs come and go: only what stays, and of our own names, counts
      find /dev/shm /tmp -maxdepth 1 | sort >"$WORK/after"
      comm -13 "$WORK/before" "$WORK/after" >"$WORK/new"
      if grep -iE 'standin|nccl|allreduce' "$WORK/new"; then false; fi
      [ -z "$(find "$WORK/tmp" -type f -print -quit)" ]
    done
  done
}

@test "mpirun that is ended takes its ranks with it" {
  local mark=$((200000 + RANDOM * 3))
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  # shellcheck disable=SC2016 # for the inner bash
  timeout 2 bash -c '. "$0" && mpi_run "$@"' "$TOP/scripts/lib.sh" 2 \
    env "LD_PRELOAD=$FAULT_FOLDER/fault.so" FAULT=hang:ncclAllReduce:1:1 \
    "$(program_path 01_allreduce_ub mpi)" --timeout 60 --count $mark >/dev/null 2>&1 || code=$?
  [ "$code" = 124 ]
  nobody_left "$mark"
}

@test "the stand-in on a host without memory: one line that says so, exit code 3" {
  make_variant 03_alltoallv_sm pthread
  make_variant 04_sparse_allreduce pthread
  FAULT=fail:pthread_create:1:1 start pthread 2 01_allreduce_ub
  exits_with 3
  one_line '^\[rank 1\] main.c:[0-9]+: cudaStreamCreate\(&stream\): out of memory$'
  for n in {1..12}; do # until it is that of a communicator that is split, which one rank makes for all
    FAULT=fail:memfd_create:$n:0 start pthread 2 03_alltoallv_sm
    exits_with 3
    says_not 'unique id'
    if grep -q ncclCommSplit "$WORK/err"; then break; fi
  done
  says '^\[rank [01]\] .*ncclCommSplit\(.*\): no shared memory for a communicator\)$'
  # where no call has an error for it
  if [[ $LAUNCHERS == *mpi* ]]; then
    FAULT=fail:mmap:1:1 start mpi 2 01_allreduce_ub
    exits_with 3
    says '^CPU stand-in: the host has no memory for what another rank shares; allowed: .*ulimit -v\)$'
  fi
  FAULT=fail:pthread_create:2:1 NTHREADS=2 timeout 60 env LD_PRELOAD="$FAULT_FOLDER/fault.so" \
    "$TOP/build/cpu-pthread/sparse_training" --epochs 1 >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 3
  one_line '^CPU stand-in: the host has no memory for the thread of a stream; allowed: .*ulimit -v\)$'
}

@test "a FAULT that means nothing is refused" {
  for FAULT in x:y break:ncclAllReduce:1:1 fail:ncclNothing:1:1 fail:ncclAllReduce:0:1 \
    fail:ncclAllReduce:1:-1 corrupt:ncclMemAlloc:1:1 fail:ncclAllReduce:1:1:2x; do
    start pthread 2 01_allreduce_ub
    exits_with 2
    one_line "^fault: FAULT='.*'; allowed: "
  done
}
