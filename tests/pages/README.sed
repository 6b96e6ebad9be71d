s/run_all.sh/& --no-install 01_allreduce_ub/
s/test.sh/& --no-install spdx/
s,./scripts/bench.sh --out,cp -r results/2xH200-nccl2.28,
s,^sbatch.*,make -s CPU=1 MPI=1 03_alltoallv_sm,
/^qsub/d
/^mpirun --host/d
s,^mpirun -np,. scripts/lib.sh; mpi_run,
s,gpu-mpi,cpu-mpi,
