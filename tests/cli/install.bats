# SPDX-License-Identifier: Apache-2.0
# make install and make dist, and programs that use what was installed.
# shellcheck disable=SC2016,SC2034 # text with backquotes; the variable code is read by the helper
load helper

EXAMPLES="01_allreduce_ub 02_allreduce_sm 03_alltoallv_sm 04_sparse_allreduce"

setup() {
  WORK=$(mktemp -d)
  mkdir "$WORK/tmp"
  cd "$TOP" || return
  export PKG_CONFIG_PATH=$WORK/prefix/lib/pkgconfig
}

# One rank that sends ten floats to itself, in plain C.
write_program() {
  cat >"$WORK/program.c" <<'C'
#include <allreduce.h>
#include <alltoallv.h>
#include <sparse_allreduce.h>
#include <stdio.h>

int main(void)
{
  const size_t count = 10, zero = 0;
  float *send, *recv, last = 0;
  ncclUniqueId id;
  ncclComm_t comm;
  allreduce_t own;
  alltoallv_t handle;
  if (ncclGetUniqueId(&id) || ncclCommInitRank(&comm, 1, id, 0) || ncclMemAlloc((void **)&send, 4096) ||
      ncclMemAlloc((void **)&recv, 4096) || alltoallv_init(comm, NULL, &handle) ||
      alltoallv_register(handle, recv, 4096))
    return 1;
  cudaMemcpy(send + 9, &(float){42}, sizeof(float), cudaMemcpyHostToDevice);
  if (alltoallv(send, &count, &zero, recv, &count, &zero, ncclFloat, handle, NULL)) return 2;
  cudaStreamSynchronize(NULL);
  cudaMemcpy(&last, recv + 9, sizeof last, cudaMemcpyDeviceToHost);
  /* one rank: no kernel, but the host code is linked */
  if (allreduce_create(comm, NULL, &own) || !allreduce_has_type(ncclHalf) || allreduce_destroy(own)) return 4;
  printf("%g %s\n", last, sparse_allreduce_name(SPARSE_OKTOPK));
  if (alltoallv_unregister(handle, recv) || alltoallv_destroy(handle)) return 3;
  return ncclMemFree(send) || ncclMemFree(recv) || ncclCommDestroy(comm);
}
C
}

@test "a program made with pkg-config from the installed library, on the stand-in" {
  make -s install CPU=1 PREFIX="$WORK/prefix"
  write_program
  [ "$(pkg-config --modversion nccl-examples-cpu)" = "$(suite_version)" ]
  # shellcheck disable=SC2046 # several words
  gcc -std=c11 -Wall -Wextra -Wpedantic -Werror -o "$WORK/program" "$WORK/program.c" \
    $(pkg-config --cflags --libs nccl-examples-cpu)
  [ "$("$WORK/program" 2>/dev/null)" = "42 oktopk" ]
  # shellcheck disable=SC2046
  printf '#include <%s>\n' allreduce.h alltoallv.h sparse_allreduce.h | g++ -Wall -Wextra -Werror -fsyntax-only -x c++ $(pkg-config --cflags nccl-examples-cpu) -
}

@test "usage.c of AllReduce and AlltoAllV with the installed library, as three processes" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  make -w install CPU=1 MPI=1 PREFIX="$WORK/prefix" # as in a make -C, which must not mix with the lists
  # shellcheck disable=SC2046
  "$(mpicc_command)" -o "$WORK/usage" 03_alltoallv_sm/lib/usage.c $(pkg-config --cflags --libs nccl-examples-cpu)
  mpi_job 3 "$WORK/usage" >"$WORK/out" 2>"$WORK/err"
  [ "$(grep -c 'received 6 floats, the last is 2$' "$WORK/out")" = 3 ]
  # shellcheck disable=SC2046
  "$(mpicc_command)" -o "$WORK/usage" 02_allreduce_sm/own/usage.c $(pkg-config --cflags --libs nccl-examples-cpu)
  mpi_job 3 "$WORK/usage" >"$WORK/out" 2>"$WORK/err"
  [ "$(grep -c 'has the sum 6$' "$WORK/out")" = 3 ]
}

@test "the shared library offers what sparse_allreduce.h declares, needs no MPI, and can be loaded from its folder" {
  for launcher in $LAUNCHERS; do
    scripts/install.sh "cpu-$launcher" "$WORK/prefix"
    library=$WORK/prefix/lib/libsparse_allreduce_cpu.so
    diff <(grep -oE '^[a-z].*\bsparse_allreduce_[a-z_]+\(' 04_sparse_allreduce/lib/sparse_allreduce.h | grep -v '^static' |
      grep -oE 'sparse_allreduce_[a-z_]+\($' | tr -d '(' | sort) <(nm -D --defined-only "$library" | awk '{ print $3 }' | sort)
    if ldd "$library" | grep -E 'libmpi|not found'; then false; fi
  done
  python3 -c "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]); name = library.sparse_allreduce_name; name.restype = ctypes.c_char_p; assert name(5) == b'oktopk'; assert library.sparse_allreduce_nccl_version() == 22809" "$library"
  cmp 04_sparse_allreduce/pytorch/sparse_allreduce_torch.py "$WORK/prefix/lib/sparse_allreduce_torch.py"
}

