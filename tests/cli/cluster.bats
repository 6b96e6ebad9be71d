# SPDX-License-Identifier: Apache-2.0
# Job files and scripts for several hosts: what they would run, and runs on simulated hosts.
# shellcheck disable=SC2016,SC2030,SC2031,SC2034 # code for other shells; every test has its own variables
load helper

EXAMPLES="01_allreduce_ub 02_allreduce_sm 03_alltoallv_sm"

script() { # script NAME [ARGUMENTS]: sets code, $WORK/out, $WORK/err
  code=0
  timeout -k 5 90 "$TOP/scripts/$1" "${@:2}" >"$WORK/out" 2>"$WORK/err" </dev/null || code=$?
}

# Commands of a cluster in front of PATH: `stub NAME CODE`.
stub() {
  mkdir -p "$WORK/bin"
  printf '#!/bin/bash\n%s\n' "$2" >"$WORK/bin/$1"
  chmod +x "$WORK/bin/$1"
  PATH=$WORK/bin:$PATH
}

gpus() { stub nvidia-smi "for i in $(seq -s ' ' "$1"); do echo GPU; done"; } # gpus NUMBER

gpu_of() { # gpu_of GPU [VARIABLE=VALUE...]: the program of that rank sees this GPU only
  local output
  output=$(env "${@:2}" "$TOP/scripts/gpu_of_rank.sh" sh -c 'echo "sees $CUDA_VISIBLE_DEVICES"' 2>&1)
  grep -qx "sees $1" <<<"$output" || { echo "wanted $1: $output" && return 1; }
  grep -qE "^rank [0-9]+: host .*, local rank [0-9]+, GPU $1$" <<<"$output" || { echo "$output" && return 1; }
}

@test "gpu_of_rank.sh: the local rank of every scheduler picks the GPU" {
  gpus 4
  unset CUDA_VISIBLE_DEVICES
  gpu_of 0
  gpu_of 3 OMPI_COMM_WORLD_RANK=7 OMPI_COMM_WORLD_LOCAL_RANK=3
  gpu_of 2 PALS_RANKID=6 PALS_LOCAL_RANKID=2
  gpu_of 1 PMI_RANK=1 MPI_LOCALRANKID=1
  gpu_of 2 SLURM_PROCID=6 SLURM_LOCALID=2
  gpu_of 1 SLURM_PROCID=0 SLURM_LOCALID=0 OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_LOCAL_RANK=1 # mpirun in a job
}

@test "gpu_of_rank.sh: one GPU shown, several per task, an order of one's own, too few" {
  gpus 4
  gpu_of 2 CUDA_VISIBLE_DEVICES=2 SLURM_LOCALID=3
  gpu_of GPU-abc CUDA_VISIBLE_DEVICES=GPU-abc SLURM_LOCALID=3
  gpu_of 4 CUDA_VISIBLE_DEVICES=4,5 SLURM_LOCALID=2 SLURM_GPUS_PER_TASK=2
  gpu_of 2 CUDA_VISIBLE_DEVICES=3,2,1,0 PALS_LOCAL_RANKID=1
  SLURM_PROCID=4 SLURM_LOCALID=4 script gpu_of_rank.sh true
  exits_with 2
  one_line '^gpu_of_rank.sh: rank 4 is number 5 on .*, which shows 4 GPUs; allowed: one rank per GPU$'
  script gpu_of_rank.sh
  exits_with 2
  script gpu_of_rank.sh --bogus
  exits_with 2
  one_line "^gpu_of_rank.sh: unknown option '--bogus'; allowed: PROGRAM"
  script gpu_of_rank.sh sh -c 'exit 7' # the program's exit code is kept
  exits_with 7
}

