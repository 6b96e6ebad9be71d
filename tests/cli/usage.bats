# SPDX-License-Identifier: Apache-2.0
# What a user can do wrong, as far as it takes more than a row of cases/common.tsv.
# shellcheck disable=SC2034 # the variable code is read by the helper
load helper

# refused CODE TEXT: nothing on stdout, one line that begins with the program's name
refused() {
  exits_with "$1"
  prints_nothing
  one_line "^allreduce_ub: .*$2"
}

# two_jobs "COMMAND OF RANK 0" "OF RANK 1"
two_jobs() {
  code=0
  # shellcheck disable=SC2086 # several words
  mpi_job 1 $1 : -np 1 $2 >"$WORK/out" 2>"$WORK/err" || code=$?
}

@test "MPI: ranks with different options, memory, NCCL or builds are refused, not left hanging" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  local program
  program=$(program_path 01_allreduce_ub mpi)
  for pair in "--help;--count 10" "--count 10;--count 20" "--count 10;--count 10 --digest"; do
    two_jobs "$program ${pair%;*}" "$program ${pair#*;}"
    refused 2 'rank 1 has other options than rank 0; give all ranks the same$'
  done
  two_jobs "$program" "env CPU_STANDIN_MEMORY=8388608 $program"
  exits_with 2
  one_line '^allreduce_ub: rank 1 needs 8.0 MiB of device memory; allowed: up to 7.9 MiB'
  two_jobs "$program" "env CPU_STANDIN_NCCL_VERSION=21000 $program"
  refused 77 'runtime is version 2\.10\.0, older than the headers .*, on rank 1; allowed: '
  two_jobs "$program" "$(program_path 01_allreduce_ub pthread)"
  exits_with 2
  says '^allreduce_ub: started by mpirun, but built without MPI=1; build with .make MPI=1., or run it without mpirun$'
}

@test "a newline in an argument, a path or NTHREADS does not make two lines; nor does an empty NTHREADS pass" {
  start pthread 2 01_allreduce_ub $'stray\nmore'
  refused 2 "stray argument 'stray.more'"
  start pthread 2 01_allreduce_ub --bench -J "$WORK/"$'no\nfolder/x.csv'
  refused 2 "cannot write $WORK/no.folder/x.csv: No such file"
  for value in $'2\n3' ""; do
    start pthread "$value" 01_allreduce_ub
    refused 2 "NTHREADS='.*' is not a number"
  done
}

@test "MPI: a scheduler shows every rank a GPU of its own" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  code=0
  # shellcheck disable=SC2016 # for the inner shell
  CPU_STANDIN_DEVICES=1 mpi_job 3 bash -c 'CPU_STANDIN_PCI_BUS=$((OMPI_COMM_WORLD_RANK + 3)) exec "$0"' \
    "$(program_path 01_allreduce_ub mpi)" >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 0
  diff <("$TOP/tests/golden.sh" 01_allreduce_ub 3 | sed 's/using device ./using device 0/') "$WORK/out"
}

@test "stdout that cannot be written: exit code 3" {
  for launcher in $LAUNCHERS; do
    for options in "" --help; do
      code=0
      # shellcheck disable=SC2086
      "$(program_path 01_allreduce_ub "$launcher")" $options >/dev/full 2>"$WORK/err" || code=$?
      : >"$WORK/out"
      exits_with 3
      says 'cannot write to standard output: No space left'
    done
  done
}
