# SPDX-License-Identifier: Apache-2.0
# What a user can do wrong: one line that says what, and the documented exit code.
# shellcheck disable=SC2034 # the variable code is read by the helper
load helper

refused() { # refused CODE TEXT: nothing on stdout, one line that begins with the program's name
  exits_with "$1"
  prints_nothing
  one_line "^allreduce_ub: .*$2"
}

bad_options() { # bad_options LAUNCHER RANKS
  local options text
  while IFS='|' read -r options text; do
    # shellcheck disable=SC2086 # several words
    start "$1" "$2" 01_allreduce_ub $options
    refused 2 "$text"
  done <<'ROWS'
--nonsense|option '--nonsense' is unknown
-x|option '-x' is unknown
--bench=1|takes no argument
--count|option '--count' needs an argument
-d|option '-d' needs an argument
stray|stray argument 'stray'
--digest stray more|stray argument 'stray'
--count 12x|'12x' is not a number; allowed: 
--count 0|0 is out of range; allowed: 1 to
--count -1|-1 is out of range
--count 99999999999999999999|99999999999999999999 is out of range
--count 9999999999999G|9999999999999G is out of range
--count 1.5|'1.5' is not a number
--timeout 0|0 is out of range; allowed: 1 to 86400
--timeout 1h|'1h' is not a number; allowed: a whole number$
--bench -f 1|1 is out of range; allowed: 2 to
--bench -b 2M -e 1M|larger than --maxbytes
--bench -b 1T|'1T' is not a number
--bench --count 5|--count is not for --bench
--datatype quad|unknown type 'quad'; allowed: float double half bfloat16 int32
--datatype uint8|unknown type 'uint8'
--output x.json|--output is for --bench only; allowed: both together$
-n 5|--iters is for --bench only; allowed: both together$
--bench --output x.txt|has a wrong ending; allowed: .json and .csv
ROWS
}

@test "pthread: bad options" { bad_options pthread 2; }

@test "MPI: bad options are said once" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  bad_options mpi -
  for options in --nonsense stray "--count 0" "-d quad"; do
    # shellcheck disable=SC2086
    start mpi 3 01_allreduce_ub $options
    exits_with 2
    prints_nothing
    [ "$(grep -c '^allreduce_ub: ' "$WORK/err")" = 1 ] || show
  done
}

@test "MPI: ranks with different options are refused, not left hanging" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  program=$(program_path 01_allreduce_ub mpi)
  for pair in "--help;--count 10" "--count 10;--version" "--count 10;--count 20" "--count 10;--digest" \
    "--count 10;--nonsense"; do
    code=0
    # shellcheck disable=SC2086 # several words
    mpi_job 1 "$program" ${pair%;*} : -np 1 "$program" ${pair#*;} >"$WORK/out" 2>"$WORK/err" || code=$?
    exits_with 2
    prints_nothing
    if [[ $pair = *nonsense ]]; then
      one_line "^allreduce_ub: option '--nonsense' is unknown or ambiguous; allowed: see --help$"
    else
      one_line '^allreduce_ub: the options of rank 1 are not those of rank 0; allowed: the same on all ranks$'
    fi
  done
}

@test "MPI: options of 03 that differ between ranks, and a matrix that is another file there" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  make_variant 03_alltoallv_sm mpi
  local program
  program=$(program_path 03_alltoallv_sm mpi)
  mkdir "$WORK/a" "$WORK/b"
  printf '0 8\n12 0\n' >"$WORK/a/matrix"
  printf '0 8\n12000000 0\n' >"$WORK/b/matrix"
  for pair in "--bench;" ";--bench" "--bench -e 1K;--bench -e 2K" "--matrix $WORK/a/matrix;--matrix $WORK/b/matrix" \
    "--matrix $WORK/a/matrix;" "--matrix $WORK/none;--matrix $WORK/a/matrix"; do
    code=0
    # shellcheck disable=SC2086 # several words
    mpi_job 1 "$program" ${pair%;*} : -np 1 "$program" ${pair#*;} >"$WORK/out" 2>"$WORK/err" || code=$?
    exits_with 2
    prints_nothing
    one_line '^alltoallv_sm: the options of rank 1 are not those of rank 0; allowed: the same on all ranks$'
  done
  # rank 0's counts
  code=0
  mpi_job 1 -wdir "$WORK/a" "$program" --matrix matrix : -np 1 -wdir "$WORK/b" "$program" --matrix matrix \
    >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 0
  prints 'Received from rank 1: 3 elements at offset 0$'
}

