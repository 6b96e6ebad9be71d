# SPDX-License-Identifier: Apache-2.0
# make install, and programs that use what was installed.
# shellcheck disable=SC2016,SC2046 # text with backquotes; several words of pkg-config
load helper

EXAMPLES="01_allreduce_ub 02_allreduce_sm 03_alltoallv_sm 04_sparse_allreduce"

setup() {
  WORK=$(mktemp -d)
  mkdir "$WORK/tmp"
  cd "$TOP" || return
  export PKG_CONFIG_PATH=$WORK/prefix/lib/pkgconfig
}

# compile_usage PACKAGE: usage.c of each library, with what pkg-config says of PACKAGE; needs MPI
compile_usage() {
  local example
  for example in 0[2-4]_*; do
    "$(mpicc_command)" -std=c11 -Wall -Wextra -Werror -o "$WORK/$example" "$example/lib/usage.c" $(pkg-config --cflags --libs "$1")
  done
}

@test "what is installed by CPU=1, both launchers in one PREFIX: programs, library by pkg-config, headers for C++" {
  local version
  version=$(make -s print-VERSION)
  make -s install CPU=1 PREFIX="$WORK/prefix"
  [ "$(pkg-config --modversion nccl-examples-cpu)" = "$version" ]
  if [[ $LAUNCHERS == *mpi* ]]; then
    make -s install CPU=1 MPI=1 PREFIX="$WORK/prefix"
    compile_usage nccl-examples-cpu
    for example in 0[2-4]_*; do mpi_job 2 "$WORK/$example" >"$WORK/out" 2>"$WORK/err"; done
  fi
  printf '#include <%s>\n' allreduce.h alltoallv.h sparse_allreduce.h >"$WORK/all.h"
  awk -F. '{ print "static_assert(NCCL_EXAMPLES_VERSION ==", 10000 * $1 + 100 * $2 + $3, ", \"\");" }' <<<"$version" |
    g++ -include "$WORK/all.h" -Wall -Wextra -Werror -fsyntax-only -x c++ $(pkg-config --cflags nccl-examples-cpu) -
  for example in $EXAMPLES; do
    NTHREADS=2 "$WORK/prefix/bin/${example#*_}_cpu" --count 1000 >"$WORK/out" 2>"$WORK/err"
    grep -q ' verified correctly$' "$WORK/out"
  done
  if [[ $LAUNCHERS = *mpi* ]]; then
    "$WORK/prefix/bin/allreduce_ub_mpi_cpu" --version >"$WORK/out"
    grep -q '^launcher: MPI' "$WORK/out"
  fi
  cmp 04_sparse_allreduce/pytorch/sparse_update_optimizer.py "$WORK/prefix/lib/sparse_update_optimizer.py"
}

@test "the shared library offers what sparse_allreduce.h declares, and needs no MPI" {
  for launcher in $LAUNCHERS; do
    library=build/cpu-$launcher/libsparse_allreduce.so
    diff <(grep -oE '^[a-z].*\bsparse_allreduce_[a-z_]+\(' 04_sparse_allreduce/lib/sparse_allreduce.h | grep -v '^static' |
      grep -oE 'sparse_allreduce_[a-z_]+\($' | tr -d '(' | sort) <(nm -D --defined-only "$library" | awk '{ print $3 }' | sort)
    if ldd "$library" | grep -E 'libmpi|not found'; then false; fi
  done
}

@test "CMake: the three lines of docs/libraries.md, after make install" {
  have cmake || skip "no cmake"
  make -s install CPU=1 PREFIX="$WORK/prefix"
  { printf 'cmake_minimum_required(VERSION 3.13)\nproject(mine CXX)\nadd_executable(my_program my.cpp)\n'
    sed -n '/^```cmake$/,/^```$/{/^```/d; s/nccl-examples/&-cpu/; p}' docs/libraries.md; } >"$WORK/CMakeLists.txt"
  printf '#include <allreduce.h>\n#include <sparse_allreduce.h>\nint main() { %s }\n' \
    'return allreduce_has_type(ncclHalf) != 1 || sparse_allreduce_name(SPARSE_OKTOPK) == nullptr;' >"$WORK/my.cpp"
  cmake -S "$WORK" -B "$WORK/build" >"$WORK/out" && cmake --build "$WORK/build" >"$WORK/out"
  "$WORK/build/my_program"
}

@test "a foreign program runs on the stand-in as it is, and a mistake that it does not look for is printed" {
  g++ -Wall -Wextra -Werror -Icommon/cpu/include -o "$WORK/foreign" tests/foreign.cpp -Lbuild/cpu-pthread -lcpu_standin \
    -Wl,-rpath,"$TOP/build/cpu-pthread"
  # without a wait it would be early
  [ "$(CPU_STANDIN_QUIET=1 CPU_STANDIN_DELAY=50 "$WORK/foreign" 2>&1)" = "0 wrong" ]
  "$WORK/foreign" mistake 2>"$WORK/err" || true
  grep -q '^CPU stand-in: an error that .* not looked at: ncclAllReduce: the count is 99999 elements on rank 1' "$WORK/err"
}

@test "DESTDIR, a clone whose path has odd characters" {
  odd="$WORK/it's [a] \"b\" c=d \\e"
  mkdir "$odd"
  tar -cf - Makefile common tests 0* build/cpu build/cpu-pthread | tar -C "$odd" -xf -
  make -s -C "$odd" install CPU=1 PREFIX="../odd" DESTDIR="$WORK/a stage"
  grep -qx "libdir=\${prefix}/lib" "$WORK"/"a stage$WORK"/odd/lib/pkgconfig/nccl-examples-cpu.pc
  grep -qx "prefix=$WORK/odd" "$WORK"/"a stage$WORK"/odd/lib/pkgconfig/nccl-examples-cpu.pc
}

@test "the GPU build, installed and linked" {
  why=$(missing_for_gpu_build)
  [ -z "$why" ] || skip "$why"
  for example in $(examples); do [ -x "$(built_program "$example" gpu pthread)" ] || skip "$example is not built for GPUs"; done
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  make -s install PREFIX="$WORK/prefix" ${NVCC:+"NVCC=$NVCC"}
  compile_usage nccl-examples
  ldd "$WORK/03_alltoallv_sm" | grep -q 'libnccl.so.2 => /'
  [ -x "$WORK/prefix/bin/alltoallv_sm" ]
}
