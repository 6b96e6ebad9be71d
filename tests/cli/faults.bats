# SPDX-License-Identifier: Apache-2.0
# A rank that dies, stops or is not read: the program has to say so and has to end. What fails, hangs or is wrong in
# one call is a row of cases/common.tsv.
# shellcheck disable=SC2034 # the variable code is read by the helper
load helper

@test "stdout that nobody reads: exit code 4; a reader that has gone, or none at all: 3" {
  mkfifo "$WORK/pipe"
  exec 7<>"$WORK/pipe"
  # full
  head -c 65536 /dev/zero >&7
  code=0
  NTHREADS=2 timeout -k 5 600 "$(program_path 01_allreduce_ub pthread)" -T 2 >"$WORK/pipe" 2>"$WORK/err" || code=$?
  : >"$WORK/out"
  exits_with 4
  says '^\[rank 0\] no progress for [0-9]+ s in step: '
  exec 8>"$WORK/pipe" 7>&-
  code=0
  NTHREADS=2 "$(program_path 01_allreduce_ub pthread)" >&8 2>"$WORK/err" || code=$?
  exits_with 3
  says '^\[rank 0\] cannot write to standard output: Broken pipe'
  # and what is printed goes into no other file
  code=0
  NTHREADS=1 "$(program_path 04_sparse_allreduce pthread)" --count 100 --algorithm topkA --results "$WORK/sums.npy" \
    >&- 2>"$WORK/err" || code=$?
  exits_with 3
  [ ! -e "$WORK/sums.npy" ]
}

@test "a silent run says on a terminal that it goes on, and nowhere else" {
  have script || skip "no script"
  local program job
  program=$(program_path 01_allreduce_ub pthread)
  job="NTHREADS=2 FAULT=hang:ncclAllReduce:1:1 LD_PRELOAD=$FAULT_FOLDER/fault.so $program -T 8 >$WORK/out"
  script -qec "$job" /dev/null >"$WORK/err" </dev/null || code=$?
  exits_with 4
  says '^still in step: STEP 6: .*, 5 s'
  sh -c "$job 2>$WORK/err" || true
  says_not '^still in step'
}

@test "a killed rank: a failing exit, nobody and nothing left behind" {
  # a harmless value by which the processes are known
  local mark=$((10000 + RANDOM))
  for launcher in $LAUNCHERS; do
    for call in ncclCommInitRank ncclMemFree; do
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