@test "all builds fit into one PREFIX, and programs run from there" {
  for launcher in $LAUNCHERS; do scripts/install.sh "cpu-$launcher" /usr "$WORK/stage"; done
  for example in $EXAMPLES; do
    NTHREADS=2 "$WORK/stage/usr/bin/$(program_of "$example")_cpu" --count 1000 >"$WORK/out" 2>"$WORK/err"
    grep -q ' verified correctly$' "$WORK/out"
  done
  NTHREADS=2 "$WORK/stage/usr/bin/sparse_training_cpu" --epochs 1 | grep -q '^All ranks had the same weights'
  [[ $LAUNCHERS != *mpi* ]] || "$WORK/stage/usr/bin/allreduce_ub_mpi_cpu" --version | grep -q '^launcher: MPI'
  grep -qx 'prefix=/usr' "$WORK/stage/usr/lib/pkgconfig/nccl-examples-cpu.pc" # not the stage
  [ "$(find "$WORK" -type f -path '*/stage/*' | grep -cv "^$WORK/stage/usr/")" = 0 ]
}

@test "the GPU build, installed and linked" {
  why=$(missing_for_gpu_build)
  [ -z "$why" ] || skip "$why"
  for example in $(examples); do [ -x "$(built_program "$example" gpu pthread)" ] || skip "$example is not built for GPUs"; done
  scripts/install.sh gpu-pthread "$WORK/prefix"
  write_program
  # shellcheck disable=SC2046
  gcc -std=c11 -Wall -Wextra -Wpedantic -Werror -o "$WORK/program" "$WORK/program.c" \
    $(pkg-config --cflags --libs nccl-examples)
  ldd "$WORK/program" | grep -q 'libnccl.so.2 => /'
  [ -x "$WORK/prefix/bin/alltoallv_sm" ]
}

@test "a clone with an odd name installs the same library; a PREFIX that compilers would not see is refused" {
  odd="$WORK/it's [a] \"b\" c=d \\e \$f"
  mkdir "$odd"
  tar -cf - --exclude=.git --exclude=results --exclude='build/*-*-*' --exclude=build/gpu-\* --exclude=build/cpu-mpi . | tar -C "$odd" -xf -
  scripts/install.sh cpu-pthread "$WORK/here"
  make -s -C "$odd" install CPU=1 PREFIX="../odd=~+prefix" DESTDIR="$WORK/a stage"
  [ "$(ar t "$WORK/a stage$WORK/odd=~+prefix/lib/libnccl_examples_cpu.a")" = "$(ar t "$WORK/here/lib/libnccl_examples_cpu.a")" ]
  [ "$(ar t "$WORK/here/lib/libnccl_examples_cpu.a" | wc -l)" -gt 10 ]
  PKG_CONFIG_PATH="$WORK/a stage$WORK/odd=~+prefix/lib/pkgconfig"
  [[ " $(pkg-config --cflags nccl-examples-cpu) " == *" -I$WORK/odd=~+prefix/include "* ]]
  for name in 'x y' "it's" 'a,b' 'a:b' 'a"b' 'a[b' 'a\b' ü; do
    code=0
    make -s install CPU=1 PREFIX="$WORK/$name" >"$WORK/out" 2>"$WORK/err" || code=$?
    exits_with 2
    grep -v '^make' "$WORK/err" >"$WORK/lines" || true
    mv "$WORK/lines" "$WORK/err"
    one_line "^install.sh: PREFIX='.*' would not reach compilers whole by pkg-config; allowed: letters"
    [ ! -e "$WORK/$name" ]
  done
}

@test "install.sh: what fails leaves the files of before, and no others" {
  scripts/install.sh cpu-pthread /usr "$WORK/stage"
  echo old | tee "$WORK/stage/usr/bin/allreduce_ub_cpu" >"$WORK/stage/usr/lib/libnccl_examples_cpu.a"
  cp -r "$WORK/stage" "$WORK/before"
  full_disk '*'
  code=0
  PATH=$WORK/bin:$PATH scripts/install.sh cpu-pthread /usr "$WORK/stage" >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 1
  one_line '^tee: .*/nccl-examples-cpu.pc.*.new: No space left on device$'
  diff -r "$WORK/before" "$WORK/stage"
  [ "$(stat -c %a "$WORK/stage/usr/lib/libnccl_examples_cpu.a" "$WORK/stage/usr/bin/allreduce_ub_cpu" | xargs)" = "644 755" ]
}

@test "make dist packs what is committed, and it builds" {
  git rev-parse -q --verify HEAD >/dev/null || skip "no git checkout"
  git clone -q . "$WORK/clone" # so that the package does not appear here
  touch "$WORK/clone/not-committed"
  make -s -C "$WORK/clone" dist >"$WORK/out"
  name=nccl-examples-$(suite_version)
  [ "$(cat "$WORK/out")" = "$name.tar.gz" ]
  tar -C "$WORK" -xzf "$WORK/clone/$name.tar.gz"
  [ ! -e "$WORK/$name/not-committed" ]
  [ -f "$WORK/$name/LICENSE.txt" ]
  make -s -C "$WORK/$name/01_allreduce_ub" CPU=1 CFLAGS=-O0
  NTHREADS=2 "$WORK/$name/01_allreduce_ub/allreduce_ub" >"$WORK/out" 2>/dev/null
  diff <("$TOP/tests/golden.sh" 01_allreduce_ub 2) "$WORK/out"
}

@test "install.sh: wrong arguments and builds that are not there" {
  for arguments in "" "cpu /usr" "cpu-pthread" "cpu-pthread-address $WORK/prefix"; do
    code=0
    # shellcheck disable=SC2086 # several words
    scripts/install.sh $arguments >"$WORK/out" 2>"$WORK/err" || code=$?
    exits_with 2
    one_line '^install.sh: .*; allowed: '
  done
  git clone -q . "$WORK/clone" 2>/dev/null || skip "no git checkout"
  code=0
  "$WORK/clone/scripts/install.sh" cpu-pthread "$WORK/prefix" >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 2
  one_line '^install.sh: no 01_allreduce_ub/build/cpu-pthread/allreduce_ub; `make` with the same switches makes it$'
  [ ! -e "$WORK/prefix" ]
}
