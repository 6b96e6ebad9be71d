#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks every example on the GPUs of this machine, under both launchers.
#
#   scripts/gpu_check.sh [quick|full] [EXAMPLE...]     (default: full, every example)
#
# Needs bash, make, gcc, nvcc and mpirun, nothing else, and installs nothing. NCCL is that of NCCL_HOME,
# or of the system.
# quick: the largest number of ranks only. Ends with `N passed, N failed, N skipped`.
#
# Without enough GPUs: NP=4 NCCL_MULTI_RANK_GPU_ENABLE=1 checks with up to four processes, which take turns on
# the GPUs there are; threads cannot. NCCL has to be 2.30 or later. It takes several times as long.
set -uo pipefail
# shellcheck source=scripts/lib/lib.sh
. "$(dirname "$(realpath "$0")")/lib/lib.sh"
case ${1:-} in -h | --help) show_help ;; esac
cd "$TOP" || exit
mode=full
case ${1:-} in
quick | full) mode=$1 && shift ;;
-*) die "unknown option '$1'; allowed: quick, full, EXAMPLE..." ;;
esac
choose_examples "quick or full, and then " "$@"

unset NTHREADS MAKEFLAGS MAKELEVEL MFLAGS MPI CPU SANITIZE
prepare "gcc g++ make $(mpicc_command) $(mpirun_command)" --no-install
export NCCL_DEBUG_FILE=/dev/stderr # NCCL logs to stdout otherwise
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
gpus=$(gpu_count) launchers=(pthread mpi)
most=$gpus # ranks
if [ "${NCCL_MULTI_RANK_GPU_ENABLE:-}" = 1 ]; then
  launchers=(mpi) most=${NP:-$gpus}
  whole_number "$most" 1 64 || die "NP='$most' is not a number of ranks; allowed: 1 to 64"
fi
logs=$(temporary_folder) || exit
trap 'rm -rf "$logs"' EXIT

# ---- running checks ------------------------------------------------------------------------------
# A check is a command that succeeds. Up to $jobs of them run at a time, each with its output in a
# file; the output of a failed one is shown. A check that exits with 77 is skipped.
cores=$(nproc)
build_jobs=$((cores > 16 ? 16 : cores))
# Processes take turns on a GPU. Ranks that wait for each other in kernels need several turns for each
# exchange, so many runs at a time take longer than the same runs a few at a time.
run_jobs=$((cores / 4 < 6 || gpus < 4 ? 4 : 6))
((most <= gpus)) || run_jobs=2
jobs=$run_jobs
count=0

check() { # NAME COMMAND...
  local name=$1
  shift
  while (($(jobs -pr | wc -l) >= jobs)); do wait -n; done
  count=$((count + 1))
  {
    "$@" >"$logs/$count.log" 2>&1 </dev/null
    echo "$?" >"$logs/$count.code"
    case $(cat "$logs/$count.code") in
    0) echo "ok      $name" ;;
    77) echo "skipped $name: $(tail -n 1 "$logs/$count.log")" ;;
    *)
      echo "FAILED  $name ($*)"
      tail -n 30 "$logs/$count.log" | sed 's/^/        /'
      ;;
    esac
  } &
}