@test "03 --matrix from a pipe, and from one that nobody writes" {
  local launcher
  for launcher in $LAUNCHERS; do
    make_variant 03_alltoallv_sm "$launcher"
    mkfifo "$WORK/fifo.$launcher"
    printf '4 8\n12 0\n' >"$WORK/fifo.$launcher" &
    start "$launcher" 2 03_alltoallv_sm --matrix "$WORK/fifo.$launcher"
    exits_with 0
    prints 'Received from rank 1: 3 elements at offset 1$'
    start "$launcher" 2 03_alltoallv_sm --matrix "$WORK/fifo.$launcher" -T 3
    exits_with 2
    one_line "^alltoallv_sm: --matrix: nobody writes to the pipe $WORK/fifo.$launcher; allowed: a matrix"
    prints_nothing
  done
  # a writer that takes its time is waited for longer than none, but not for ever
  (printf '4 8\n' && sleep 5.3 && printf '12 0\n') >"$WORK/fifo.pthread" &
  start pthread 2 03_alltoallv_sm --matrix "$WORK/fifo.pthread" -T 11
  exits_with 0
  sleep 10 >"$WORK/fifo.pthread" &
  start pthread 2 03_alltoallv_sm --matrix "$WORK/fifo.pthread" -T 3
  exits_with 2
  one_line "^alltoallv_sm: --matrix: the writer of $WORK/fifo.pthread sends nothing; allowed: a matrix"
}

@test "one file for two options: exit code 2, and it stays as it was" {
  make_variant 03_alltoallv_sm pthread
  printf '0 8\n8 0\n' >"$WORK/matrix.csv"
  ln -s matrix.csv "$WORK/link.csv"
  start pthread 2 03_alltoallv_sm --bench --matrix "$WORK/matrix.csv" -J "$WORK/link.csv"
  exits_with 2
  one_line '^alltoallv_sm: --output \(-J\) is the file of --matrix: .*/link.csv and .*/matrix.csv; allowed: another one$'
  [ "$(cat "$WORK/matrix.csv")" = $'0 8\n8 0' ]
  ln -s out "$WORK/out.csv"
  start pthread 2 01_allreduce_ub --bench -e 1K -J "$WORK/out.csv" # stdout is in $WORK/out
  exits_with 2
  one_line '^allreduce_ub: --output \(-J\) is the file that standard output goes to: .*/out.csv; allowed: another one$'
}

@test "a newline in an argument, a path or NTHREADS does not make two lines" {
  start pthread 2 01_allreduce_ub $'stray\nmore'
  refused 2 "stray argument 'stray.more'"
  start pthread 2 01_allreduce_ub --bench -J "$WORK/"$'no\nfolder/x.csv'
  refused 2 "cannot write $WORK/no.folder/x.csv: No such file"
  start pthread $'2\n3' 01_allreduce_ub
  refused 2 "NTHREADS='2.3' is not a number"
}

@test "NTHREADS that is not a number of GPUs" {
  for value in 0 -1 -99999999999999999999 99999999999999999999 65 5000000000; do
    start pthread "$value" 01_allreduce_ub
    refused 2 "NTHREADS='$value' is out of range; allowed: 1 to 64"
  done
  for value in "" x 4x 2.0 0x2 "1 2"; do
    start pthread "$value" 01_allreduce_ub
    refused 2 "NTHREADS='$value' is not a number; allowed: 1 to 64"
  done
  CPU_STANDIN_DEVICES=2 start pthread 3 01_allreduce_ub
  refused 2 "NTHREADS='3' is out of range; allowed: 1 to 2"
}

@test "NTHREADS means nothing under MPI" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  NTHREADS=x start mpi 2 01_allreduce_ub
  exits_with 0
}

