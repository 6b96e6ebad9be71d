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
rows=() verified=0 failed=0
for launcher in pthread mpi; do
  no_mpi=
  if [ $launcher = mpi ]; then
    have_mpi || no_mpi="skipped: no MPI"
    switches+=(MPI=1)
  fi
  if [ -z "$no_mpi" ]; then
    make -k -j "$(nproc)" "${switches[@]}" "${examples[@]}" 2>"$work/errors" | grep LINK
    sed 's/^/    /' "$work/errors"
  fi
  for example in "${examples[@]}"; do
    for name in $(programs_of "$example"); do
      program=build/$kind-$launcher/$name code=0 result=$no_mpi begin=$SECONDS shown=$example
      [ "$name" = "$(program_of "$example")" ] || shown=$name
      if [ -z "$result" ]; then
        make -s "${switches[@]}" "$program" >/dev/null 2>&1 || result="failed: does not build"
      fi
      if [ -z "$result" ]; then
        run_program $launcher "$ranks" "$program" >"$work/log" 2>&1 </dev/null || code=$?
        case $code in
        0) result=verified ;;
        77) result="skipped: $(grep -m 1 "^$name: " "$work/log" || tail -n 1 "$work/log")" ;;
        *) result="failed: exit code $code" && sed 's/^/    /' "$work/log" ;;
        esac
      fi
      echo "$shown, $launcher: $result, $((SECONDS - begin)) s"
      case $result in verified) verified=$((verified + 1)) ;; failed*) failed=$((failed + 1)) ;; esac
      rows+=("$(printf '%-22s %-9s %5s  %s' "$shown" $launcher "$ranks" "$result")")
    done
  done
done

printf '\n%-22s %-9s %5s  %s\n' example launcher ranks result
printf '%s\n' "${rows[@]}" | sort -s -k 1,1
[ $kind = gpu ] || echo "(on the CPU stand-in)"
[ $failed = 0 ] && [ $verified -gt 0 ]
