#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks every example on the GPUs of this machine, under both launchers.
#
#   scripts/gpu_check.sh [quick|full] [EXAMPLE...]     (default: full, every example; 02 is 02_allreduce_sm)
#
# Needs bash, make, gcc, g++ (for nvcc), nvcc and an MPI, and installs nothing; what wants more (compute-sanitizer,
# python3 with PyTorch) is skipped without it. NCCL is that of NCCL_HOME, or of the system.
# quick: the largest number of ranks only. Ends with `N passed, N failed, N skipped`.
#
# Without enough GPUs: NP=4 NCCL_MULTI_RANK_GPU_ENABLE=1 checks with up to four processes, which take turns on
# the GPUs there are; threads cannot. NCCL has to be 2.30 or later. It takes several times as long.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$(realpath "$0")")/lib.sh"
mode=full
case ${1:-} in
quick | full) mode=$1 && shift ;;
-h | --help) show_help ;;
-*) die "unknown option '$1'; allowed: quick, full, EXAMPLE..." ;;
esac
choose_examples "$@"
cd "$TOP" || exit
prepare no "${RUN_NEEDS[@]}" g++
have_mpi && have g++ || exit 1

unset NTHREADS
export NCCL_DEBUG_FILE=/dev/stderr "${MPI_SETTINGS[@]}" # NCCL logs to stdout otherwise
gpus=$(gpu_count) launchers=(pthread mpi)
most=$gpus # ranks
if [ "${NCCL_MULTI_RANK_GPU_ENABLE:-}" = 1 ]; then
  launchers=(mpi) most=${NP:-$gpus}
  [[ $most =~ ^[1-9][0-9]?$ && $most -le 64 ]] || die "NP='$most' is not a number of ranks; allowed: 1 to 64"
fi

# ---- what checks are made of ---------------------------------------------------------------------
# launch EXAMPLE|PROGRAM|tests/gpu/NAME [OPTIONS...]: with $ranks ranks by $launcher, for $limit seconds at most. What is
# in `front` stands before the program, but not before mpirun or timeout.
launcher=mpi ranks=$most front=() limit=$((most > gpus ? 600 : 150))
launch() {
  local program
  program=$(built_program "$1" gpu "$launcher")
  shift
  if [ "$launcher" = mpi ]; then
    timeout "$limit" "$(mpirun_command)" -np "$ranks" "${front[@]}" "$program" "$@"
  else
    NTHREADS=$ranks timeout "$limit" "${front[@]}" "$program" "$@"
  fi
}
launch_with_fault() { # launch_with_fault FAULT EXAMPLE [OPTIONS...]: see tests/fault.c
  local front=(env "FAULT=$1" "LD_PRELOAD=$logs/fault.so")
  launch "${@:2}"
}
simulated_hosts() { # simulated_hosts HOSTS EXAMPLE [OPTIONS...]: to NCCL, ranks of another NCCL_HOSTID are on another host
  # shellcheck disable=SC2016 # for the shell of each rank
  local front=(bash -c 'export NCCL_HOSTID=$((OMPI_COMM_WORLD_RANK * $0 / $1)) && exec "${@:2}"' "$1" "$ranks")
  launch "${@:2}"
}
sanitize() { # sanitize TOOL EXAMPLE [OPTIONS...]
  local limit=200 front=(compute-sanitizer --tool "$1" --error-exitcode 9)
  have compute-sanitizer || { echo "no compute-sanitizer" && return 77; }
  [ "$1" != memcheck ] || front+=(--report-api-errors no) # NCCL probes with calls that may fail
  launch "${@:2}"
}