@test "dry runs print the command" {
  script slurm.sbatch --dry-run 02_allreduce_sm --bench -G 1
  exits_with 0
  prints '^srun .*/scripts/gpu_of_rank.sh .*/02_allreduce_sm/build/gpu-mpi/allreduce_sm --bench -G 1$'
  printf 'node%d\n' 1 1 2 2 >"$WORK/nodes"
  PBS_NODEFILE=$WORK/nodes EXAMPLE="--dry-run 03_alltoallv_sm --pattern skew" script polaris.pbs
  exits_with 0
  prints '^mpiexec -n 8 --ppn 4 .* --env NCCL_NET_GDR_LEVEL=PHB .*3,2,1,0 .*/alltoallv_sm --pattern skew$'
  NCCL_NET_GDR_LEVEL=SYS EXAMPLE="--dry-run 03_alltoallv_sm" script polaris.pbs
  prints '^mpiexec -n 4 .*NCCL_NET_GDR_LEVEL=SYS '
  NCCL_ALGO=Ring script hosts.sh --per-host 2 a,b.c --dry-run 01_allreduce_ub
  exits_with 0
  prints '^mpirun -np 4 --host a:2,b.c:2 -x NCCL_ALGO .*/gpu_of_rank.sh .*/gpu-mpi/allreduce_ub$'
  script hosts.sh --dry-run --per-host 4 node1,node2 01_allreduce_ub --dry-run # options in any order, before EXAMPLE
  exits_with 0
  prints '^mpirun -np 8 --host node1:4,node2:4 .*/allreduce_ub --dry-run$'
  script polaris.pbs --dry-run 01_allreduce_ub --digest
  exits_with 0
  prints '^mpiexec -n 4 .*/gpu-mpi/allreduce_ub --digest$'
  (cd /tmp && script slurm.sbatch --dry-run 01_allreduce_ub && exits_with 0)
  NP=8 script multihost_sim.sh --dry-run 2 01_allreduce_ub --digest
  exits_with 0
  prints '^mpirun -np 8 bash -c .*NCCL_HOSTID.* 8 2 .*/gpu-mpi/allreduce_ub --digest$'
  NP=8 script multihost_sim.sh 2 --dry-run 01_allreduce_ub --digest
  exits_with 0
  prints '^mpirun -np 8 bash -c .*NCCL_HOSTID.* 8 2 .*/gpu-mpi/allreduce_ub --digest$'
  for file in slurm.sbatch polaris.pbs; do [ -x "$TOP/scripts/$file" ]; done
}

@test "job files run as copies elsewhere, and are called from elsewhere; words are no patterns" {
  mkdir "$WORK/spool"
  cp "$TOP"/scripts/{slurm.sbatch,polaris.pbs} "$WORK/spool"
  cd "$WORK/spool"
  for name in slurm.sbatch polaris.pbs; do
    SLURM_SUBMIT_DIR=$TOP PBS_O_WORKDIR=$TOP timeout 90 "./$name" --dry-run 01_allreduce_ub >"$WORK/out"
    prints "/gpu_of_rank.sh .*/gpu-mpi/allreduce_ub$"
    SLURM_SUBMIT_DIR=/tmp PBS_O_WORKDIR=/tmp script "$name" --dry-run 01_allreduce_ub # inside of a job that began elsewhere
    exits_with 0
    prints "/gpu_of_rank.sh .*/gpu-mpi/allreduce_ub$"
    code=0
    SLURM_SUBMIT_DIR=/tmp PBS_O_WORKDIR=/tmp "./$name" --dry-run 01_allreduce_ub >"$WORK/out" 2>"$WORK/err" || code=$?
    exits_with 2
    one_line "^$name: no scripts/lib/lib.sh in /tmp; allowed: "
  done
  for command in srun mpiexec; do stub $command pwd; done
  for name in slurm.sbatch polaris.pbs; do
    script $name true
    prints "^$TOP$"
  done
  EXAMPLE='--dry-run 01_allreduce_ub *' script polaris.pbs
  prints 'allreduce_ub [\\][*]$'
}

@test "a Slurm job and a PBS job run what they print" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  stub srun 'while [[ $1 = -* ]]; do shift; done; exec mpirun --oversubscribe -np 4 "$@"'
  SLURM_SUBMIT_DIR=$TOP script slurm.sbatch --cpu 02_allreduce_sm
  exits_with 0
  diff <("$TOP/tests/golden.sh" 02_allreduce_sm 4) "$WORK/out"
  says '^rank 3: host .*, local rank 3, GPU none, on the CPU$'
  stub mpiexec 'while [[ $1 != */gpu_of_rank.sh ]]; do shift; done; exec mpirun --oversubscribe -np 4 "$@"'
  PBS_O_WORKDIR=$TOP EXAMPLE="--cpu 01_allreduce_ub" script polaris.pbs
  exits_with 0
  diff <("$TOP/tests/golden.sh" 01_allreduce_ub 4) "$WORK/out"
}

