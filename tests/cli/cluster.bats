# SPDX-License-Identifier: Apache-2.0
# Job files: what they start, each rank on a GPU of its own.
# shellcheck disable=SC2016,SC2034 # code for other shells; the variable code is read by the helper
load helper

setup_file() { :; } # needs no program

# Commands of a cluster in front of PATH: `stub NAME CODE`.
stub() {
  mkdir -p "$WORK/bin"
  printf '#!/bin/bash\n%s\n' "$2" >"$WORK/bin/$1"
  chmod +x "$WORK/bin/$1"
  PATH=$WORK/bin:$PATH
}

run_in_top() { # sets code, $WORK/out, $WORK/err
  code=0
  (cd "$TOP" && "$@") >"$WORK/out" 2>"$WORK/err" </dev/null || code=$?
}

@test "gpu_of_rank.sh: the local rank of every scheduler picks the GPU" {
  stub nvidia-smi 'printf "GPU\nGPU\nGPU\nGPU\n"'
  unset CUDA_VISIBLE_DEVICES
  while read -r gpu variables; do
    # shellcheck disable=SC2086 # several
    run_in_top env $variables scripts/gpu_of_rank.sh sh -c 'echo "sees $CUDA_VISIBLE_DEVICES"'
    prints "^sees $gpu$"
    says "^host .*, local rank [0-9]+, GPU $gpu$"
  done <<'ROWS'
0
3 OMPI_COMM_WORLD_LOCAL_RANK=3
2 PALS_LOCAL_RANKID=2
1 MPI_LOCALRANKID=1
2 SLURM_LOCALID=2
1 SLURM_LOCALID=0 OMPI_COMM_WORLD_LOCAL_RANK=1
2 CUDA_VISIBLE_DEVICES=2 SLURM_LOCALID=3
4 CUDA_VISIBLE_DEVICES=4,5 SLURM_LOCALID=2 SLURM_GPUS_PER_TASK=2
2 CUDA_VISIBLE_DEVICES=3,2,1,0 PALS_LOCAL_RANKID=1
ROWS
  SLURM_LOCALID=4 run_in_top scripts/gpu_of_rank.sh true
  exits_with 2
  one_line '^gpu_of_rank.sh: number 5 on .*, which shows 4 GPUs; allowed: one rank per GPU$'
  run_in_top scripts/gpu_of_rank.sh sh -c 'exit 7' # the program's exit code is kept
  exits_with 7
}

@test "job files start the program of the example, on as many ranks as the nodes have GPUs" {
  for command in srun mpiexec; do stub $command 'echo "$0 $*"'; done
  cp "$TOP"/scripts/{slurm.sbatch,polaris.pbs} "$WORK" # schedulers run copies
  export SLURM_SUBMIT_DIR=$TOP PBS_O_WORKDIR=$TOP PBS_NODEFILE=$WORK/nodes
  printf 'node%d\n' 1 1 2 2 >"$WORK/nodes"
  run_in_top "$WORK/slurm.sbatch" 02 --bench -G 1
  exits_with 0
  prints 'srun .* scripts/gpu_of_rank.sh .*/build/gpu-mpi/allreduce_sm --bench -G 1$'
  EXAMPLE="03_alltoallv_sm --pattern skew" run_in_top "$WORK/polaris.pbs"
  exits_with 0
  prints 'mpiexec -n 8 --ppn 4 .*NCCL_NET_GDR_LEVEL=PHB .*3,2,1,0 scripts/gpu_of_rank.sh .*/alltoallv_sm --pattern skew$'
  for name in slurm.sbatch polaris.pbs; do
    run_in_top "$WORK/$name"
    exits_with 2
    one_line "^$name: no example ''; allowed: 01_allreduce_ub "
  done
}
