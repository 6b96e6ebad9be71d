# SPDX-License-Identifier: Apache-2.0
# The GPU builds, as far as they can be tested without a GPU. Built by scripts/test.sh before.
# shellcheck disable=SC2034 # the variable code is read by the helper
load helper

setup_file() { :; }

setup() {
  local why
  why=$(missing_for_gpu_build)
  [ -z "$why" ] || skip "$why"
  WORK=$(mktemp -d)
  PROGRAM=$TOP/build/gpu-pthread/allreduce_ub
  [ -x "$PROGRAM" ] || make -s -C "$TOP/01_allreduce_ub" >&2
}

teardown() { [ -z "${WORK:-}" ] || rm -rf "$WORK"; }

@test "--version shows the nccl.h of NCCL_HOME, and the host and device compilers take the same" {
  local copy=$WORK/copy home=$WORK/nccl both=all
  mkdir -p "$copy" "$home/include" "$home/lib"
  cp -r "$TOP"/{Makefile,common,scripts,tests,0*} "$copy"
  cp -rL "$(make -s -C "$TOP" print-NCCL_HOME)"/include/nccl* "$home/include"
  ln -s "$(make -s -C "$TOP" print-NCCL_LIBRARY)" "$home/lib/"
  sed -i 's/^#define NCCL_PATCH .*/#define NCCL_PATCH 99/; s/^#define NCCL_VERSION_CODE .*/#define NCCL_VERSION_CODE 22899/' \
    "$home/include/nccl.h"
  # what a .cu file sees of it stops nvcc if it is another nccl.h
  printf '#include <nccl.h>\n#if NCCL_VERSION_CODE != 22899\n#error wrong nccl.h\n#endif\n' \
    >>"$copy/common/verify/verify.cu"
  [[ $LAUNCHERS != *mpi* ]] || both=both
  make -j2 -C "$copy/01_allreduce_ub" $both CFLAGS=-O0 NCCL_HOME="$home" \
    NVCC_GENCODE="-gencode arch=compute_90,code=sm_90" >"$WORK/make"
  # for both launchers
  [ "$(grep -c NVCC "$WORK/make")" = 1 ]
  for launcher in $LAUNCHERS; do
    "$copy/build/gpu-$launcher/allreduce_ub" --version >"$WORK/out"
    grep -q '^NCCL header [0-9]*\.[0-9]*\.99, runtime ' "$WORK/out"
  done
}

@test "an NCCL library older than the headers: one line, exit code 77" {
  mkdir "$WORK/old"
  gcc -std=c11 -Wall -Wextra -Werror -shared -fPIC -Wl,-soname,libnccl.so.2 \
    -o "$WORK/old/libnccl.so.2" "$TOP/tests/old_nccl.c"
  for example in $EXAMPLES; do
    program=$TOP/build/gpu-pthread/${example#*_} code=0
    [ -x "$program" ] || make -s -C "$TOP/$example" >&2
    LD_LIBRARY_PATH=$WORK/old "$program" >"$WORK/out" 2>"$WORK/err" || code=$?
    exits_with 77
    prints_nothing
    one_line "^${example#*_}: the NCCL runtime is version 2\.18\.5, older than the headers"
  done
}

@test "without a GPU: one line, exit code 77" {
  [ "$(gpu_count)" = 0 ] || skip "there is a GPU"
  code=0
  "$PROGRAM" >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 77
  prints_nothing
  one_line '^allreduce_ub: no GPU: '
}

@test "the kernels of 02's direct AllReduce load nothing through the cache for read-only data" {
  have "$(cuda_home)/bin/nvcc" || skip "no nvcc"
  "$(cuda_home)/bin/nvcc" -std=c++17 --ptx -arch=sm_90 -I"$(make -s -C "$TOP" print-NCCL_HOME)/include" -o "$WORK/device.ptx" \
    "$TOP/02_allreduce_sm/lib/device.cu"
  grep -q 'entry .*push_kernel' "$WORK/device.ptx"
  # lsa_pointers runs alone, and only NCCL's own function in it does
  awk '/\.entry/ { name = $0 } /ld\.global\.nc/ && name !~ /lsa_pointers/ { print name; bad = 1 } END { exit bad }' \
    "$WORK/device.ptx"
}

@test "nvcc of CUDA 12.2 is refused: it has no stores of 128 bits" {
  g++ -E -x c++ -D__CUDACC_VER_MAJOR__=12 -D__CUDACC_VER_MINOR__=2 "$TOP/03_alltoallv_sm/lib/alltoallv_wait.cuh" 2>&1 | grep '#error.*CUDA 12.3'
}
