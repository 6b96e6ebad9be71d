# SPDX-License-Identifier: Apache-2.0
# The build rules, in a copy of the tree whose path has a blank.
load helper

setup_file() { :; }

setup() {
  WORK=$(mktemp -d)
  COPY="$WORK/a copy"
  mkdir "$COPY"
  tar -C "$TOP" --exclude=build --exclude=.git --exclude=results -cf - . | tar -C "$COPY" -xf -
  cd "$COPY" || return
  # builds in half the time
  export CFLAGS="-O0"
}

launcher_of() { "$1" --version | sed -n 's/^launcher: \([A-Za-z]*\).*/\1/p'; }

# What was built may be read-only: in a checkout of somebody else's, on a file system of a cluster.
@test "in an example's folder: make, MPI=1, run, clean; the link is the program made last; a read-only tree stays as it is" {
  local as_user=()
  cd 01_allreduce_ub
  make -s CPU=1
  [ "$(launcher_of ./allreduce_ub)" = pthread ]
  [ ! -e ../build/cpu-pthread/alltoallv_sm ]
  # in turns
  if [[ $LAUNCHERS == *mpi* ]]; then
    make -s CPU=1 MPI=1
    [ "$(launcher_of ./allreduce_ub)" = MPI ]
    # nothing to be done
    make CPU=1 >"$WORK/again"
    [ ! -s "$WORK/again" ]
    [ "$(launcher_of ./allreduce_ub)" = pthread ]
  fi
  NTHREADS=3 make -s CPU=1 run >"$WORK/out"
  diff <("$TOP/tests/golden.sh" 01_allreduce_ub 3) "$WORK/out"
  make -s CPU=1 run ARGS="--count 5 --digest" >"$WORK/out"
  grep -q '^Digest: ' "$WORK/out"
  make help >"$WORK/out"
  grep -q 'MPI=1' "$WORK/out"

  [ "$(id -u)" != 0 ] || as_user=(setpriv --reuid=65534 --regid=65534 --clear-groups)
  chmod 755 "$WORK"
  chmod -R a+rX,a-w "$COPY"
  "${as_user[@]}" make -s CPU=1 >"$WORK/out" 2>&1
  [ ! -s "$WORK/out" ]
  CUDA_VISIBLE_DEVICES='' "${as_user[@]}" ../scripts/run_all.sh --no-install 01 >"$WORK/out" 2>"$WORK/err"
  [ ! -s "$WORK/err" ]
  NTHREADS=2 "${as_user[@]}" ./allreduce_ub >"$WORK/out"
  diff <("$TOP/tests/golden.sh" 01_allreduce_ub 2) "$WORK/out"
  chmod -R u+w "$COPY"
  make -s clean
  [ ! -e ../build/cpu-pthread/allreduce_ub ]
  [ ! -L allreduce_ub ]
}

@test "a change of a header, of a file or of a flag rebuilds what is made of it, and nothing else" {
  local test=build/cpu-pthread/tests/allreduce
  make -s CPU=1 01_allreduce_ub $test
  touch common/verify/verify.h
  make CPU=1 01_allreduce_ub $test >"$WORK/out"
  grep -q 'CC .*common/verify/verify\.c$' "$WORK/out"
  grep -q "LINK .*$test\$" "$WORK/out"
  ! grep -q 'watchdog' "$WORK/out" || return 1
  # checks stay checks
  export CFLAGS="-O0 -ffast-math"
  make CPU=1 V=1 01_allreduce_ub/ >"$WORK/out" # as a shell completes the name
  grep -q 'ffast-math.*main\.c' "$WORK/out"
  # times that are not there
  ./01_allreduce_ub/allreduce_ub --bench -b 16 -e 16 -n 1 --repetitions 1 >"$WORK/out"
  ! grep -q nan "$WORK/out" || return 1
  make CPU=1 01_allreduce_ub >"$WORK/out"
  [ ! -s "$WORK/out" ]
  echo 'int unused(int argument) { int nothing; return 0; }' >>01_allreduce_ub/main.c
  # a warning stops the checks only
  make -s CPU=1 01_allreduce_ub 2>"$WORK/err"
  grep -q 'warning: ' "$WORK/err"
  touch 01_allreduce_ub/main.c
  ! make -s CPU=1 STRICT=1 01_allreduce_ub 2>"$WORK/err" || return 1
}