@test "no GPU: exit code 77" {
  for launcher in $LAUNCHERS; do
    CPU_STANDIN_DEVICES=0 start "$launcher" - 01_allreduce_ub
    refused 77 "no GPU: "
  done
}

@test "MPI: more ranks than GPUs, two ranks on one GPU: exit code 77" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  CPU_STANDIN_DEVICES=2 start mpi 3 01_allreduce_ub
  exits_with 77
  prints_nothing
  says '^allreduce_ub: rank 2 is number 3 on its host, which shows 2 GPUs; allowed: one rank per GPU'
  CPU_STANDIN_DEVICES=1 start mpi 2 01_allreduce_ub
  exits_with 77
  prints_nothing
  says '^allreduce_ub: ranks 0 and 1 have the same GPU; allowed: one rank per GPU'
}

@test "MPI: ranks share GPUs where NCCL allows it, and memory is divided among them" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  export CPU_STANDIN_DEVICES=2 CPU_STANDIN_NCCL_VERSION=23000 NCCL_MULTI_RANK_GPU_ENABLE=1
  start mpi 5 01_allreduce_ub
  exits_with 0
  diff <("$TOP/tests/golden.sh" 01_allreduce_ub 5 2) "$WORK/out"
  says '^note: several ranks take turns on a GPU: times say nothing'
  export CPU_STANDIN_MEMORY=$((12 << 20)) # a rank needs 8 MiB
  start mpi 4 01_allreduce_ub
  exits_with 2
  says 'rank 0 needs 8.0 MiB of device memory; allowed: up to 5\.'
  start mpi 2 01_allreduce_ub
  exits_with 0
  says_not 'take turns'
  CPU_STANDIN_NCCL_VERSION=22999 start mpi 3 01_allreduce_ub
  refused 77 'rank 2 is number 3 on its host'
  NCCL_MULTI_RANK_GPU_ENABLE=0 start mpi 3 01_allreduce_ub
  refused 77 'rank 2 is number 3 on its host'
}

@test "MPI: a scheduler that shows every rank a GPU of its own" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  code=0
  # shellcheck disable=SC2016 # for the inner shell
  CPU_STANDIN_DEVICES=1 mpi_job 3 bash -c 'CPU_STANDIN_PCI_BUS=$((OMPI_COMM_WORLD_RANK + 3)) exec "$0"' \
    "$(program_path 01_allreduce_ub mpi)" >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 0
  diff <("$TOP/tests/golden.sh" 01_allreduce_ub 3 | sed 's/using device ./using device 0/') "$WORK/out"
}

@test "MPI: without mpirun one rank runs and says so" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  start mpi - 01_allreduce_ub
  exits_with 0
  diff <("$TOP/tests/golden.sh" 01_allreduce_ub 1) "$WORK/out"
  says '^note: .*without mpirun.* one rank'
}

@test "a pthread build under mpirun: one line, exit code 2" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  for ranks in 1 3; do
    code=0
    mpi_job $ranks "$(program_path 01_allreduce_ub pthread)" >"$WORK/out" 2>"$WORK/err" || code=$?
    exits_with 2
    prints_nothing
    says 'started by mpirun, but built without MPI=1; allowed: '
    [ "$(grep -c '^allreduce_ub: ' "$WORK/err")" = 1 ] || show
  done
  # rank 0 is another build, and waits: the other one speaks
  code=0
  mpi_job 1 "$(program_path 01_allreduce_ub mpi)" : -np 1 "$(program_path 01_allreduce_ub pthread)" \
    >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 2
  says '^allreduce_ub: started by mpirun, but built without MPI=1; allowed: '
}

