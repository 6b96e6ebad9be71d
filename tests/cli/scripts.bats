# SPDX-License-Identifier: Apache-2.0
# run_all.sh, bench.sh and gpu_check.sh as their users see them, on the stand-in.
# shellcheck disable=SC2016,SC2034 # code for other shells; the variable code is read by the helper
load helper
# the stand-in everywhere
export CUDA_VISIBLE_DEVICES=

# script NAME|/PATH [ARGUMENTS]: sets code, $WORK/out, $WORK/err
script() {
  [[ $1 = /* ]] || set -- "$TOP/scripts/$1" "${@:2}"
  code=0
  "$@" >"$WORK/out" 2>"$WORK/err" </dev/null || code=$?
}

# $WORK/bin: every command but those named.
path_without() {
  local name
  mkdir "$WORK/bin"
  # some twice
  ln -s -t "$WORK/bin" /usr/bin/* /bin/* 2>/dev/null || true
  for name in "$@"; do rm -f "$WORK/bin/$name"; done
}

@test "--help is the head of each script; unknown arguments are one line and exit code 2" {
  for name in run_all.sh test.sh gpu_check.sh bench.sh; do
    script $name --help
    exits_with 0
    prints "scripts/$name"
    prints_not '^(#|set |case |shellcheck)'
    script $name --nonsense
    exits_with 2
    prints_nothing
    one_line "^$name: unknown .*'--nonsense'; allowed: "
  done
  for name in run_all.sh gpu_check.sh bench.sh; do
    script $name 05_nothing
    exits_with 2
    one_line "^$name: no example '05_nothing'; allowed: 01_allreduce_ub "
  done
}

@test "what is missing is said in one line with --no-install, which installs nothing" {
  path_without gcc make mpirun apt-get
  for arguments in "run_all.sh --no-install" "test.sh --no-install" "bench.sh --no-install --out $WORK/results" gpu_check.sh; do
    # shellcheck disable=SC2086 # words
    PATH=$WORK/bin script $arguments
    exits_with 1
    prints_nothing
    one_line 'missing: gcc make mpirun.*; as root: apt-get install gcc g.. libc6-dev make .*openmpi-bin'
  done
}

@test "what is missing is installed, after a line that says what and why" {
  path_without mpirun sudo
  rm -f "$WORK/bin/apt-get"
  printf '#!/bin/sh\necho "apt-get $*" >>"$WORK/calls"\n' >"$WORK/bin/apt-get"
  printf '#!/bin/sh\nexec "$@"\n' >"$WORK/bin/sudo"
  chmod +x "$WORK/bin/apt-get" "$WORK/bin/sudo"
  export WORK
  PATH=$WORK/bin script run_all.sh 01
  # MPI can be done without
  exits_with 0
  prints '^missing: mpirun; .*installs'
  prints '^no MPI'
  prints '^ok +allreduce_ub, pthread, 4 ranks, '
  grep -q 'install .* openmpi-bin' "$WORK/calls"
}

@test "run_all.sh: every program under both launchers; with nothing that can run here, exit code 1" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  CPU_STANDIN_DEVICES=0 CUDA_HOME=/nowhere script run_all.sh --no-install
  exits_with 1
  prints '^no GPU found, no nvcc at /nowhere/bin/nvcc: running on the CPU stand-in'
  for name in allreduce_{ub,sm} alltoallv_sm sparse_{allreduce,training}; do
    for launcher in pthread mpi; do prints "^skip +$name, $launcher, 4 ranks: $name: no GPU"; done
  done
  [ "$(tail -n 1 "$WORK/out")" = "0 passed, 0 failed, 10 skipped" ] || show
}

@test "run_all.sh: what fails or does not build is shown, the rest runs, exit code 1" {
  LD_PRELOAD=$FAULT_FOLDER/fault.so FAULT=fail:ncclCommRegister:1:1 script run_all.sh --no-install 01 02_allreduce_sm/
  exits_with 1
  prints '^ +\[rank 1\] .*main.c:[0-9]+: ncclCommRegister'
  prints '^FAILED +allreduce_ub, pthread, 4 ranks, exit code 3'
  prints '^ok +allreduce_sm, pthread, 4 ranks, '
  mkdir "$WORK/suite"
  cp -r "$TOP"/{scripts,common,tests,Makefile,0*} "$WORK/suite"
  echo broken >>"$WORK/suite/01_allreduce_ub/main.c"
  CFLAGS=-O0 script "$WORK/suite/scripts/run_all.sh" --no-install 01 02
  exits_with 1
  prints '^FAILED +allreduce_ub, pthread, 4 ranks, exit code 2'
  prints '^ +.*main.c:.*error'
  prints '^ok +allreduce_sm, pthread, 4 ranks, '
  CFLAGS=-O0 script "$WORK/suite/scripts/test.sh" --no-install unit-options cli-bench
  exits_with 1
  [ "$(tail -n 1 "$WORK/out")" = "0 passed, 2 failed, 0 skipped" ] || show
}

@test "bench.sh without a GPU: tables without times, marked; a part that fails does not keep the others from running" {
  NCCL_NVLS_ENABLE=0 script bench.sh --no-install --out "$WORK/results"
  exits_with 0
  grep -q '^environment: NCCL_NVLS_ENABLE=0$' "$WORK/results/provenance.txt"
  for example in $(examples); do
    for launcher in $LAUNCHERS; do [ -s "$WORK/results/$example.$launcher.eager.csv" ]; done
  done
  grep -q '^stand-in: ' "$WORK/results/provenance.txt"
  grep -q '^version: NCCL header' "$WORK/results/provenance.txt"
  grep -q '^part: 01_allreduce_ub.pthread.graph --bench .*-G 1$' "$WORK/results/provenance.txt"
  awk -F, 'FNR == 1 { for (us = 1; $us != "us"; us++); next } $us != "" { exit 1 }' "$WORK"/results/0[123]*.csv
  prints '^ok +04_sparse_allreduce.pthread.eager, '
  script bench.sh --no-install --out "$WORK/results"
  exits_with 2
  one_line 'already has results; choose another --out$'
  : >"$WORK/file"
  script bench.sh --no-install --out "$WORK/file"
  exits_with 2
  one_line "^bench.sh: cannot make or write the folder '.*/file'; choose another --out$"
  LD_PRELOAD=$FAULT_FOLDER/fault.so FAULT=corrupt:ncclAllReduce:1:1 script bench.sh --no-install --out "$WORK/failed" 01
  exits_with 1
  prints '^FAILED +01_allreduce_ub.pthread.eager, exit code 1'
  prints '^FAILED +01_allreduce_ub.pthread.graph, exit code 1'
  prints '^ +\[rank 1\] bench: element '
  [ ! -e "$WORK/failed/01_allreduce_ub.pthread.eager.csv" ]
}

@test "gpu_check.sh without a GPU: one line, and exit code 1; GPUs that are there and visible count" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  script gpu_check.sh quick 02
  exits_with 1
  one_line '^gpu_check.sh: nvidia-smi shows no GPU; scripts/test.sh '
  nvidia-smi() { printf 'GPU %d: X\n' 0 1; }
  [ "$(for seen in 0 0,1,2; do CUDA_VISIBLE_DEVICES=$seen gpu_count; done | xargs)" = "1 2" ]
}

# Commands of a cluster in front of PATH: `stub NAME CODE`.
stub() {
  mkdir -p "$WORK/bin"
  printf '#!/bin/bash\n%s\n' "$2" >"$WORK/bin/$1"
  chmod +x "$WORK/bin/$1"
  PATH=$WORK/bin:$PATH
}

@test "job files start the program of the example, on as many ranks as the nodes have GPUs" {
  for command in srun mpiexec; do stub $command 'echo "$0 $*"'; done
  # schedulers run copies
  cp "$TOP"/scripts/{slurm.sbatch,polaris.pbs} "$WORK"
  export SLURM_SUBMIT_DIR=$TOP PBS_O_WORKDIR=$TOP PBS_NODEFILE=$WORK/nodes
  printf 'node%d\n' 1 1 2 2 >"$WORK/nodes"
  script "$WORK/slurm.sbatch" 02 --bench -G 1
  exits_with 0
  prints 'srun .* .*/build/gpu-mpi/allreduce_sm --bench -G 1$'
  EXAMPLE="03_alltoallv_sm --pattern skew" script "$WORK/polaris.pbs"
  exits_with 0
  prints 'mpiexec -n 8 --ppn 4 .*NCCL_NET_GDR_LEVEL=PHB .*3,2,1,0 .*/alltoallv_sm --pattern skew$'
  for name in slurm.sbatch polaris.pbs; do
    script "$WORK/$name"
    exits_with 2
    one_line "^$name: no example ''; allowed: 01_allreduce_ub "
  done
}
