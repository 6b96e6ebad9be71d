#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds one variant with a sanitizer of gcc, on the CPU stand-in, and runs what can be run in it.
#
#   tests/sanitize.sh address,undefined|thread pthread|mpi
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../scripts/lib.sh"
sanitize=$1 launcher=$2
variant=cpu-$launcher-${sanitize//,/-}
switches=(CPU=1 "SANITIZE=$sanitize" "CFLAGS=-O1 -g")
[ "$launcher" = pthread ] || switches+=(MPI=1)

work=$(mktemp -d) || exit
trap 'rm -rf "$work"' EXIT
cp "$TOP/tests/mpi_leaks.supp" "$work" # the options below take no path with a blank in it

export ASAN_OPTIONS=exitcode=99:detect_stack_use_after_return=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:exitcode=99
export LSAN_OPTIONS=suppressions=$work/mpi_leaks.supp:print_suppressions=0
export TSAN_OPTIONS=exitcode=99:second_deadlock_stack=1
export CPU_STANDIN_QUIET=1
unset NTHREADS LD_PRELOAD

# ThreadSanitizer cannot use the addresses of some kernels when they are random.
front=()
if [ "$sanitize" = thread ] && setarch -R true 2>/dev/null; then front=(setarch -R); fi

# MPI unloads its plugins before the end, and then nobody can name the functions that leaked: here
# nothing is unloaded.
if [ "$launcher" = mpi ]; then
  export OMPI_MCA_pml=ob1 OMPI_MCA_plm=isolated ASAN_OPTIONS=$ASAN_OPTIONS:fast_unwind_on_malloc=0
  echo 'int dlclose(void *handle) { return !handle; }' |
    gcc -shared -fPIC -x c -o "$work/no_dlclose.so" -
  front=(env "LD_PRELOAD=$(gcc -print-file-name=libasan.so) $work/no_dlclose.so")
fi

# run CODE RANKS PROGRAM [ARGUMENTS]
run() {
  local wanted=$1 ranks=$2 code=0
  shift 2
  echo "== $ranks ranks: ${*##*/}"
  if [ "$launcher" = mpi ]; then
    mpi_run "$ranks" "${front[@]}" "$@" || code=$?
  else
    NTHREADS=$ranks "${front[@]}" "$@" || code=$?
  fi
  [ $code = "$wanted" ] || { echo "exit code $code, wanted $wanted" && exit 1; }
}

make -s -C "$TOP" -j "$(nproc)" "${switches[@]}" all
while read -r code ranks program options; do
  # what the harness and kernels do is the same as threads
  [[ $launcher = pthread || $program = allreduce_ub || $options != --bench* ]] || continue
  # shellcheck disable=SC2086 # several words
  run "$code" "$ranks" "$TOP/build/$variant/$program" ${options//WORK/$work}
done <<'ROWS'
0 4 allreduce_ub --count 70001
0 3 allreduce_ub --bench -b 4 -e 64K -n 3 --repetitions 3
0 2 allreduce_ub --bench -b 1K -e 16K -n 3 --repetitions 2 -G 2
0 4 allreduce_sm --count 70001
0 3 allreduce_sm --bench -b 4 -e 64K -f 128 -n 3 -w 0 --repetitions 1
0 2 allreduce_sm --bench -b 1K -e 16K -f 16 -n 3 -w 0 --repetitions 1 -G 2
0 4 alltoallv_sm --count 70001
0 3 alltoallv_sm --bench --pattern unaligned -b 4 -e 64K -f 128 -n 3 -w 0 --repetitions 1
0 2 alltoallv_sm --bench -b 1K -e 16K -f 16 -n 3 -w 0 --repetitions 1 -G 2
0 4 sparse_allreduce --count 3000 --steps 34 --exchange sendrecv
0 2 sparse_allreduce --count 66000 --steps 2
0 3 sparse_allreduce --bench --count 3000 --steps 3
0 4 sparse_training --algorithm dense,oktopk --epochs 1 -J WORK/epochs.csv
2 2 allreduce_ub --nonsense
0 2 allreduce_ub --version
ROWS
for program in allreduce_sm alltoallv_sm sparse_allreduce; do
  CPU_STANDIN_MEMORY=4096 run 2 2 "$TOP/build/$variant/$program"
done
[ "$launcher" = pthread ] || exit 0
for source in "$TOP"/tests/unit/test_*.c; do
  test=$(basename "$source" .c)
  case $sanitize:$test in thread:test_reference* | thread:test_mlp | *:test_p[ru]*) continue ;; esac # one thread, or long
  make -s -C "$TOP" "${switches[@]}" "build/$variant/tests/$test"
  echo "== $test"
  "${front[@]}" "$TOP/build/$variant/tests/$test"
done
