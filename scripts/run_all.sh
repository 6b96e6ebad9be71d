#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs every example, or those named, on all GPUs under both launchers, one thread per GPU
# and one MPI process per GPU, and ends with a table. Without GPU, nvcc or NCCL the CPU stand-in takes
# their place.
#
#   scripts/run_all.sh [--no-install] [--cpu] [EXAMPLE...]     (02 is 02_allreduce_sm)
#
#   --no-install   install nothing; without it gcc, make and MPI are installed where they are missing
#   --cpu          the CPU stand-in even where there are GPUs
#
# Exit code 0: nothing failed and something ran; 1: otherwise; 2: usage.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$(realpath "$0")")/lib.sh"

kind=gpu install=yes named=()
for argument in "$@"; do
  case $argument in
  --no-install) install=no ;;
  --cpu) kind=cpu ;;
  -h | --help) show_help ;;
  -*) die "unknown option '$argument'; allowed: --no-install --cpu EXAMPLE..." ;;
  *) named+=("$argument") ;;
  esac
done
choose_examples "${named[@]}"
! have "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" || RUN_NEEDS+=(g++) # nvcc calls it
prepare $install "${RUN_NEEDS[@]}"
cd "$TOP" || exit

ranks=$(gpu_count) switches=()
if [ $kind = gpu ]; then
  why=$(missing_for_gpu_build)
  [ "$ranks" -gt 0 ] || why="no GPU found${why:+, $why}"
  [ -z "$why" ] || { echo "$why: running on the CPU stand-in instead" && kind=cpu; }
fi
[ $kind = gpu ] || ranks=4 switches=(CPU=1)

work=$(mktemp -d) || exit
trap 'rm -rf "$work"' EXIT
launchers=(pthread)
if have_mpi; then launchers+=(mpi); fi
for launcher in "${launchers[@]}"; do
  make -k -j "$(nproc)" "${switches[@]}" MPI="${launcher/pthread/}" "${examples[@]}" 2>"$work/errors" | grep LINK
  sed 's/^/    /' "$work/errors"
done

verified=0 failed=0
printf '\n%-22s %-9s %5s  %s\n' example launcher ranks result
row() { # row EXAMPLE PROGRAM LAUNCHER: runs it and prints its row
  local program=build/$kind-$3/$2 code=0 result
  if [[ " ${launchers[*]} " != *" $3 "* ]]; then
    result="skipped: no MPI"
  elif ! make -s "${switches[@]}" MPI="${3/pthread/}" "$program" >/dev/null 2>&1; then
    result="failed: does not build"
  else
    run_program "$3" "$ranks" "$program" >"$work/log" 2>&1 </dev/null || code=$?
    case $code in
    0) result=verified && verified=$((verified + 1)) ;;
    77) result="skipped: $(grep -m 1 "^$2: " "$work/log" || tail -n 1 "$work/log")" ;;
    *) result="failed: exit code $code" ;;
    esac
  fi
  printf '%-22s %-9s %5s  %s\n' "$1" "$3" "$ranks" "$result"
  [[ $result != failed* ]] || failed=$((failed + 1))
  [[ $code =~ ^(0|77)$ ]] || sed 's/^/    /' "$work/log"
}
for example in "${examples[@]}"; do
  for name in $(programs_of "$example"); do
    shown=$example
    [ "$name" = "$(program_of "$example")" ] || shown=$name
    for launcher in pthread mpi; do row "$shown" "$name" $launcher; done
  done
done
[ $kind = gpu ] || echo "(on the CPU stand-in)"
[ $failed = 0 ] && [ $verified -gt 0 ]