summary() {
  wait
  local passed failed skipped
  passed=$(cat "$logs"/*.code 2>/dev/null | grep -cx 0)
  skipped=$(cat "$logs"/*.code 2>/dev/null | grep -cx 77)
  failed=$((count - passed - skipped))
  echo "$passed passed, $failed failed, $skipped skipped"
  ((failed == 0 && passed > 0))
}

# ---- what checks are made of ---------------------------------------------------------------------
# launch LAUNCHER RANKS EXAMPLE [OPTIONS...]: runs the program of an example's folder, or the other one
# that `second` names. What stands in `front` comes before the program, but not before mpirun or timeout;
# `limit` is in seconds.
front=() limit=$((most > gpus ? 600 : 150)) second=
launch() {
  local launcher=$1 ranks=$2 folder=$3 program
  shift 3
  program=$(built_program "$folder" gpu "$launcher")
  [ -z "$second" ] || program=${program%/*}/$second
  if [ "$launcher" = mpi ]; then
    timeout "$limit" mpirun -np "$ranks" --bind-to none "${front[@]}" "$program" "$@"
  else
    NTHREADS=$ranks timeout "$limit" "${front[@]}" "$program" "$@"
  fi
}

# launch_with_fault FAULT LAUNCHER RANKS EXAMPLE [OPTIONS...]: preloads tests/fault.c, see there.
launch_with_fault() {
  local front=(env "FAULT=$1" "LD_PRELOAD=$PWD/build/fault_gpu.so")
  launch "${@:2}"
}

# expect CODE PATTERN COMMAND...: the command exits with CODE and prints the pattern.
expect() {
  local code=$1 pattern=$2 output got
  shift 2
  output=$("$@" 2>&1)
  got=$?
  echo "$output"
  echo "exit code $got, expected $code and '$pattern'"
  [ "$got" -eq "$code" ] && grep -qE -- "$pattern" <<<"$output"
}

killed() { # the command ends by itself, with neither success nor a refusal to run
  local got
  "$@"
  got=$?
  echo "exit code $got"
  case $got in 0 | 2 | 77 | 124) return 1 ;; esac
}

golden() { # LAUNCHER RANKS FOLDER [OPTIONS...]: stdout is exactly the expected block, exit code 0
  local output=$logs/golden.$BASHPID code=0
  launch "$@" >"$output" || code=$?
  echo "exit code $code"
  diff <(tests/golden.sh "$3" "$2" "$gpus") <(tests/golden.sh --mask "$3" <"$output") && [ $code = 0 ]
}

digest() { # LAUNCHER RANKS FOLDER [OPTIONS...]
  launch "$@" --digest | grep '^Digest: ' || echo "none: $*"
}

one_digest() { # of several runs, a line each on stdin
  local digests
  digests=$(cat)
  echo "$digests"
  [[ $digests == Digest:* ]] && [ "$(sort -u <<<"$digests" | wc -l)" -eq 1 ]
}

same_digest() { # RANKS FOLDER FOLDER: under both launchers, in both examples
  for folder in "$2" "$3"; do
    for launcher in "${launchers[@]}"; do digest "$launcher" "$1" "$folder"; done
  done | one_digest
}

same_sparse_digest() { # RANKS FOLDER: one digest, whatever moves the entries and in which order
  local variant job=("$1" "$2" --count 64K --steps 40 --verify off)
  {
    for variant in "" "--throttle 1" "--throttle 8 --exchange sendrecv" "--exchange sendrecv --balance always" \
      "--result entries" "--result entries --exchange sendrecv"; do
      # shellcheck disable=SC2086 # words
      digest mpi "${job[@]}" $variant
    done
    NCCL_PROTO=Simple digest "${launchers[0]}" "${job[@]}"
    NCCL_ALGO=Ring digest "${launchers[0]}" "${job[@]}"
  } | one_digest
}

same_training_digest() { # RANKS FOLDER: of all weights after every epoch, whatever moves the entries
  for exchange in auto sendrecv; do
    for launcher in "${launchers[@]}"; do
      digest "$launcher" "$1" "$2" --algorithm topkA,gtopk,oktopk,gaussiankSA --epochs 3 --exchange $exchange
    done
  done | one_digest
}

simulated_hosts() { # HOSTS EXAMPLE [OPTIONS...]: all GPUs, under MPI, as if they were in several hosts
  NP=$most timeout "$limit" scripts/multihost_sim.sh "$@"
}

bench_files() { # LAUNCHER RANKS FOLDER
  local out graph=(-G 1) sweep=(--bench -b 1K -e 1M -f 32 -n 5 -w 1 --repetitions 3)
  out=$logs/bench.$1.$(program_of "$3")
  [[ $1 = pthread && $3 = 03_* ]] && graph=() # refused, see 03_alltoallv_sm/alltoallv.h
  [[ $3 = 04_* ]] && graph=() sweep=(--bench --count 100K --steps 8)
  launch "$@" "${sweep[@]}" "${graph[@]}" -J "$out.json" && launch "$@" "${sweep[@]}" -J "$out.csv" &&
    grep -q '"wrong": 0}' "$out.json" && ! grep -q '"wrong": [1-9]' "$out.json" && [ -s "$out.csv" ]
}

sanitize() { # TOOL RANKS FOLDER [OPTIONS...]
  local tool=$1
  command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer"; return 77; }
  local limit=200 front=(compute-sanitizer --tool "$tool" --error-exitcode 9)
  [ "$tool" = memcheck ] && front+=(--report-api-errors no) # NCCL probes with calls that may fail
  launch mpi "${@:2}"
}

timeline_of() { # EXAMPLE [OPTIONS...]: a table for each rank; a step begins with the local pass
  local tables
  [ -n "$(cupti_header)" ] || { echo "no CUPTI"; return 77; }
  tables=$(timeout "$limit" scripts/timeline.sh "$@") || return
  echo "$tables"
  [ "$(grep -cE ' 0\.0 .* local_pass<' <<<"$tables")" -eq "$most" ]
}

build_all() { # for both launchers, with the tests
  check "build" make -s -k -j"$build_jobs" STRICT=1 both-tests
  wait
}

# ---- the checks of one example ---------------------------------------------------------------------
# All examples: golden output on every number of ranks, no hang whatever happens.
check_common() { # FOLDER
  local folder=$1 large=(--count 900G) smaller=() few=()
  [[ $folder = 04_* ]] && large=(--count 4294967294 --density 1) smaller=(--count 64K) few=(--steps 6)
  for launcher in "${launchers[@]}"; do
    for ranks in $rank_counts; do
      check "golden $folder $launcher $ranks" golden "$launcher" "$ranks" "$folder" "${smaller[@]}"
    done
    check "fault: failing call, $folder $launcher" \
      expect 3 '\[rank .*(main\.c:[0-9]+: ncclMemAlloc|sparse_allreduce_create: unhandled system error)' \
      launch_with_fault fail:ncclMemAlloc:2:$((some > 1)) "$launcher" $some "$folder"
    check "fault: hanging rank, $folder $launcher" \
      expect 4 "\[rank $victim\] no progress for .* STEP" \
      launch_with_fault hang:cudaStreamSynchronize:1:$victim "$launcher" $some "$folder" -T 12
    check "fault: killed rank, $folder $launcher" \
      killed launch_with_fault kill:cudaStreamSynchronize:2:$victim "$launcher" $some "$folder" -T 20
    check "bench $folder $launcher" bench_files "$launcher" "$most" "$folder"
    check "too large, $folder $launcher" \
      expect 2 'needs .* of device memory' launch "$launcher" $some "$folder" "${large[@]}"
  done
  [ "$mode" = full ] && check "memcheck $folder" sanitize memcheck $pair "$folder" --count 1000 "${few[@]}"
  check "more threads than GPUs, $folder" expect 2 'NTHREADS' launch pthread $((gpus + 1)) "$folder"
  check "more processes than GPUs, $folder" expect 77 'one rank per GPU' env -u NCCL_MULTI_RANK_GPU_ENABLE mpirun -np $((gpus + 1)) \
    --oversubscribe "$(built_program "$folder" gpu mpi)"
  check "pthread build under mpirun, $folder" expect 2 'built without MPI=1' mpirun -np "$some" \
    "$(built_program "$folder" gpu pthread)"
}

check_allreduce() { # 01 and 02
  for launcher in "${launchers[@]}"; do
    for ranks in $rank_counts; do
      check "cases AllReduce $launcher $ranks" launch "$launcher" "$ranks" tests/gpu/allreduce
    done
    for folder in 01_allreduce_ub 02_allreduce_sm; do
      check "fault: wrong element, $folder $launcher" \
        expect 1 "\[rank $victim\].*element" \
        launch_with_fault corrupt:ncclAllReduce:2:$victim "$launcher" $some $folder
    done
  done
  for launcher in "${launchers[@]}"; do
    for ranks in $rank_counts; do
      check "cases own $launcher $ranks" launch "$launcher" "$ranks" tests/gpu/allreduce_own
      check "golden own $launcher $ranks" golden "$launcher" "$ranks" 02_allreduce_sm --method own
    done
  done
  check "several ranks on one GPU" launch pthread 1 tests/gpu/allreduce_one_gpu
  check "several ranks on one GPU, wide lines" launch pthread 1 tests/gpu/allreduce_one_gpu --wide
  [ "$mode" = full ] && check "memcheck, several ranks on one GPU" \
    sanitize memcheck 1 tests/gpu/allreduce_one_gpu --calls 8
  check "same digest" same_digest "$most" 01_allreduce_ub 02_allreduce_sm
}

check_alltoallv() { # 03
  local folder=03_alltoallv_sm
  for launcher in "${launchers[@]}"; do
    for ranks in $rank_counts; do
      check "cases AlltoAllV $launcher $ranks" launch "$launcher" "$ranks" tests/gpu/alltoallv
    done
  done
  check "40 ranks of the AlltoAllV on one GPU" launch pthread 1 tests/gpu/alltoallv_ranks
  for pattern in halving unaligned random moe zero; do
    for method in sendrecv barrier; do
      check "$method, $pattern" launch mpi "$most" $folder --method $method --pattern $pattern --count 1000003 -d int8
    done
  done
  check "wrong matrix" expect 2 'is not a number of bytes' launch mpi "$some" $folder --matrix README.md
  [ "$mode" = full ] || return 0
  check "memcheck of 8 ranks on one GPU" sanitize memcheck 1 tests/gpu/alltoallv_ranks --rounds 1 --exchanges 8 --ranks 8
  check "10,000 calls" launch mpi "$most" tests/gpu/alltoallv --calls 10000
  check "pairs beyond 4 GiB" launch mpi $pair tests/gpu/alltoallv --large
  for method in sendrecv lsa copy-engine; do
    check "cases AlltoAllV, --method $method" launch mpi "$some" tests/gpu/alltoallv --method $method
    check "$method with device counts" launch mpi "$some" $folder --method ${method/sendrecv/lib-sendrecv} --device-counts
  done
  check "racecheck $folder" sanitize racecheck $pair $folder --pattern random
}

check_training() { # 04's training job
  local folder=04_sparse_allreduce second=sparse_training
  for launcher in "${launchers[@]}"; do
    for ranks in $rank_counts; do
      check "training $launcher $ranks" expect 0 'same weights after every epoch' launch "$launcher" "$ranks" $folder --epochs 5
    done
  done
  check "training: one digest" same_training_digest "$most" $folder
  ((most == 1)) || check "training: fault, a wrong average" expect 1 "dense, epoch 1: weight .* on rank 0 it is" \
    launch_with_fault corrupt:ncclAllReduce:9:$victim mpi $some $folder --algorithm dense --epochs 2
  [ "$mode" = quick ] || check "memcheck training" sanitize memcheck $pair $folder --epochs 1 --batch 500 --algorithm dense,oktopk
}

# 04's hook for PyTorch. The library takes PyTorch's NCCL, so it has a build of its own.
pytorch= # folder of that
build_pytorch() {
  local home
  python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || { echo "no PyTorch with CUDA in python3"; return 77; }
  home=$(python3 -B 04_sparse_allreduce/pytorch/sparse_allreduce_torch.py) || return
  tar -cf - --exclude=build Makefile common tests 0* | tar -C "$pytorch" -xf -
  make -s -j4 -C "$pytorch" NCCL_HOME="$home" build/gpu-pthread/libsparse_allreduce.so
}
pytorch_job() { # SCRIPT [ARGUMENTS]: on two GPUs, with the library of build_pytorch
  local limit=120 library=$pytorch/build/gpu-pthread/libsparse_allreduce.so
  [ -f "$library" ] || { echo "no library for PyTorch, see its build"; return 77; }
  OMP_NUM_THREADS=4 PYTHONDONTWRITEBYTECODE=1 timeout "$limit" python3 -m torch.distributed.run --standalone \
    --nproc-per-node $((gpus > 1 ? 2 : 1)) "$1" --library "$library" "${@:2}"
}
check_pytorch() {
  check "PyTorch: what the hook promises" pytorch_job tests/pytorch/hook_cases.py --cuda --limit 100
  check "PyTorch: the example" \
    pytorch_job 04_sparse_allreduce/pytorch/train_text.py --steps 20 --layers 4 --width 256 --ways dense,oktopk
}

check_sparse() { # 04; its operators are local, so one rank will do for them
  local folder=04_sparse_allreduce
  if [ "$mode" = full ]; then # the long ones first
    check "racecheck sparse operators" sanitize racecheck 1 tests/gpu/sparse --quick --repeats 10
    check "as it comes, $folder" golden mpi "$most" $folder
    check "memcheck sparse operators" sanitize memcheck 1 tests/gpu/sparse --quick --repeats 20
    check "operators beyond 2^31 elements" launch pthread 1 tests/gpu/sparse --large
    check "1,000 steps of graph replay" \
      launch mpi "$most" tests/gpu/sparse_steps --cases 6 --steps 1000
    # lists so long that NCCL maps their memory when it is captured, see lib/sparse_create.c
    check "gtopk in a graph, $folder" launch mpi $pair $folder --bench -G 1 --algorithm gtopk \
      --count 4M --density 0.05 --steps 8
    for hosts in 2 4; do
      ((hosts <= most)) && check "$hosts simulated hosts, $folder" simulated_hosts $hosts tests/gpu/sparse_steps --cases 40
    done
  fi
  if [ "$most" -gt 1 ]; then
    for launcher in "${launchers[@]}"; do
      check "fault: late rank, sparse step, $launcher" launch "$launcher" $some tests/gpu/sparse_steps --late -T 100
    done
  fi
  check "timeline of a step" timeline_of $folder --bench -G 1 --algorithm oktopk --count 1M --steps 16
  check "same bits, throttle and exchange" same_sparse_digest "$most" $folder
  check "cases sparse operators" launch pthread 1 tests/gpu/sparse
  for launcher in "${launchers[@]}"; do
    for ranks in $rank_counts; do
      check "random jobs $launcher $ranks" launch "$launcher" "$ranks" tests/gpu/sparse_steps \
        --cases 60 --seed "${ranks}000"
    done
    check "results as entries, $launcher" launch "$launcher" "$most" $folder --result entries --steps 34
    check "fault: wrong element, $folder $launcher" expect 1 "\[rank $victim\] dense, step .* element" \
      launch_with_fault corrupt:ncclAllReduce:5:$victim "$launcher" $some $folder --count 64K --algorithm dense
  done
}

# ---- all of it --------------------------------------------------------------------------------------
cases=()
for folder in "${examples[@]}"; do
  case $folder in
  01_* | 02_*) [[ " ${cases[*]} " == *" tests/gpu/allreduce "* ]] ||
    cases+=(tests/gpu/allreduce tests/gpu/allreduce_own tests/gpu/allreduce_one_gpu) ;;
  03_*) cases+=(tests/gpu/alltoallv tests/gpu/alltoallv_ranks) ;;
  04_*) cases+=(tests/gpu/sparse tests/gpu/sparse_steps) ;;
  esac
done

if [ "$gpus" -eq 0 ]; then
  echo "gpu_check.sh: nvidia-smi shows no GPU; scripts/test.sh is for machines without" >&2
  check "GPU" sh -c 'echo "nvidia-smi shows none"; exit 77'
  summary
  exit
fi
rank_counts=$(seq 1 "$most")
[ "$mode" = quick ] && rank_counts=$most
some=$((most < 4 ? most : 4))       # ranks of the fault cases
victim=$((some > 2 ? 2 : some - 1)) # not rank 0, which is the easy one
pair=$((most > 1 ? 2 : 1))

jobs=$build_jobs
build_all
mkdir -p build
pytorch=$logs/pytorch && mkdir "$pytorch"
[[ " ${cases[*]} " != *" tests/gpu/sparse "* ]] || check "build for PyTorch" build_pytorch
check "build tests/fault.c" gcc -shared -fPIC -O2 -D_GNU_SOURCE -o build/fault_gpu.so tests/fault.c \
  -isystem build/gpu/nccl_include \
  -isystem "$(cuda_home)/include" -ldl
wait
jobs=$run_jobs

if [ "${examples[*]}" = "$(examples | xargs)" ]; then # in copies of what is built; these last longest
  check "commands of the pages, 04" tests/readme_commands.sh 04_*/{,*/}*.md
  check "commands of the pages, 01 to 03" tests/readme_commands.sh 0[1-3]_*/{,*/}*.md
  check "commands of the pages, others" tests/readme_commands.sh ./*.md docs/*.md
fi
[[ " ${cases[*]} " == *" tests/gpu/sparse "* ]] && { check_sparse; check_training; }
[[ " ${cases[*]} " == *" tests/gpu/alltoallv "* ]] && check_alltoallv
[[ " ${cases[*]} " == *" tests/gpu/allreduce "* ]] && check_allreduce
for folder in "${examples[@]}"; do check_common "$folder"; done
wait
# alone: steps are many small exchanges, which take long where GPUs take turns
[[ " ${cases[*]} " != *" tests/gpu/sparse "* ]] || { jobs=1 && check_pytorch; }
summary
