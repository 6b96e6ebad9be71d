#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Starts a program on the GPU of its rank, and says on stderr which one that is:
#
#   srun|mpirun|mpiexec ... scripts/gpu_of_rank.sh PROGRAM [ARGUMENTS]
#
# If the scheduler shows a task one GPU, that one is taken; if it gives every task several of its own (--gpus-per-task), the
# first of them; else the one at the place of the local rank in CUDA_VISIBLE_DEVICES, or among all.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$(realpath "$0")")/lib.sh"
case ${1:--} in -h | --help) show_help ;; -*) die "unknown option '${1:-}'; allowed: PROGRAM [ARGUMENTS]" ;; esac
# mpirun inside a Slurm job hands down Slurm's variables of its own task: Slurm's come last.
local=${OMPI_COMM_WORLD_LOCAL_RANK:-${PALS_LOCAL_RANKID:-${PMI_LOCAL_RANK:-${MPI_LOCALRANKID:-${SLURM_LOCALID:-0}}}}}
IFS=, read -ra gpus <<<"${CUDA_VISIBLE_DEVICES:-$(seq -s , 0 $(($(gpu_count) - 1)))}"
if [ ${#gpus[@]} = 1 ] || [ -n "${SLURM_GPUS_PER_TASK:-}" ]; then place=0; else place=$local; fi
if [ ${#gpus[@]} -gt 0 ]; then # else on the CPU
  [ "$place" -lt ${#gpus[@]} ] || die "number $((local + 1)) on $(hostname), which shows ${#gpus[@]} GPUs; allowed: one rank per GPU"
  export CUDA_VISIBLE_DEVICES=${gpus[place]}
fi
echo "host $(hostname), local rank $local, GPU ${CUDA_VISIBLE_DEVICES:-none}" >&2
exec "$@"