@test "a size that does not fit in the device's memory: exit code 2, before a communicator" {
  for launcher in $LAUNCHERS; do
    for example in $EXAMPLES; do
      CPU_STANDIN_MEMORY=8388608 start "$launcher" 2 "$example"
      exits_with 2
      one_line "^$(program_of "$example"): rank 0 needs .* MiB of device memory; allowed: up to .* MiB"
      prints_not 'communicator initialized'
    done
  done
  CPU_STANDIN_MEMORY=8388608 start pthread 2 01_allreduce_ub --bench -e 4M
  exits_with 2
  start pthread 1 01_allreduce_ub --count 1024G -d double
  exits_with 2
  # what the buffers leave must do for the libraries too
  make_variant 03_alltoallv_sm pthread
  make_variant 04_sparse_allreduce pthread
  for arguments in "03_alltoallv_sm --count 100" "03_alltoallv_sm --bench -e 1K" "04_sparse_allreduce --bench"; do
    # shellcheck disable=SC2086 # several words
    CPU_STANDIN_MEMORY=160000 start pthread 2 $arguments
    exits_with 2
    one_line '^[a-z_]+: rank 0 needs .* MiB of device memory; allowed: up to 0.2 MiB'
    prints_not 'communicator initialized'
  done
}

@test "memory on one rank only too small: all leave" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  program=$(program_path 01_allreduce_ub mpi) code=0
  mpi_job 1 "$program" : -np 1 env CPU_STANDIN_MEMORY=8388608 "$program" >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 2
  one_line '^allreduce_ub: rank 1 needs 8.0 MiB of device memory; allowed: up to 7.9 MiB'
}

@test "an NCCL runtime older than the headers: exit code 77" {
  for launcher in $LAUNCHERS; do
    CPU_STANDIN_NCCL_VERSION=21805 start "$launcher" - 01_allreduce_ub
    refused 77 'runtime is version 2\.18\.5, older than the headers .*; allowed: '
  done
  if [[ $LAUNCHERS == *mpi* ]]; then # on one host only
    program=$(program_path 01_allreduce_ub mpi) code=0
    mpi_job 1 "$program" : -np 1 env CPU_STANDIN_NCCL_VERSION=21000 "$program" >"$WORK/out" 2>"$WORK/err" || code=$?
    refused 77 'runtime is version 2\.10\.0, older than the headers .*, on rank 1; allowed: '
  fi
  CPU_STANDIN_NCCL_VERSION=23007 start pthread 2 01_allreduce_ub
  exits_with 0
}

@test "stdout that cannot be written: exit code 3" {
  for launcher in $LAUNCHERS; do
    for options in "" --help --version "--bench -e 1K"; do
      code=0
      # shellcheck disable=SC2086
      "$(program_path 01_allreduce_ub "$launcher")" $options >/dev/full 2>"$WORK/err" || code=$?
      : >"$WORK/out"
      exits_with 3
      says 'cannot write to standard output|No space left'
      code=0 # closed
      # shellcheck disable=SC2086
      "$(program_path 01_allreduce_ub "$launcher")" $options >&- 2>"$WORK/err" || code=$?
      exits_with 3
      says 'cannot write to standard output: Bad file descriptor'
      [ "$launcher" = pthread ] || continue # MPI itself needs files
      code=0 # a limit on the size of files, below that of the text
      # shellcheck disable=SC2086
      text=$( (ulimit -f 0 && "$(program_path 01_allreduce_ub "$launcher")" $options >"$WORK/limited") 2>&1) || code=$?
      echo "$text" >"$WORK/err"
      exits_with 3
      says 'cannot write to standard output: File too large|no shared memory'
    done
  done
}

@test "--help and --version" {
  for launcher in $LAUNCHERS; do
    for example in $EXAMPLES; do
      start "$launcher" - "$example" --help
      exits_with 0
      prints '^Usage: '
      for option in --count --datatype --bench --minbytes --maxbytes --stepfactor --iters \
        --warmup_iters --cudagraph --output --timeout --digest --version; do
        prints "^  .*$option"
      done
      prints 'Exit codes'
      says_not '.'
      start "$launcher" - "$example" --version
      exits_with 0
      prints "^$(program_of "$example") [0-9]"
      prints '^NCCL header 2\.28\.9, runtime 2\.28\.9'
      prints '^CUDA header '
      prints '^launcher: (pthread|MPI)'
    done
  done
  start pthread - 02_allreduce_sm --help
  prints '--require-symmetric'
}

@test "a closed stderr does no harm" {
  CPU_STANDIN_QUIET=0 NTHREADS=2 timeout 30 "$(program_path 01_allreduce_ub pthread)" >"$WORK/out" 2>&-
  prints '^Results verified correctly$'
}
