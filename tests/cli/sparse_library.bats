# SPDX-License-Identifier: Apache-2.0
# sparse_allreduce.h and its operators, without the program of 04_sparse_allreduce.
load helper
export EXAMPLES="04_sparse_allreduce tests/gpu/sparse_steps tests/gpu/sparse"

# What 04_sparse_allreduce/README.md says of copying, for the stand-in.
@test "lib/ copied with the library of 03 is all that it takes: C++ takes the header, usage.c compiles and runs" {
  [[ $LAUNCHERS = *mpi* ]] || skip "no MPI"
  local mine=$FAULT_FOLDER/mine # not in a path with a blank, for the loader
  cp -r "$TOP/04_sparse_allreduce/lib" "$mine"
  cp -r "$TOP/03_alltoallv_sm/lib" "$mine/alltoallv" && rm "$mine/alltoallv/usage.c"
  cp -r "$TOP/04_sparse_allreduce/cpu" "$mine" && ln -s alltoallv "$mine/lib"
  cp "$TOP/build/cpu-mpi/libcpu_standin.so" "$mine"
  cd "$mine"
  # stream NULL may be another one for NCCL than for the library: the library does without it
  cat >named.h <<'C'
#include <stdlib.h>
#include <cuda_runtime.h>
#include <nccl.h>
#define NAMED(stream) ((stream) != NULL ? (stream) : (abort(), (cudaStream_t)NULL))
#define ncclAllGather(a, b, c, d, e, stream) ncclAllGather(a, b, c, d, e, NAMED(stream))
#define cudaMemcpyAsync(a, b, c, d, stream) cudaMemcpyAsync(a, b, c, d, NAMED(stream))
#define cudaMemsetAsync(a, b, c, stream) cudaMemsetAsync(a, b, c, NAMED(stream))
C
  local include=(-isystem "$TOP/common/cpu/include" -I"$TOP/common" -I"$TOP/common/cpu" -I. -Ialltoallv)
  echo '#include "sparse_allreduce.h"' | g++ -Wall -Wextra -Werror -fsyntax-only -x c++ "${include[@]}" -
  perl "$TOP/common/cpu/cuda.pl" g++ -O1 "${include[@]}" -c alltoallv/lsa.cu -o lsa.o
  "$(mpicc_command)" -std=c11 -D_GNU_SOURCE -Wall -Wextra -Wpedantic -Werror -DCPU_STANDIN "${include[@]}" \
    -include named.h ./*.c ./{alltoallv,cpu,paths}/*.c lsa.o -o usage -L. -lcpu_standin -Wl,-rpath,"$PWD" \
    -lm -lstdc++
  mpi_job 3 ./usage >"$WORK/out" 2>"$WORK/err"
  [ "$(sort "$WORK/out")" = "$(for rank in 0 1 2; do
    echo "rank $rank offered 66 of 10000 elements, the result has 66, the last is 20000"
  done)" ]
  # a rank that fails says why and ends the others, which wait for it
  local code=0
  mpi_job 3 env "LD_PRELOAD=$FAULT_FOLDER/fault.so" FAULT=fail:ncclAllGather:1:1 ./usage >"$WORK/out" 2>"$WORK/err" || code=$?
  [ "$code" = 1 ]
  [ ! -s "$WORK/out" ]
  grep -F './usage.c: sparse_allreduce_create(comm, COUNT, &config, &handle): ncclAllGather(' "$WORK/err"
  # NCCL's own reason stands behind its error
  code=0
  CPU_STANDIN_MEMORY=250000 mpi_job 1 ./usage >"$WORK/out" 2>"$WORK/err" || code=$?
  [ "$code" = 1 ]
  grep -F ': ncclMemAlloc((void **)&m->lists, h->lists_bytes): unhandled cuda error: ncclMemAlloc: ' "$WORK/err"
}

# steps LAUNCHER RANKS [OPTIONS]: runs tests/gpu/sparse_steps
steps() {
  local launcher=$1 ranks=$2 program=$TOP/build/cpu-$1/tests/sparse_steps
  shift 2
  if [ "$launcher" = mpi ]; then mpi_job "$ranks" "$program" "$@"; else NTHREADS=$ranks "$program" "$@"; fi
}

@test "random jobs: every step of every path is that of the reference, both launchers" {
  # jobs of a number of ranks are the same with both launchers
  for ranks in 1 2 4 7; do steps pthread $ranks --cases 100 --seed "${ranks}000"; done >"$WORK/out" 2>"$WORK/err"
  steps "${LAUNCHERS##* }" 3 --cases 100 --seed 3000 >>"$WORK/out" 2>>"$WORK/err"
  [ "$(grep -cx '100 jobs verified' "$WORK/out")" = 5 ]
}

# The kernels of 04 on the stand-in, which are slow there; oktopk without messages is theirs alone.
@test "the kernels themselves: one-sided steps, with graphs, late ranks" {
  local switches=(CPU=1 SPARSE_KERNELS=1) run=(env NTHREADS=2) launcher=${LAUNCHERS##* } program
  program=$TOP/build/cpu-$launcher-sparse-kernels/tests/sparse_steps
  [ "$launcher" != mpi ] || switches+=(MPI=1) run=(mpi_job 2)
  make -s -C "$TOP" "${switches[@]}" 04_sparse_allreduce "${program#"$TOP"/}"
  "${run[@]}" "${program%/tests/*}/sparse_allreduce" --count 3000 --steps 5
  "${run[@]}" "$program" --cases 20 >"$WORK/out" 2>"$WORK/err"
  grep -qx '20 jobs verified' "$WORK/out"
  [ "$launcher" != mpi ] || grep 'note: oktopk: one-sided' "$WORK/err"
  "${run[@]}" "$program" --cases 2 --steps 20 # of oktopk, replayed as graphs
  "${run[@]}" "$program" --late
}

@test "a rank that is too late: all ranks hear of it, nobody hangs" {
  steps pthread 3 --late # where ranks are processes, those that wait keep the cores busy
}

# With several GPUs in one process, loading a kernel at its first launch waits for kernels that wait for
# ranks which have not launched theirs yet.
@test "operators: every kernel is loaded when a handle is made" {
  cd "$TOP/04_sparse_allreduce"
  for file in lib/*/*.cu; do
    loaded=$(sed -n '/ops_load_kernels load/,/;/p' "$file" | tr -cs '[:alnum:]_' ' ')
    for kernel in $(tr '\n' ' ' <"$file" | grep -oP '__global__ void (?:[\w]+\((?:[^()]|\([^()]*\))*\)\s+)?\K\w+(?=\()'); do
      [[ " $loaded " = *" $kernel "* ]] || { echo "$file: $kernel is not loaded" && false; }
      kernels=$((${kernels:-0} + 1))
    done
  done
  [ "$kernels" -ge 16 ] # all were looked at
}

@test "operators: the CPU versions do what ops.h says" {
  NTHREADS=1 "$TOP/build/cpu-pthread/tests/sparse" --quick >"$WORK/out" 2>"$WORK/err"
  [ "$(grep -c "^ok" "$WORK/out")" = "$(wc -l <"$WORK/out")" ]
  [ -s "$WORK/out" ]
}
