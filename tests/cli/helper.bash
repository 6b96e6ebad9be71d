# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the bats files share. They test the CPU builds as a user would run them.

# shellcheck source=scripts/lib.sh
. "$BATS_TEST_DIRNAME/../../scripts/lib.sh"

LAUNCHERS="pthread"
if have "$(mpicc_command)" && have "$(mpirun_command)"; then LAUNCHERS="pthread mpi"; fi
EXAMPLES="01_allreduce_ub 02_allreduce_sm"

# The caller's environment must not change what is tested.
unset NTHREADS FAULT LD_PRELOAD "${!NCCL_@}" "${!CPU_STANDIN_@}" "${!OMPI_@}" "${!PMI_@}" "${!PMIX_@}"
unset MAKEFLAGS MAKELEVEL MFLAGS CPU MPI SANITIZE
# No explanations of exit codes by mpirun; ranks on this host only.
export OMPI_MCA_orte_execute_quiet=1 OMPI_MCA_pml=ob1 OMPI_MCA_plm=isolated

# make_variant EXAMPLE|tests/gpu/FOLDER LAUNCHER
make_variant() {
  local switches=(CPU=1) target=$1
  [ "$2" != mpi ] || switches+=(MPI=1)
  [[ $1 != tests/* ]] || target=build/cpu-$2/tests/${1##*/}
  make -s -C "$TOP" "${switches[@]}" "$target"
}

# make_both [TARGET]: all that can be made here, for all launchers
make_both() {
  if [[ $LAUNCHERS == *mpi* ]]; then make -s -C "$TOP" CPU=1 "${1:-both}"; else make -s -C "$TOP" CPU=1 all tests; fi
}

# tests/fault.c; not in the tree, since the loader takes no path with a blank in it
build_fault() {
  FAULT_FOLDER=$(mktemp -d)
  export FAULT_FOLDER
  gcc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Wpedantic -Werror -shared -fPIC \
    -isystem "$TOP/common/cpu/include" -o "$FAULT_FOLDER/fault.so" "$TOP/tests/fault.c" -ldl >&2
}

# Builds what the tests run; does nothing where all is up to date.
setup_file() {
  local example launcher
  for example in $EXAMPLES; do
    for launcher in $LAUNCHERS; do make_variant "$example" "$launcher" >&2; done
  done
  build_fault
}

teardown_file() { [ -z "${FAULT_FOLDER:-}" ] || rm -rf "$FAULT_FOLDER"; }

setup() {
  WORK=$(mktemp -d)
  mkdir "$WORK/tmp"
}

teardown() { rm -rf "$WORK"; }

# EXAMPLE LAUNCHER
program_path() { built_program "$1" cpu "$2"; }

# mpi_run of lib.sh. Only a job that hangs meets a limit: what takes a second may take a minute on a busy machine. The kill is for mpirun as well as for the shell that waits for
# it: with the shell gone, timeout would think that all is over.
mpi_job() {
  # shellcheck disable=SC2016 # for the inner bash
  timeout -k 5 600 bash -c 'trap : TERM && . "$0" && mpi_run "$@"' "$TOP/scripts/lib.sh" "$@"
}

# build_changed LAUNCHER EXAMPLE SED-SCRIPT [PATCH]: $WORK/program is the example with a main.c, $WORK/main.c, that
# a patch of the example and then sed -E have changed.
build_changed() {
  local build=$TOP/build/cpu-$1 compiler=gcc from=$TOP/$2/main.c
  [ -z "${4:-}" ] || { patch -s -o "$WORK/patched.c" "$from" "$TOP/$2/$4" && from=$WORK/patched.c; }
  sed -E "$3" "$from" >"$WORK/main.c"
  if cmp -s "$TOP/$2/main.c" "$WORK/main.c"; then echo "sed has changed nothing" && return 1; fi
  [ "$1" = pthread ] || compiler=$(mpicc_command)
  # shellcheck disable=SC2046 # words
  (cd "$TOP" && "$compiler" $(make -s CPU=1 print-C_FLAGS) -Werror $(make -s CPU=1 print-INCLUDES) -o "$WORK/program" \
    "$WORK/main.c" "$build/launcher.o" "$TOP/build/cpu/$2.a" "$TOP/build/cpu/common.a" \
    -Wl,-rpath,"$build" -L"$build" -lcpu_standin -lm -lstdc++)
}

# start LAUNCHER RANKS EXAMPLE [ARGUMENTS]: runs the program to its end; then the variable code is
# its exit code, $WORK/out its stdout and $WORK/err its stderr. RANKS - leaves the number to the
# program (no NTHREADS, no mpirun). FAULT=... in front of it is carried out. What hangs ends with exit
# code 124.
start() {
  local launcher=$1 ranks=$2 example=$3 command=()
  shift 3
  [ -z "${FAULT:-}" ] || command+=(env "LD_PRELOAD=$FAULT_FOLDER/fault.so" "FAULT=$FAULT")
  if [ "$ranks" != - ] && [ "$launcher" = pthread ]; then command+=(env "NTHREADS=$ranks"); fi
  command+=("$(program_path "$example" "$launcher")" "$@")
  # What Open MPI leaves behind goes to $WORK, and of each run to a folder of its own: a program without
  # mpirun leaves a daemon, which may remove the folder while the next one begins in it.
  local -x TMPDIR OMPI_MCA_btl_vader_backing_directory
  TMPDIR=$(mktemp -d "$WORK/tmp/run.XXXX")
  OMPI_MCA_btl_vader_backing_directory=$TMPDIR
  code=0
  if [ "$launcher" = mpi ] && [ "$ranks" != - ]; then
    mpi_job "$ranks" "${command[@]}" >"$WORK/out" 2>"$WORK/err" || code=$?
  else
    timeout -k 5 600 "${command[@]}" >"$WORK/out" 2>"$WORK/err" </dev/null || code=$?
  fi
}

# The checks below print what was there when they fail.
show() {
  echo "exit code $code; stdout:"
  cat "$WORK/out"
  echo "stderr:"
  cat "$WORK/err"
  return 1
}

exits_with() { [ "$code" = "$1" ] || { echo "wanted exit code $1" && show; }; }
fails_at_once() { [[ $code != 0 && $code != 4 ]] || { echo "wanted a failure, not by the watchdog" && show; }; }
says() { grep -qE -e "$1" "$WORK/err" || { echo "stderr lacks: $1" && show; }; }
says_not() { ! grep -qE -e "$1" "$WORK/err" || { echo "unwanted on stderr: $1" && show; }; }
prints() { grep -qE -e "$1" "$WORK/out" || { echo "stdout lacks: $1" && show; }; }
prints_not() { ! grep -qE -e "$1" "$WORK/out" || { echo "unwanted on stdout: $1" && show; }; }
prints_nothing() { [ ! -s "$WORK/out" ] || { echo "stdout is not empty" && show; }; }

# Nothing on stderr but notes and one line, which matches.
one_line() {
  [ "$(grep -cv '^note: ' "$WORK/err")" = 1 ] || { echo "wanted one line on stderr" && show; }
  says "$1"
}

# No process with that word in its command line is left, after a moment to die.
nobody_left() {
  # does not match itself in grep's command line
  local pattern="[${1:0:1}]${1:1}"
  for _ in {1..600}; do
    grep -aqs -e "$pattern" /proc/[0-9]*/cmdline || return 0
    sleep 0.1
  done
  echo "left behind:" && grep -as -e "$pattern" /proc/[0-9]*/cmdline | tr '\0' ' '
  return 1
}

# shellcheck disable=SC2034 # for the tests of 04_sparse_allreduce, as the rest of this file
SMALL=(--count 3000 --steps 5)

# sparse LAUNCHER RANKS [OPTIONS]
sparse() { start "$1" "$2" 04_sparse_allreduce "${@:3}"; }

verified() {
  sparse "$@"
  exits_with 0
  prints '^All paths verified correctly$'
}

# digest LAUNCHER RANKS [OPTIONS]: adds the line to $WORK/digests
digest() {
  verified "$@" --digest
  grep '^Digest: [0-9a-f]\{16\}$' "$WORK/out" >>"$WORK/digests"
}

one_digest() {
  cat "$WORK/digests"
  [ "$(sort -u "$WORK/digests" | wc -l)" = 1 ]
  rm "$WORK/digests"
}
