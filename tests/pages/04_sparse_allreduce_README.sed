s/sparse_allreduce  /&--steps 2 /
s/MPI=1  /& ARGS="--steps 2"/
s/--bench/& --count 1K --steps 2/
s/--simple/& --steps 2/