@test "flags that relax arithmetic reach no kernel: NaN is no number, sums keep their order" {
  cat >02_allreduce_sm/sums.cu <<'CU'
#include <stdio.h>
#include <stdlib.h>
static __global__ void add(float *x)
{
  x[3] = x[0] != x[0], x[4] = x[1] + x[2] - x[1];
}
int main()
{
  float x[5] = {strtof("nan", NULL), 1e8f, 1}, *device;
  cudaMalloc(&device, sizeof x);
  cudaMemcpy(device, x, sizeof x, cudaMemcpyDefault);
  add<<<1, 1>>>(device);
  cudaMemcpy(x, device, sizeof x, cudaMemcpyDefault);
  printf("%g %g\n", x[3], x[4]);
}
CU
  make -s CPU=1 CFLAGS="-O0 -ffast-math" build/cpu/02_allreduce_sm/sums.cu.o build/cpu-pthread/libcpu_standin.so
  g++ build/cpu/02_allreduce_sm/sums.cu.o -o sums -Lbuild/cpu-pthread -lcpu_standin -Wl,-rpath,"$PWD/build/cpu-pthread"
  [ "$(./sums)" = "1 0" ]
}

@test "what is missing is said in one line" {
  ! make -s CUDA_HOME=/nowhere 2>"$WORK/err" || return 1
  grep -q 'no nvcc at /nowhere/bin/nvcc; allowed: CUDA_HOME=.*CPU=1' "$WORK/err"
  [ "$(wc -l <"$WORK/err")" = 1 ]
  ! make -s CPU=1 CC=no-such-compiler 2>"$WORK/err" || return 1
  grep -q 'no no-such-compiler; allowed: CC=' "$WORK/err"
  make -n CPU=1 CC="gcc -m64" >"$WORK/out"
  for prefix in "" " " "/a b" '/"a' '/\a' "/'a" "/~a"; do
    ! make install CPU=1 PREFIX="$prefix" DESTDIR="$WORK/stage" >"$WORK/out" 2>"$WORK/err" || return 1
    grep -q "PREFIX='.*' cannot be used; allowed: a folder, without blanks" "$WORK/err"
    [ ! -s "$WORK/out" ]
  done
  if [ -x "$(cuda_home)/bin/nvcc" ]; then
    ! make -s NCCL_HOME=/nowhere 2>"$WORK/err" || return 1
    grep -q 'no nccl.h in /nowhere/include; allowed: NCCL_HOME=' "$WORK/err"
  fi
  make CUDA_HOME=/nowhere help >"$WORK/out"
  grep -q '^make install ' "$WORK/out"
}

@test "compile_commands.json: the command of every file" {
  make -s CPU=1 EXAMPLE=02_allreduce_sm compile_commands.json
  python3 - 02_allreduce_sm/main.c common/launch/launcher_pthread.c tests/unit/test_verify.c <<'PY'
import json, subprocess, sys
commands = {entry["file"]: entry for entry in json.load(open("compile_commands.json"))}
for name in sys.argv[1:]:
    subprocess.run(commands[name]["command"].split(" -MMD ")[0] + " -fsyntax-only " + name, shell=True, check=True,
                   cwd=commands[name]["directory"])
PY
}

@test "make run MPI=1 without a GPU is one process, which says so" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  why=$(missing_for_gpu_build)
  [ -z "$why" ] || skip "$why"
  [ "$(gpu_count)" = 0 ] || skip "there is a GPU"
  cd "$TOP/01_allreduce_ub"
  unset CFLAGS
  ! make -s MPI=1 run >"$WORK/out" 2>"$WORK/err" || return 1
  [ "$(grep -c '^allreduce_ub: no GPU: ' "$WORK/err")" = 1 ]
}
