# SPDX-License-Identifier: Apache-2.0
# The build rules, in a copy of the tree whose path has a blank.
load helper

setup() {
  WORK=$(mktemp -d)
  COPY="$WORK/a copy"
  mkdir "$COPY"
  tar -C "$TOP" --exclude=build --exclude=.git --exclude=results -cf - . | tar -C "$COPY" -xf -
  export CFLAGS="-O0" # builds in half the time
}

launcher_of() { "$1" --version | sed -n 's/^launcher: \([A-Za-z]*\).*/\1/p'; }

@test "make; make MPI=1; make leaves the right program each time" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  cd "$COPY/01_allreduce_ub"
  make -s CPU=1
  [ "$(launcher_of ./allreduce_ub)" = pthread ]
  make -s CPU=1 MPI=1
  [ "$(launcher_of ./allreduce_ub)" = MPI ]
  make -s CPU=1
  [ "$(launcher_of ./allreduce_ub)" = pthread ]
  make -s CPU=1 >"$WORK/again" # nothing to be done
  [ ! -s "$WORK/again" ]
  NTHREADS=2 ./allreduce_ub >"$WORK/out"
  diff <("$TOP/tests/golden.sh" 01_allreduce_ub 2) "$WORK/out"
  make -s CPU=1 clean
  [ ! -e build ]
  [ ! -L allreduce_ub ]
}

@test "all examples at once: -j, both launchers in parallel, from the top" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  cd "$COPY"
  make -s -j4 CPU=1 both
  for example in $EXAMPLES; do
    for launcher in pthread mpi; do
      [ -x "$example/build/cpu-$launcher/$(program_of "$example")" ]
    done
    NTHREADS=2 "$example/build/cpu-pthread/$(program_of "$example")" >"$WORK/out"
    diff <("$TOP/tests/golden.sh" "$example" 2) "$WORK/out"
  done
  make -s clean
  for example in $EXAMPLES; do
    [ ! -e "$example/build" ]
    for name in $(programs_of "$example"); do [ ! -L "$example/$name" ]; done
  done
}

@test "one example by its directory's name, make run, make help" {
  cd "$COPY"
  make -s CPU=1 01_allreduce_ub
  [ -x 01_allreduce_ub/allreduce_ub ]
  [ ! -e 02_allreduce_sm/build ]
  NTHREADS=3 make -s -C 01_allreduce_ub CPU=1 run >"$WORK/out"
  diff <("$TOP/tests/golden.sh" 01_allreduce_ub 3) "$WORK/out"
  make -s -C 01_allreduce_ub CPU=1 run ARGS="--count 5 --digest" | grep -q '^Digest: '
  make help | grep -q 01_allreduce_ub
  for target in both run test install dist clean help; do make help | grep -q "^make $target  "; done
  make -C 01_allreduce_ub help | grep -q 'MPI=1'
}

@test "a change of a header or of a flag rebuilds" {
  cd "$COPY/01_allreduce_ub"
  make -s CPU=1
  touch ../common/verify/verify.h
  make CPU=1 | grep -q 'verify\.c\.o'
  make CPU=1 CFLAGS="-O0 -DANYTHING" | grep -q 'DANYTHING.*main\.c'
  make -s CPU=1 CFLAGS="-O0 -DANYTHING" >"$WORK/again"
  [ ! -s "$WORK/again" ]
}

@test "a test links what its example links, made anew in the example's folder after a change" {
  cd "$COPY/tests/gpu/allreduce"
  make -s CPU=1
  NTHREADS=1 ./allreduce_cases >"$WORK/out"
  [ ! -e build/cpu-pthread/common ]
  make -s CPU=1 >"$WORK/again"
  [ ! -s "$WORK/again" ]
  sed -i '1i #include "../nothing.h"' "$COPY/common/verify/verify.c"
  ! make -s CPU=1 2>"$WORK/err" || return 1
  grep -q 'nothing\.h' "$WORK/err"
  : >"$COPY/common/nothing.h"
  touch build/before
  make -s CPU=1
  [ "$COPY/01_allreduce_ub/build/cpu-pthread/common/verify/verify.c.o" -nt build/before ]
  [ build/cpu-pthread/allreduce_cases -nt build/before ]
}

# What was built may be read-only: in a checkout of somebody else's, on a file system of a cluster.
@test "a read-only checkout that is built: nothing to be done, and everything runs" {
  local as_user=()
  [ "$(id -u)" != 0 ] || as_user=(setpriv --reuid=65534 --regid=65534 --clear-groups)
  mkdir -m 777 "$WORK/user"
  chmod 755 "$WORK"
  cd "$COPY"
  if [[ $LAUNCHERS == *mpi* ]]; then make -s -j2 CPU=1 01_allreduce_ub/both; fi
  make -s CPU=1 01_allreduce_ub
  chmod -R a+rX,a-w .
  cd 01_allreduce_ub
  TMPDIR=$WORK/user HOME=$WORK/user "${as_user[@]}" make -s CPU=1 >"$WORK/out" 2>&1
  [ ! -s "$WORK/out" ]
  TMPDIR=$WORK/user HOME=$WORK/user "${as_user[@]}" ../scripts/run_all.sh --cpu --no-install 01_allreduce_ub \
    >"$WORK/out" 2>&1 || { cat "$WORK/out" && false; }
  for launcher in $LAUNCHERS; do
    grep -q "^01_allreduce_ub  *$launcher  *4  verified$" "$WORK/out"
  done
  chmod -R u+w "$COPY"
}

@test "what is missing is said in one line" {
  cd "$COPY/01_allreduce_ub"
  for name in 'CUDA_HOME=/a b' "NCCL_HOME=/it's" 'MPI_HOME=/a[b]' 'CUDA_HOME=/a\b'; do
    code=0
    make -s "$name" 2>"$WORK/err" || code=$?
    [ $code = 2 ]
    grep -qF "${name%%=*}='${name#*=}' is a path that make cannot take; allowed: " "$WORK/err"
    [ "$(wc -l <"$WORK/err")" = 1 ]
  done
  ! make -s CUDA_HOME=/nowhere 2>"$WORK/err" || return 1
  grep -q 'no nvcc at /nowhere/bin/nvcc; allowed: CUDA_HOME=' "$WORK/err"
  [ "$(wc -l <"$WORK/err")" = 1 ]
  ! make -s CPU=1 CC=no-such-compiler 2>"$WORK/err" || return 1
  grep -q 'no no-such-compiler; allowed: scripts/setup.sh to install it, or CC=' "$WORK/err"
  [ "$(wc -l <"$WORK/err")" = 1 ]
  if [ -x "$(cuda_home)/bin/nvcc" ]; then
    ! make -s NCCL_HOME=/nowhere 2>"$WORK/err" || return 1
    grep -q 'no nccl.h in /nowhere/include; allowed: NCCL_HOME=' "$WORK/err"
    [ "$(wc -l <"$WORK/err")" = 1 ]
  fi
}
