# SPDX-License-Identifier: Apache-2.0
# A kernel of one's own on the stand-in, with the mistakes that docs/kernels_without_gpu.md speaks of.
export EXAMPLES="01_allreduce_ub" # for the stand-in
load helper

program_path() { echo "$WORK/program"; }

# my_kernel SED-SCRIPT [FLAGS...]: builds it with the stand-in.
my_kernel() {
  sed -E "$1" "$TOP/docs/my_kernel.cu" >"$WORK/my_kernel.cu"
  if cmp -s "$TOP/docs/my_kernel.cu" "$WORK/my_kernel.cu"; then echo "sed has changed nothing" && return 1; fi
  perl "$TOP/common/cpu/cuda.pl" g++ "${@:2}" -c "$WORK/my_kernel.cu" -o "$WORK/my_kernel.o"
  g++ "$WORK/my_kernel.o" -o "$WORK/program" -L"$TOP/build/cpu-pthread" -lcpu_standin -Wl,-rpath,"$TOP/build/cpu-pthread" -pthread
}

@test "a block that cannot go on: which threads wait where" {
  my_kernel 's/^  barrier.sync\(.*release/  if (threadIdx.x == 7) __syncwarp();&/'
  start pthread 4 mine
  exits_with 3
  says 'cudaStreamSynchronize\(stream\): 719 block [01]: 127 of 128 threads wait at a barrier of the block in my_kernel.cu:38, thread 7 at __syncwarp in my_kernel.cu:38$'
  prints_nothing
}

@test "a release too few: the race finder shows it" {
  my_kernel 's/memory_order_release/memory_order_relaxed/' -DCPU_RACES -fsanitize=thread
  code=0
  for seed in 1 2 3 4 5; do
    CPU_STANDIN_RACES=$seed start pthread 4 mine
    [ "$code" = 0 ] || break
  done
  exits_with 1
  says '^rank [0-3]: [0-9]+ of 40028 numbers are wrong$'
}
