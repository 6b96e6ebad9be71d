#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Starts a program on the GPU of its rank, and says on stderr which one that is:
#
#   srun|mpirun|mpiexec ... scripts/gpu_of_rank.sh PROGRAM [ARGUMENTS]
#
# The scheduler knows the rank on this host. If it shows a task one GPU, that one is taken; if it
# gives every task several of its own (--gpus-per-task), the first of them; if all tasks of a host see
# the same GPUs, the one at the place of the local rank in CUDA_VISIBLE_DEVICES.
set -euo pipefail
# shellcheck source=scripts/lib/lib.sh
. "$(dirname "$(realpath "$0")")/lib/lib.sh"
case ${1:-} in
-h | --help) show_help ;;
-*) die "unknown option '$1'; allowed: PROGRAM [ARGUMENTS]" ;;
esac
[ $# -gt 0 ] || die "which program? allowed: PROGRAM [ARGUMENTS]"

# mpirun inside a Slurm job hands down Slurm's variables of its own task: Slurm's come last.
rank=${OMPI_COMM_WORLD_RANK:-${PALS_RANKID:-${PMI_RANK:-${PMIX_RANK:-${SLURM_PROCID:-0}}}}}
local=${OMPI_COMM_WORLD_LOCAL_RANK:-${PALS_LOCAL_RANKID:-${PMI_LOCAL_RANK:-${MPI_LOCALRANKID:-${SLURM_LOCALID:-0}}}}}

if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
  IFS=, read -ra gpus <<<"$CUDA_VISIBLE_DEVICES"
else
  mapfile -t gpus < <(seq 0 $(($(gpu_count) - 1)))
fi

place=$local
if [ ${#gpus[@]} = 1 ] || [ -n "${SLURM_GPUS_PER_TASK:-}" ]; then place=0; fi
if [ ${#gpus[@]} = 0 ]; then
  gpu="none, on the CPU"
elif [ "$place" -ge ${#gpus[@]} ]; then
  die "rank $rank is number $((local + 1)) on $(hostname), which shows ${#gpus[@]} GPUs; allowed: one rank per GPU"
else
  gpu=${gpus[place]}
  export CUDA_VISIBLE_DEVICES=$gpu
fi
echo "rank $rank: host $(hostname), local rank $local, GPU $gpu" >&2
exec "$@"