expect() { # expect CODE PATTERN COMMAND...: the command exits with CODE and prints the pattern
  local output code=0
  output=$("${@:3}" 2>&1) || code=$?
  echo "$output"
  echo "exit code $code, expected $1 and '$2'"
  [ $code -eq "$1" ] && grep -qE -- "$2" <<<"$output"
}
killed() { # the command ends by itself, with neither success nor a refusal to run
  local code=0
  "$@" || code=$?
  echo "exit code $code"
  [[ ! $code =~ ^(0|2|77|124)$ ]]
}
golden() { # golden EXAMPLE [OPTIONS...]: stdout is exactly the expected block, exit code 0
  local output code=0
  output=$(launch "$@") || code=$?
  echo "exit code $code"
  diff <(tests/golden.sh "$1" "$ranks" "$gpus") <(tests/golden.sh --mask "$1" <<<"$output") && [ $code = 0 ]
}
bench() { # bench EXAMPLE [OPTIONS...]: nothing is wrong, in the table's last column
  local file
  file=$(mktemp "$logs/XXXXXX.csv")
  launch "$@" --bench -J "$file" && awk -F, 'NR > 1 && $NF != 0 { print; bad = 1 } END { exit bad || NR < 2 }' "$file"
}
digest() { launch "$@" --digest | grep '^Digest: ' || echo "none: $*"; }
same_digest() { # same_digest COMMAND...: it prints digests, all the same
  local digests
  digests=$("$@")
  echo "$digests"
  [[ $digests == Digest:* ]] && [ "$(sort -u <<<"$digests" | wc -l)" = 1 ]
}
allreduce_digests() {
  for launcher in "${launchers[@]}"; do digest 01_allreduce_ub && digest 02_allreduce_sm; done
}
sparse_digests() { # whatever moves the entries and in which order
  local job=(04_sparse_allreduce --count 64K --steps 40 --verify off) options
  for options in "" "--throttle 1" "--throttle 8 --exchange sendrecv" "--exchange sendrecv --balance always" \
    "--result entries" "--result entries --exchange sendrecv"; do
    # shellcheck disable=SC2086 # words
    digest "${job[@]}" $options
  done
  for launcher in "${launchers[@]}"; do NCCL_PROTO=Simple digest "${job[@]}" && NCCL_ALGO=Ring digest "${job[@]}"; done
}
training_digests() { # of all weights after every epoch
  for launcher in "${launchers[@]}"; do
    for exchange in auto sendrecv; do
      digest sparse_training --algorithm topkA,gtopk,oktopk,gaussiankSA --epochs 3 --exchange $exchange
    done
  done
}

