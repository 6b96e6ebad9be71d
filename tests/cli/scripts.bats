# SPDX-License-Identifier: Apache-2.0
# setup.sh and run_all.sh as their users see them.
# shellcheck disable=SC2034 # the variable code is read by the helper
load helper

# A PATH with everything but the given commands.
path_without() {
  local name
  mkdir -p "$WORK/bin"
  ln -sf -t "$WORK/bin" /usr/bin/* /bin/* 2>/dev/null || true # some twice
  for name in "$@"; do rm -f "$WORK/bin/$name"; done
  echo "$WORK/bin"
}

script() { # script NAME [ARGUMENTS]: sets code, $WORK/out, $WORK/err
  code=0
  "$TOP/scripts/$1" "${@:2}" >"$WORK/out" 2>"$WORK/err" </dev/null || code=$?
}

@test "setup.sh says what is missing and installs nothing when told so" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  script setup.sh --no-install
  exits_with 0
  prints_nothing
  PATH=$(path_without make mpirun bats shellcheck) script setup.sh --no-install
  exits_with 1
  prints '^missing: make, MPI$'
  PATH=$(path_without make mpirun bats shellcheck) script setup.sh --no-install --tests
  exits_with 1
  prints '^missing: make, MPI, bats, shellcheck$'
}

@test "setup.sh without apt-get, and with one that fails: one line, exit code 1" {
  PATH=$(path_without make apt-get) script setup.sh
  exits_with 1
  says '^setup.sh: no apt-get here'
  printf '#!/bin/sh\necho "apt-get $*" >>%q\necho it broke\nexit 100\n' "$WORK/calls" >"$WORK/bin/apt-get"
  printf '#!/bin/sh\nexec "$@"\n' >"$WORK/bin/sudo"
  chmod +x "$WORK/bin/apt-get" "$WORK/bin/sudo"
  PATH=$WORK/bin script setup.sh
  exits_with 1
  says '^it broke'
  says '^setup.sh: apt-get install failed'
  grep -q 'install -y --no-install-recommends make$' "$WORK/calls" # only what is missing
}

@test "unknown arguments: one line, exit code 2" {
  for name in setup.sh run_all.sh test.sh; do
    script $name --nonsense
    exits_with 2
    prints_nothing
    one_line "^$name: unknown .*'--nonsense'; allowed: "
    script $name --help
    exits_with 0
    prints "scripts/$name"
  done
  for name in nonsense 'full 05_nothing' 'quick tests/unit' --nonsense; do
    # shellcheck disable=SC2086 # words
    script gpu_check.sh $name
    exits_with 2
    prints_nothing
    one_line "^gpu_check.sh: (unknown option|no example) '${name##* }'; allowed: "
  done
  for name in dist.sh gpu_check.sh; do
    script $name --help
    exits_with 0
    prints "scripts/$name"
    prints_not '^(#|set |case )'
  done
}

@test "run_all.sh: every example under both launchers, a table, exit code 0" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  script run_all.sh --cpu --no-install
  exits_with 0
  for example in $(examples); do
    prints "^$example +pthread +4  verified$"
    prints "^$example +mpi +4  verified$"
  done
}

@test "run_all.sh with names: these examples only; a name that is none: one line, exit code 2" {
  MPICC=no-such-mpicc script run_all.sh --cpu --no-install 02_allreduce_sm/ 01_allreduce_ub
  exits_with 0
  [ "$(sed -n '/^example/,$p' "$WORK/out" | sed 's/ .*//' | xargs)" = \
    "example 02_allreduce_sm 02_allreduce_sm 01_allreduce_ub 01_allreduce_ub (on" ] || show
  prints '^01_allreduce_ub +pthread +4  verified$'
  prints '^01_allreduce_ub +mpi +-  skipped: no no-such-mpicc$'
  for name in 05_nothing common ''; do
    script run_all.sh --cpu --no-install 01_allreduce_ub "$name"
    exits_with 2
    prints_nothing
    one_line "^run_all.sh: no example '$name'; allowed: $(examples | xargs)$"
  done
}

@test "run_all.sh says once why it runs on the stand-in" {
  CUDA_HOME=/nowhere script run_all.sh --no-install 01_allreduce_ub 02_allreduce_sm
  exits_with 0
  [ "$(grep -c 'no nvcc at /nowhere/bin/nvcc: running on the CPU stand-in' "$WORK/out")" = 1 ] || show
}

@test "run_all.sh: a failing example is shown, exit code 1" {
  [[ $LAUNCHERS == *mpi* ]] || skip "no MPI"
  LD_PRELOAD=$FAULT_FOLDER/fault.so FAULT=fail:ncclCommRegister:1:1 \
    script run_all.sh --cpu --no-install 01_allreduce_ub 02_allreduce_sm
  exits_with 1
  prints '^ +\[rank 1\] main.c:[0-9]+: ncclCommRegister'
  prints '^01_allreduce_ub +pthread +4  failed: exit code 3$'
  prints '^01_allreduce_ub +mpi +4  failed: exit code 3$'
  prints '^02_allreduce_sm +pthread +4  verified$'
}

@test "run_all.sh: nothing but skipped rows is exit code 1" {
  CPU_STANDIN_DEVICES=0 script run_all.sh --cpu --no-install
  exits_with 1
  prints '^01_allreduce_ub +pthread +4  skipped: allreduce_ub: no GPU'
}
