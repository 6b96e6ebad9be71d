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

make -s -C "$TOP" "${switches[@]}" all
for example in $(examples); do
  program=$TOP/build/$variant/$(program_of "$example")
  case $example in
  04_*)
    run 0 4 "$program" --count 3000 --steps 34
    run 0 2 "$program" --count 66000 --steps 2 # the reference on several cores
    run 0 3 "$program" --bench --count 3000 --steps 3
    training=$TOP/build/$variant/sparse_training
    # of 1437 images: one is left for the third step, in which three ranks have none
    run 0 4 "$training" --algorithm dense,oktopk-no-residual --epochs 1 --batch 718 --seeds 2 -J "$work/epochs.csv"
    ;;
  *)
    run 0 4 "$program" --count 70001
    run 0 3 "$program" --bench -b 4 -e 64K -n 3 --repetitions 3
    run 0 2 "$program" --bench -b 1K -e 16K -n 3 --repetitions 2 -G 2
    ;;
  esac
  run 2 2 "$program" --nonsense
  run 0 2 "$program" --version
  CPU_STANDIN_MEMORY=4096 run 2 2 "$program"
done
[ "$launcher" = pthread ] || exit 0
for source in "$TOP"/tests/unit/test_*.c; do
  test=$(basename "$source" .c)
  # one thread has no races, and the training above has those of the perceptron; what the published effects run is
  # the reference, of which there are tests enough
  case $sanitize:$test in thread:test_reference* | thread:test_mlp | *:test_published) continue ;; esac
  make -s -C "$TOP" "${switches[@]}" "build/$variant/tests/$test"
  echo "== $test"
  "${front[@]}" "$TOP/build/$variant/tests/$test"
done