# ---- builds --------------------------------------------------------------------------------------
of() { [[ " ${examples[*]} " == *" $1"* ]]; } # of 02: whether that example is checked
tests=()                                      # folders of tests/gpu
for folder in tests/gpu/*/; do
  name=$(basename "$folder")
  case $name in
  allreduce*) of 01 || of 02 || continue ;;
  alltoallv*) of 03 || continue ;;
  sparse*) of 04 || continue ;;
  esac
  tests+=("$name")
done
build() { make -s -k -j "$lanes" MPI="${1/pthread/}" "${examples[@]}" "${tests[@]/#/build/gpu-$1/tests/}"; }
# 04's hook for PyTorch takes PyTorch's NCCL, so it has a build of its own.
build_pytorch() {
  local home
  python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || { echo "no PyTorch with CUDA in python3" && return 77; }
  home=$(python3 -B 04_sparse_allreduce/pytorch/sparse_allreduce_torch.py) && mkdir "$logs/pytorch" &&
    cp -r Makefile common tests 0* "$logs/pytorch" &&
    make -s -j "$lanes" -C "$logs/pytorch" NCCL_HOME="$home" build/gpu-pthread/libsparse_allreduce.so
}
pytorch_job() { # pytorch_job SCRIPT [ARGUMENTS]: on two GPUs, with that library
  local library=$logs/pytorch/build/gpu-pthread/libsparse_allreduce.so
  [ -f "$library" ] || { echo "no library for PyTorch, see its build" && return 77; }
  OMP_NUM_THREADS=4 PYTHONDONTWRITEBYTECODE=1 timeout 120 python3 -m torch.distributed.run --standalone \
    --nproc-per-node $((gpus > 1 ? 2 : 1)) "$1" --library "$library" "${@:2}"
}

# ---- the checks of each example --------------------------------------------------------------------
each() { # each NAME COMMAND...: with all launchers and numbers of ranks
  for launcher in "${launchers[@]}"; do
    for ranks in $rank_counts; do check "$1, $launcher $ranks" "${@:2}"; done
  done
  launcher=mpi ranks=$most
}

check_common() { # golden output on every number of ranks, no hang whatever happens
  local example=$1 large=(--count 900G) small=() few=() sweep=(-b 1K -e 1M -f 32 -n 5 -w 1 --repetitions 3) graph=(-G 1)
  [[ $example != 04* ]] ||
    large=(--count 4294967294 --density 1) small=(--count 64K) few=(--steps 6) sweep=(--count 100K --steps 8)
  each "golden $example" golden "$example" "${small[@]}"
  for launcher in "${launchers[@]}"; do
    [[ $launcher = mpi || $example = 0[12]* ]] || graph=() # refused
    check "bench $example, $launcher" bench "$example" "${sweep[@]}"
    check "bench in a graph $example, $launcher" bench "$example" "${sweep[@]}" "${graph[@]}"
    ranks=$some
    check "fault: failing call, $example $launcher" \
      expect 3 '\[rank .*(main\.c:[0-9]+: ncclMemAlloc|sparse_allreduce_create: unhandled system error)' \
      launch_with_fault fail:ncclMemAlloc:2:$((some > 1)) "$example"
    check "fault: hanging rank, $example $launcher" expect 4 "\[rank $victim\] no progress for .* STEP" \
      launch_with_fault hang:cudaStreamSynchronize:1:$victim "$example" -T 12
    check "fault: killed rank, $example $launcher" \
      killed launch_with_fault kill:cudaStreamSynchronize:2:$victim "$example" -T 20
    check "too large, $example $launcher" expect 2 'needs .* of device memory' launch "$example" "${large[@]}"
    ranks=$most graph=(-G 1)
  done
  [ "$mode" = quick ] || ranks=$pair check "memcheck $example" sanitize memcheck "$example" --count 1000 "${few[@]}"
  launcher=pthread ranks=$((gpus + 1)) check "more threads than GPUs, $example" expect 2 NTHREADS launch "$example"
  ranks=$((gpus + 1)) NCCL_MULTI_RANK_GPU_ENABLE='' \
    check "more processes than GPUs, $example" expect 77 'one rank per GPU' launch "$example"
  check "pthread build under mpirun, $example" expect 2 'built without MPI=1' \
    "$(mpirun_command)" -np "$some" "$(built_program "$example" gpu pthread)"
}

check_allreduce() {
  for launcher in "${launchers[@]}"; do
    for example in 01_allreduce_ub 02_allreduce_sm; do
      ! of $example || ranks=$some check "fault: wrong element, $example $launcher" expect 1 "\[rank $victim\].*element" \
        launch_with_fault corrupt:ncclAllReduce:2:$victim $example
    done
  done
  of 02 || return 0
  each "golden direct" golden 02_allreduce_sm --method direct
  launcher=pthread ranks=1
  check "several ranks on one GPU, wide lines" launch tests/gpu/allreduce_one_gpu --wide
  [ "$mode" = quick ] || check "memcheck, several ranks on one GPU" sanitize memcheck tests/gpu/allreduce_one_gpu --calls 8
  launcher=mpi ranks=$most
  ! of 01 || check "same digest" same_digest allreduce_digests
}

check_alltoallv() {
  local example=03_alltoallv_sm
  for pattern in halving unaligned random moe zero; do
    for method in sendrecv barrier lines copy-engine; do
      check "$method, $pattern" launch $example --method $method --pattern $pattern --count 1000003 -d int8
    done
  done
  check "wrong matrix" expect 2 'is not a number of bytes' launch $example --matrix README.md
  [ "$mode" = full ] || return 0
  launcher=pthread ranks=1 check "memcheck of 8 ranks on one GPU" \
    sanitize memcheck tests/gpu/alltoallv_ranks --rounds 1 --exchanges 8 --ranks 8
  check "10,000 exchanges at random" launch tests/gpu/alltoallv --cases 10000
  ranks=$pair check "pairs beyond 4 GiB" launch tests/gpu/alltoallv --large
  for method in sendrecv lsa; do
    ranks=$some check "cases AlltoAllV, --method $method" launch tests/gpu/alltoallv --method $method
    ranks=$some check "$method with device counts" launch $example --method ${method/sendrecv/lib-sendrecv} --device-counts
  done
  ranks=$pair check "racecheck $example" sanitize racecheck $example --pattern random
}

check_sparse() {
  local example=04_sparse_allreduce
  if [ "$mode" = full ]; then # the long ones first
    for tool in racecheck memcheck; do
      launcher=pthread ranks=1 check "$tool sparse operators" sanitize $tool tests/gpu/sparse --quick --repeats 10
    done
    check "as it comes, $example" golden $example
    launcher=pthread ranks=1 check "operators beyond 2^31 elements" launch tests/gpu/sparse --large
    check "1,000 steps of graph replay" launch tests/gpu/sparse_steps --cases 6 --steps 1000
    # lists so long that NCCL maps their memory when it is captured, see 04_sparse_allreduce/lib
    ranks=$pair check "gtopk in a graph" launch $example --bench -G 1 --algorithm gtopk --count 4M --density 0.05 --steps 8
    for hosts in 2 4; do
      ((hosts > most)) || check "$hosts simulated hosts, $example" simulated_hosts $hosts tests/gpu/sparse_steps --cases 40
    done
    ranks=$pair check "memcheck training" sanitize memcheck sparse_training --epochs 1 --batch 500 --algorithm dense,oktopk
  fi
  check "same bits, throttle and exchange" same_digest sparse_digests
  check "same bits, training" same_digest training_digests
  each training expect 0 'same weights after every epoch' launch sparse_training --epochs 5
  for launcher in "${launchers[@]}"; do
    check "results as entries, $launcher" launch $example --result entries --steps 34
    ranks=$some check "fault: wrong element, $example $launcher" expect 1 "\[rank $victim\] dense, step .* element" \
      launch_with_fault corrupt:ncclAllReduce:5:$victim $example --count 64K --algorithm dense
    [ "$most" = 1 ] || ranks=$some check "fault: late rank, sparse step, $launcher" launch tests/gpu/sparse_steps --late -T 100
  done
  [ "$most" = 1 ] || launcher=mpi ranks=$some \
    check "training: fault, a wrong average" expect 1 "dense, epoch 1: weight .* on rank 0 it is" \
    launch_with_fault corrupt:ncclAllReduce:9:$victim sparse_training --algorithm dense --epochs 2
}

# ---- all of it --------------------------------------------------------------------------------------
begin_checks 1
if [ "$gpus" = 0 ]; then
  check GPU sh -c 'echo "nvidia-smi shows none; scripts/test.sh is for machines without"; exit 77'
  end_checks
  exit
fi
rank_counts=$(seq 1 "$most")
[ "$mode" = full ] || rank_counts=$most
some=$((most < 4 ? most : 4))       # ranks of the fault cases
victim=$((some > 2 ? 2 : some - 1)) # not rank 0, which is the easy one
pair=$((most > 1 ? 2 : 1))

cores=$(nproc)
lanes=$((cores > 16 ? 16 : cores))
check "build for threads" build pthread
wait # they share objects
check "build for MPI" build mpi
check "build of tests/fault.c" gcc -shared -fPIC -O2 -D_GNU_SOURCE -o "$logs/fault.so" tests/fault.c \
  -isystem build/gpu/nccl_include -isystem "$(cuda_home)/include" -ldl
! of 04 || check "build for PyTorch" build_pytorch
wait
# Processes take turns on a GPU. Ranks that wait for each other in kernels need several turns for each
# exchange, so many runs at a time take longer than the same runs a few at a time.
lanes=$((most > gpus ? 2 : cores < 24 || gpus < 4 ? 4 : 6))

if [ "${examples[*]}" = "$(examples | xargs)" ]; then # in copies of what is built; these last longest
  check "commands of the pages, 04" tests/readme_commands.sh 04_*/{,*/}*.md
  check "commands of the pages, 01 to 03" tests/readme_commands.sh 0[1-3]_*/{,*/}*.md
  check "commands of the pages, others" tests/readme_commands.sh ./*.md docs/*.md
fi
! of 04 || check_sparse
! of 03 || check_alltoallv
! { of 01 || of 02; } || check_allreduce
only_one=" $(make -s print-GPU_TESTS) sparse " # of kernels or operators alone: no ranks
for name in "${tests[@]}"; do
  if [[ $only_one == *" $name "* ]]; then
    launcher=pthread ranks=1 check "cases $name" launch "tests/gpu/$name"
  elif [ "$name" = sparse_steps ]; then
    for ranks in $rank_counts; do # other jobs for each
      for launcher in "${launchers[@]}"; do
        check "random jobs, $launcher $ranks" launch tests/gpu/sparse_steps --cases 60 --seed "${ranks}000"
      done
    done
  else
    each "cases $name" launch "tests/gpu/$name"
  fi
done
for name in "${examples[@]}"; do check_common "$name"; done
wait
lanes=1 # steps are many small exchanges, which take long where GPUs take turns
if of 04; then
  check "PyTorch: what the hook promises" pytorch_job tests/pytorch/hook_cases.py --cuda --limit 100
  check "PyTorch: the example" \
    pytorch_job 04_sparse_allreduce/pytorch/train_text.py --steps 20 --layers 4 --width 256 --ways dense,oktopk
fi
end_checks
