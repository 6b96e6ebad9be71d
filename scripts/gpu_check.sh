#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks every example on the GPUs of this machine, under both launchers.
#
#   scripts/gpu_check.sh [quick|full] [EXAMPLE...]     (default: full, every example; 02 is 02_allreduce_sm)
#
# Needs bash, make, gcc, g++ (for nvcc), nvcc and an MPI, and installs nothing; checks that need more
# (compute-sanitizer, PyTorch) are skipped without it. Uses NCCL of NCCL_HOME, or of the system. quick: only the largest
# number of ranks, and not the commands of the pages. 01 and 02 in one run, 03 and 04 in others, are all checks. Ends
# with `N passed, N failed, N skipped`.
#
# Without enough GPUs: NP=4 NCCL_MULTI_RANK_GPU_ENABLE=1 checks with up to four processes, which take turns on
# the GPUs; threads cannot. This needs NCCL 2.30 or later, and several times as long.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$(realpath "$0")")/lib.sh"
arguments "quick full EXAMPLE..." "$@"
mode=full options=' --no-install '
case ${words[0]:-} in quick | full) mode=${words[0]} words=("${words[@]:1}") ;; esac
choose_examples "${words[@]}"
cd "$TOP" || exit
prepare "" ""
have_mpi && have g++ || exit 1

# NCCL logs to stdout otherwise
export NCCL_DEBUG_FILE=/dev/stderr "${MPI_SETTINGS[@]}"
gpus=$(gpu_count) launchers="pthread mpi"
# ranks
most=$gpus
if [ "${NCCL_MULTI_RANK_GPU_ENABLE:-}" = 1 ]; then
  launchers=mpi most=${NP:-$gpus}
  [[ $most =~ ^[1-9][0-9]?$ && $most -le 64 ]] || die "NP='$most' is not a number of ranks; allowed: 1 to 64"
fi
[ "$gpus" != 0 ] || { echo "gpu_check.sh: nvidia-smi shows no GPU; scripts/test.sh runs without one" >&2 && exit 1; }
begin_checks 1

# shellcheck source=tests/gpu/helper.bash
. tests/gpu/helper.bash

# ---- builds --------------------------------------------------------------------------------------
# of 02: is that example checked?
of() { [[ " ${examples[*]} " == *" $1"* ]]; }
# folders of tests/gpu
tests=()
for name in $(make -s print-GPU_TEST_PROGRAMS); do
  case $name in allreduce*) of 02 ;; alltoallv*) of 03 ;; *) of 04 ;; esac && tests+=("$name")
done
build() { make -s -k -j "$lanes" MPI="${1/pthread/}" "${examples[@]}" "${tests[@]/#/build/gpu-$1/tests/}"; }

cores=$(nproc)
lanes=$((cores > 16 ? 16 : cores))
check "build for threads" build pthread
# they share objects
wait
check "build for MPI" build mpi
check "build of tests/fault.c" gcc -shared -fPIC -O2 -D_GNU_SOURCE -o "$logs/fault.so" tests/fault.c \
  -isystem build/gpu/nccl_include -isystem "$(cuda_home)/include" -ldl
! of 04 || check "build for PyTorch" build_pytorch
wait

