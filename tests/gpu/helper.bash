# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the checks of scripts/gpu_check.sh are made of. Of that script they take ranks, launcher, launchers, gpus, most, lanes and logs.
# shellcheck disable=SC2154,SC2016 # these; and shells of the ranks expand what is in ''

# launch [NAME=VALUE...] EXAMPLE|PROGRAM|tests/gpu/NAME [OPTIONS...]: with $ranks ranks by $launcher, for $limit seconds at
# most, with these variables. What is in `front` stands before the program, but not before mpirun or timeout.
front=() limit=$((most > gpus ? 600 : 150))
launch() {
  local variables=() program start=(env "NTHREADS=$ranks" timeout "$limit")
  [ "$launcher" = pthread ] || start=(timeout "$limit" "$(mpirun_command)" -np "$ranks")
  while [[ $1 = *=* ]]; do variables+=("$1") && shift; done
  program=$(built_program "$1" gpu "$launcher")
  "${start[@]}" env "${variables[@]}" "${front[@]}" "$program" "${@:2}"
}
# fault FAULT EXAMPLE [OPTIONS...]: see tests/fault.c
fault() { launch "FAULT=$1" "LD_PRELOAD=$logs/fault.so" "${@:2}"; }
# simulated_hosts HOSTS EXAMPLE [OPTIONS...]: to NCCL, ranks of another NCCL_HOSTID are on another host
simulated_hosts() {
  local front=(bash -c 'NCCL_HOSTID=$((OMPI_COMM_WORLD_RANK * $0 / $1)) exec "${@:2}"' "$1" "$ranks")
  launch "${@:2}"
}
# own_gpu EXAMPLE|tests/gpu/NAME [OPTIONS...]: each rank sees its own GPU only, as tasks of Slurm do
own_gpu() {
  local front=(bash -c 'IFS=, read -ra ids <<<"${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 63)}"
    CUDA_VISIBLE_DEVICES=${ids[OMPI_COMM_WORLD_LOCAL_RANK % $0]} exec "$@"' "$gpus")
  launch "$@"
}
# sanitize TOOL EXAMPLE [OPTIONS...]
sanitize() {
  local limit=200 front=(compute-sanitizer --tool "$1" --error-exitcode 9)
  have compute-sanitizer || { echo "no compute-sanitizer" && return 77; }
  # NCCL probes with calls that may fail
  [ "$1" != memcheck ] || front+=(--report-api-errors no)
  launch "${@:2}"
}

# expect CODE PATTERN COMMAND...: the command exits with such a code (a pattern, too) and prints the pattern
expect() {
  local output code=0
  output=$("${@:3}" 2>&1) || code=$?
  echo "$output"
  echo "exit code $code, expected $1 and '$2'"
  [[ $code =~ ^($1)$ ]] && grep -qE -- "$2" <<<"$output"
}
# golden EXAMPLE [OPTIONS...]: stdout is exactly the expected block, exit code 0
golden() {
  local output code=0
  output=$(launch "$@") || code=$?
  echo "exit code $code"
  diff <(tests/golden.sh "$1" "$ranks" "$gpus") <(tests/golden.sh --mask "$1" <<<"$output") && [ $code = 0 ]
}
# bench EXAMPLE [OPTIONS...]: nothing is wrong, in the table's last column
bench() {
  local file=$logs/$BASHPID.csv
  launch "$@" --bench -J "$file" && awk -F, 'NR > 1 && $NF != 0 { print; bad = 1 } END { exit bad || NR < 2 }' "$file"
}
# random_jobs: others for each number of ranks
random_jobs() { launch tests/gpu/sparse_steps --cases 60 --seed "${ranks}000"; }
# same_digest JOB...: of all of these, which are words for launch; of the first with all launchers
same_digest() {
  local digests
  # shellcheck disable=SC2086 # words
  digests=$(for launcher in $launchers; do
    launch $1 --digest | grep '^Digest: ' || echo "none: $1"
  done
  for job in "${@:2}"; do launch $job --digest | grep '^Digest: ' || echo "none: $job"; done)
  echo "$digests"
  [[ $digests = Digest:* ]] && [ "$(sort -u <<<"$digests" | wc -l)" = 1 ]
}

# 04's optimizer for PyTorch takes PyTorch's NCCL, so its library has a build of its own.
library=build/gpu-pthread-pytorch/libsparse_allreduce.so
build_pytorch() {
  local home
  python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null || { echo "no PyTorch with CUDA in python3" && return 77; }
  home=$(python3 -B 04_sparse_allreduce/pytorch/sparse_update_optimizer.py) &&
    make -s -j "$lanes" VARIANT=pytorch NCCL_HOME="$home" $library && cp 04_sparse_allreduce/pytorch/*.py $library "$logs"
}
# pytorch_job SCRIPT [ARGUMENTS]: on two GPUs; scripts in $logs find that library beside them
pytorch_job() {
  [ -e "$logs/${library##*/}" ] || { echo "no build for PyTorch" && return 77; }
  OMP_NUM_THREADS=4 PYTHONDONTWRITEBYTECODE=1 timeout 400 python3 -m torch.distributed.run --standalone \
    --nproc-per-node $((gpus > 1 ? 2 : 1)) "$@"
}

