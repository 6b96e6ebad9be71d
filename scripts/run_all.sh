#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs every example, or those named, on all GPUs under both launchers, one thread per GPU
# and one MPI process per GPU, and ends with a table. Without GPU, nvcc or NCCL the CPU stand-in takes
# their place.
#
#   scripts/run_all.sh [--no-install] [--cpu] [EXAMPLE...]
#
#   --no-install   install nothing, skip what cannot be built
#   --cpu          the CPU stand-in even where there are GPUs
#
# Exit code 0: nothing failed and something ran; 1: otherwise; 2: usage.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# `make run MPI=1` hands these down, and here both launchers are made
unset MAKEFLAGS MAKELEVEL MFLAGS MPI CPU SANITIZE

cpu=no setup_options=() named=()
for argument in "$@"; do
  case $argument in
  --no-install) setup_options=(--no-install) ;;
  --cpu) cpu=yes ;;
  -h | --help) sed -n '3,13s/^# \{0,1\}//p' "$0" && exit 0 ;;
  -*) die "unknown option '$argument'; allowed: --no-install --cpu EXAMPLE..." ;;
  *) named+=("$argument") ;;
  esac
done
choose_examples "" "${named[@]}"

"$TOP/scripts/setup.sh" "${setup_options[@]}" || echo "going on with what is here"

# ---- GPUs or the stand-in ------------------------------------------------------------------------
ranks=$(gpu_count)
if [ $cpu = no ]; then
  why=$(missing_for_gpu_build)
  [ "$ranks" -gt 0 ] || why="no GPU found${why:+, $why}"
  if [ -n "$why" ]; then
    echo "$why: running on the CPU stand-in instead"
    cpu=yes
  fi
fi
build=gpu
if [ $cpu = yes ]; then build=cpu ranks=4; fi

# ---- build and run -------------------------------------------------------------------------------
log=$(mktemp)
trap 'rm -f "$log"' EXIT
rows=() verified=0 failed=0

row() { # row EXAMPLE LAUNCHER RANKS RESULT
  rows+=("$(printf '%-22s %-9s %5s  %s' "$@")")
  echo "$1, $2: $4"
}
fail() { # fail EXAMPLE LAUNCHER RESULT: shows what was printed
  sed 's/^/    /' "$log"
  row "$1" "$2" "$ranks" "failed: $3"
  failed=$((failed + 1))
}

run_one() { # run_one EXAMPLE LAUNCHER
  local example=$1 launcher=$2 program code=0 switches=()
  program=build/$build-$launcher/$(program_of "$example")
  [ $build = gpu ] || switches+=(CPU=1)
  if [ "$launcher" = mpi ]; then
    switches+=(MPI=1)
    for tool in "$(mpicc_command)" "$(mpirun_command)"; do
      have "$tool" || { row "$example" "$launcher" - "skipped: no ${tool##*/}" && return; }
    done
  fi
  make -C "$TOP/$example" "${switches[@]}" >"$log" 2>&1 || code=$?
  [ $code = 0 ] || { fail "$example" "$launcher" "does not build" && return; }

  cd "$TOP/$example"
  if [ "$launcher" = mpi ]; then
    mpi_run "$ranks" "$program" >"$log" 2>&1 || code=$?
  else
    NTHREADS=$ranks "$program" >"$log" 2>&1 || code=$?
  fi
  cd "$TOP"
  case $code in
  0)
    row "$example" "$launcher" "$ranks" verified
    verified=$((verified + 1))
    ;;
  77) row "$example" "$launcher" "$ranks" "skipped: $(grep -m 1 "^$(program_of "$example"): " "$log" || tail -n 1 "$log")" ;;
  *) fail "$example" "$launcher" "exit code $code" ;;
  esac
}

for tool in gcc make; do have "$tool" || { echo "run_all.sh: cannot build without $tool" >&2 && exit 1; }; done
for example in "${examples[@]}"; do
  run_one "$example" pthread
  run_one "$example" mpi
done

# ---- the table -----------------------------------------------------------------------------------
echo
printf '%-22s %-9s %5s  %s\n' example launcher ranks result
[ ${#rows[@]} -eq 0 ] || printf '%s\n' "${rows[@]}"
[ $cpu = no ] || echo "(on the CPU stand-in)"
[ $failed = 0 ] && [ $verified -gt 0 ]