# ---- the checks ----------------------------------------------------------------------------------
# rows EXAMPLE quick|full LAUNCHERS RANKS NAME COMMAND...: a check for each launcher and number of ranks. Threads run
# the same code as processes: of several numbers of ranks they take the last.
rows() {
  of "$1" && [[ $2 = quick || $mode = full ]] || return 0
  for launcher in $3; do
    for ranks in $4; do
      [[ $launcher = mpi || $ranks = "${4##* }" ]] || continue
      check "$5, $launcher $ranks" "${@:6}"
    done
  done
}
# numbers of ranks; `several` is empty if there is one rank; the victim of faults is not rank 0, which is the easy case
counts=$(seq -s " " "$most") some=$((most < 4 ? most : 4)) pair=$((most > 1 ? 2 : 1))
several=${some#1} victim=$((some > 2 ? 2 : some - 1))
[ "$mode" = full ] || counts=$most
# Processes take turns on a GPU. Ranks that wait for each other in kernels need several turns for each
# exchange, so many runs at a time take longer than the same runs a few at a time.
lanes=$((most > gpus ? 2 : cores < 24 || gpus < 4 ? 4 : 6))

# in copies of what is built; these last longest
pages() { [ "$mode" = quick ] || check "commands of the pages, $1" tests/readme_commands.sh "${@:2}"; }
if of 04; then
  # pytorch/ last: its commands build everything with another NCCL
  pages "folders of 04" 04_*/[!p]*/*.md 04_*/pytorch/*.md
  pages 04 04_*/*.md
  check "PyTorch: what the optimizer promises" \
    pytorch_job tests/pytorch/optimizer_cases.py --library $library --cuda --limit 300
  check "PyTorch: the example" pytorch_job "$logs/train_text.py" --steps 20 --layers 4 --width 256 --ways ddp,sparse
fi
for name in 01 02 03; do ! of $name || pages $name ${name}_*/{,*/}*.md; done
! of 01 || pages others ./*.md docs/*.md

# the long ones first
four=04_sparse_allreduce three=03_alltoallv_sm job="04_sparse_allreduce --steps 40"
rows 04 full pthread 1 "racecheck sparse operators" sanitize racecheck tests/gpu/sparse --quick --repeats 5
rows 04 full pthread 1 "memcheck sparse operators" sanitize memcheck tests/gpu/sparse --quick --repeats 20
rows 04 full pthread 1 "operators beyond 2^31 elements" launch tests/gpu/sparse --large
rows 04 full mpi "$most" "1,000 steps of graph replay" launch tests/gpu/sparse_steps --cases 8 --steps 1000
# lists so long that NCCL maps their memory when it is captured
rows 04 full mpi $pair "gtopk in a graph" launch $four --bench -G 1 \
  --algorithm gtopk --count 4M --density 0.05 --steps 8
for hosts in $(seq 2 2 "$some"); do
  rows 04 full mpi "$most" "$hosts simulated hosts" simulated_hosts "$hosts" tests/gpu/sparse_steps --cases 40
done
rows 04 full mpi $pair "memcheck training" sanitize memcheck \
  sparse_training --epochs 1 --batch 500 --algorithm dense,oktopk
rows 04 quick mpi "$most" "same bits of steps" same_digest \
  "$job --result entries" "$job" "$job --throttle 1" "$job --throttle 8 --exchange sendrecv" \
  "$job --exchange sendrecv --balance always" "$job --result entries --exchange sendrecv" \
  "NCCL_PROTO=Simple $job" "NCCL_ALGO=Ring $job"
rows 04 quick "$launchers" "$counts" training \
  expect 0 'same weights after every epoch' launch sparse_training --epochs 5
rows 04 quick "$launchers" "$some" "fault: wrong element, $four" expect 1 "\[rank $victim\] dense, step .* element" \
  fault corrupt:ncclAllReduce:5:$victim $four --algorithm dense
rows 04 quick "$launchers" "$several" "fault: late rank, sparse step" launch tests/gpu/sparse_steps --late -T 100
rows 04 quick mpi "$several" "fault: a wrong average in training" \
  expect 1 "dense, epoch 1: weights differ from those of rank 0" \
  fault corrupt:ncclAllReduce:9:$victim sparse_training --algorithm dense --epochs 2

# all patterns: tests/cli/alltoallv.bats, with the same kernels
for pattern in unaligned random zero; do
  for method in sendrecv barrier lines copy-engine; do
    rows 03 quick mpi "$most" "$method, $pattern" \
      launch $three --method $method --pattern $pattern --count 1000003 -d int8
  done
done
rows 03 full mpi "$most" "10,000 exchanges at random" launch tests/gpu/alltoallv --cases 10000
rows 03 full mpi $pair "pairs beyond 4 GiB" launch $three --pattern one-hot --count 5368709197 -d int8
rows 03 full mpi "$some" "cases AlltoAllV, send/recv" launch tests/gpu/alltoallv --method sendrecv
rows 03 full mpi "$some" "device counts" launch $three --method device-counts
rows 03 quick mpi "$some" "own GPU only, $three" own_gpu $three --method lsa
rows 03 full mpi $pair "racecheck $three" sanitize racecheck $three --pattern random

for method in barrier lines direct; do
  rows 02 quick "$launchers" "$counts" "$method" \
    expect 0 '^Results verified correctly' launch 02_allreduce_sm --method $method
done
rows 02 quick mpi "$some" "own GPU only, direct" own_gpu tests/gpu/allreduce_direct

for name in "${tests[@]}"; do
  case $name in
  # operators alone, without ranks
  sparse) rows 04 quick pthread 1 "cases $name" launch "tests/gpu/$name" ;;
  sparse_steps) rows 04 quick "$launchers" "$counts" "random jobs" random_jobs ;;
  *) rows 0 quick "$launchers" "$counts" "cases $name" launch "tests/gpu/$name" ;;
  esac
done

# fault_row WHAT CODE PATTERN FAULT [OPTIONS]: what becomes of example $name with that fault
fault_row() {
  rows 0 quick "$launchers" "$some" "fault: $1, $name" expect "$2" "$3" fault "$4" "$name" "${@:5}"
}

# no hang in any case
for name in "${examples[@]}"; do
  large=(--count 900G) few=() sweep=(-b 1K -e 1M -f 32 -n 5 -w 1 --repetitions 3) can=$launchers
  [[ $name != 02* ]] || few=(--method direct)
  [[ $name != 04* ]] || large=(--count 4294967294 --density 1) few=(--steps 6) sweep=(--count 100K --steps 8)
  # threads could deadlock in graphs, so programs refuse them
  [[ $name = 0[12]* ]] || can=mpi
  rows 0 quick "$launchers" "$counts" "golden $name" golden "$name"
  rows 0 quick "$launchers" "$most" "bench $name" bench "$name" "${sweep[@]}"
  rows 0 quick "$can" "$most" "bench in a graph, $name" bench "$name" "${sweep[@]}" -G 1
  [[ $name != 0[12]* ]] || fault_row 'wrong element' 1 "\[rank $victim\].*element" corrupt:ncclAllReduce:2:$victim
  # of one rank, which has no symmetric memory, 03 makes only one such call
  fault_row 'failing call' 3 '\[rank .*[a-z]+\.c:[0-9]+: .*ncclMemAlloc' "fail:ncclMemAlloc:$pair:$((some > 1))"
  fault_row 'hanging rank' 4 "\[rank $victim\] no progress for .* STEP" hang:cudaStreamSynchronize:1:$victim -T 12
  fault_row 'killed rank' '[134]|1[3-9].' '' kill:cudaStreamSynchronize:2:$victim -T 20
  rows 0 quick "$launchers" "$some" "too large, $name" expect 2 'needs .* of device memory' launch "$name" "${large[@]}"
  # 01 has no kernels of its own but those that verify, which 02 has too
  [[ $name = 01* ]] || rows 0 full mpi $pair "memcheck $name" sanitize memcheck "$name" --count 1000 "${few[@]}"
  rows 0 quick mpi $((gpus + 1)) "more processes than GPUs, $name" expect 77 'one rank per GPU' \
    launch NCCL_MULTI_RANK_GPU_ENABLE=0 "$name"
done
end_checks
