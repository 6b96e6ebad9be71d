# SPDX-License-Identifier: Apache-2.0
# Job files: what they start.
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

@test "job files start the program of the example, on as many ranks as the nodes have GPUs" {
  for command in srun mpiexec; do stub $command 'echo "$0 $*"'; done
  cp "$TOP"/scripts/{slurm.sbatch,polaris.pbs} "$WORK" # schedulers run copies
  export SLURM_SUBMIT_DIR=$TOP PBS_O_WORKDIR=$TOP PBS_NODEFILE=$WORK/nodes
  printf 'node%d\n' 1 1 2 2 >"$WORK/nodes"
  run_in_top "$WORK/slurm.sbatch" 02 --bench -G 1
  exits_with 0
  prints 'srun .* .*/build/gpu-mpi/allreduce_sm --bench -G 1$'
  EXAMPLE="03_alltoallv_sm --pattern skew" run_in_top "$WORK/polaris.pbs"
  exits_with 0
  prints 'mpiexec -n 8 --ppn 4 .*NCCL_NET_GDR_LEVEL=PHB .*3,2,1,0 .*/alltoallv_sm --pattern skew$'
  for name in slurm.sbatch polaris.pbs; do
    run_in_top "$WORK/$name"
    exits_with 2
    one_line "^$name: no example ''; allowed: 01_allreduce_ub "
  done
}
