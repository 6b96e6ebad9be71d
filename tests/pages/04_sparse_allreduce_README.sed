s/sparse_allreduce  /&--steps 2 /
s/MPI=1  /& ARGS="--steps 2"/
# 70 steps take minutes
s/SPARSE_KERNELS=1/& ARGS="--steps 2"/
s/--bench/& --count 1K --steps 2/
s/--simple/& --steps 2/
# the gradients that it reads
/^make run MPI=1 NP=2 ARGS="--algorithm oktopk/i make run MPI=1 NP=2 ARGS="--count 1K --steps 2 --algorithm topkA --results grad_%r.npy"