@test "hosts.sh on 2 and 4 simulated hosts, which MPI takes for real ones" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  mpirun --version 2>/dev/null | grep -q 'Open MPI) 4' || skip "simulated for Open MPI 4 only"
  unset OMPI_MCA_plm
  export OMPI_MCA_plm_rsh_agent=$WORK/ssh OMPI_MCA_btl=self,tcp TMPDIR=$WORK/tmp
  cp "$TOP/tests/simulated_ssh.sh" "$WORK/ssh"
  for example in 01_allreduce_ub 03_alltoallv_sm; do
    script hosts.sh --per-host 2 sim1,sim2 --cpu "$example"
    exits_with 0
    diff <("$TOP/tests/golden.sh" "$example" 4 | sed 's/device [23]$/device X/;s/device 0$/device X/;s/device 1$/device X/') \
      <(sed 's/device [01]$/device X/' "$WORK/out")
  done
  script hosts.sh --per-host 1 sim1,sim2,sim3,sim4 --cpu 01_allreduce_ub --digest
  exits_with 0
  [ "$(grep -c 'using device 0$' "$WORK/out")" = 4 ] || show
  [ "$(grep -c '^rank [0-3]: host .*, local rank 0, ' "$WORK/err")" = 4 ] || show
  prints '^Results verified correctly$'
}

@test "multihost_sim.sh: ranks are dealt to hosts in blocks; the examples run" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  stub show 'echo $OMPI_COMM_WORLD_RANK $NCCL_HOSTID'
  for rows in '4 2 0 0 1 1' '4 4 0 1 2 3' '3 2 0 0 1' '5 2 0 0 0 1 1' '2 1 0 0'; do
    read -r ranks hosts wanted <<<"$rows"
    NP=$ranks script multihost_sim.sh "$hosts" --cpu show
    exits_with 0
    [ "$(sort "$WORK/out" | sed 's/.*simulated//' | tr '\n' ' ')" = "$wanted " ] || show
  done
  for example in 01_allreduce_ub 03_alltoallv_sm; do
    script multihost_sim.sh 2 --cpu "$example"
    exits_with 0
    diff <("$TOP/tests/golden.sh" "$example" 4) "$WORK/out"
    says '^rank 2: host simulated1$'
  done
}

@test "wrong arguments: one line, exit code 2" {
  for arguments in "" "a,b" "a b" "a,,b 01_allreduce_ub" "-x 01_allreduce_ub" "--per-host 0 a 01_allreduce_ub" \
    "--per-host 08 a 01_allreduce_ub" "--per-host 1025 a 01_allreduce_ub" "--per-host 4611686018427387904 a,b --dry-run 01_allreduce_ub" \
    "--per-host" "--per-host 1 a --nonsense 01_allreduce_ub" "--per-host 1 a 09_nothing"; do
    # shellcheck disable=SC2086
    script hosts.sh $arguments
    exits_with 2
    prints_nothing
    one_line '^hosts.sh: .*allowed: '
  done
  for arguments in "" "0 01_allreduce_ub" "x 01_allreduce_ub" "2" "5 --cpu 01_allreduce_ub" "2 --cpu 09_nothing" \
    "08 --cpu 01_allreduce_ub" "99999999999999999999 --cpu 01_allreduce_ub"; do
    # shellcheck disable=SC2086
    script multihost_sim.sh $arguments
    exits_with 2
    prints_nothing
    one_line '^multihost_sim.sh: .*allowed: '
  done
  CUDA_VISIBLE_DEVICES='' script hosts.sh a,b --dry-run 01_allreduce_ub
  exits_with 2
  one_line '^hosts.sh: no GPU here; allowed: --per-host N$'
  CUDA_VISIBLE_DEVICES='' script multihost_sim.sh 2 --dry-run 01_allreduce_ub
  exits_with 2
  one_line '^multihost_sim.sh: no GPU here; allowed: NP=N, 2 or more$'
  for ranks in x 08 1 -4 65537 4611686018427387904 '4 4'; do
    NP=$ranks script multihost_sim.sh 2 --dry-run 01_allreduce_ub
    exits_with 2
    one_line "^multihost_sim.sh: NP='$ranks' is not a number of ranks; allowed: 2 to 65536$"
  done
  MPIRUN=no-such-mpirun NP=2 script multihost_sim.sh 2 --cpu true
  exits_with 2
  says '^multihost_sim.sh: no no-such-mpirun here; allowed: a machine that has it, or --dry-run$'
  cd "$TOP"
  for name in slurm.sbatch polaris.pbs; do
    script $name
    exits_with 2
    one_line "^$name: which example[?] allowed: 01_allreduce_ub "
  done
}
