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
# shellcheck source=scripts/lib/lib.sh
. "$(dirname "$(realpath "$0")")/lib/lib.sh"

# `make run MPI=1` hands these down, and here both launchers are made
unset MAKEFLAGS MAKELEVEL MFLAGS MPI CPU SANITIZE

cpu=no setup_options=() named=()
for argument in "$@"; do
  case $argument in
  --no-install) setup_options=(--no-install) ;;
  --cpu) cpu=yes ;;
  -h | --help) show_help ;;
  -*) die "unknown option '$argument'; allowed: --no-install --cpu EXAMPLE..." ;;
  *) named+=("$argument") ;;
  esac
done
choose_examples "" "${named[@]}"

prepare "gcc make" "${setup_options[@]}"

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
build=gpu switches=()
if [ $cpu = yes ]; then build=cpu ranks=4 switches=(CPU=1); fi
no_mpi=
for tool in "$(mpicc_command)" "$(mpirun_command)"; do have "$tool" || no_mpi=${no_mpi:-"no ${tool##*/}"}; done

# ---- build ---------------------------------------------------------------------------------------
work=$(temporary_folder) || exit
trap 'rm -rf "$work"' EXIT
log=$work/log

# Of make's output a line for each program, that it is linked now, and one when there was none for a while.
show_progress() {
  local line files=0 said=0
  while IFS= read -r line; do
    if [[ $line =~ LINK\ +build/[a-z]+-(pthread|mpi)/([a-z_]+)$ ]]; then
      echo "  ${BASH_REMATCH[2]}, ${BASH_REMATCH[1]}: built after $SECONDS s"
      said=$SECONDS
    elif [[ $line =~ ^\ +(CC|NVCC)\  ]]; then
      files=$((files + 1))
      [ $((SECONDS - said)) -ge 10 ] || continue
      echo "  $files files compiled after $SECONDS s"
      said=$SECONDS
    fi
  done
}

cores=$(nproc)
what=both
[ -z "$no_mpi" ] || what=all
echo "building ${#examples[@]} example$([ ${#examples[@]} = 1 ] || echo s), $cores files at a time"
SECONDS=0
all_built=yes # what is not will say so in its row
make -C "$TOP" -k -j "$cores" --no-print-directory "${switches[@]}" EXAMPLE="${examples[*]}" $what 2>"$log" | show_progress ||
  all_built=no
echo "built after $SECONDS s"

# ---- run -----------------------------------------------------------------------------------------
rows=() verified=0 failed=0

row() { # row EXAMPLE LAUNCHER RANKS RESULT
  rows+=("$(printf '%-22s %-9s %5s  %s' "$@")")
  echo "$4, $SECONDS s"
}
fail() { # fail EXAMPLE LAUNCHER RESULT: shows what was printed
  row "$1" "$2" "$ranks" "failed: $3"
  sed 's/^/    /' "$log"
  failed=$((failed + 1))
}

run_one() { # run_one EXAMPLE PROGRAM LAUNCHER: a row by the example's name, or that of its second program
  local example=$1 name=$2 launcher=$3 program shown=$1 code=0 of_launcher=()
  program=../build/$build-$launcher/$name
  [ "$name" = "$(program_of "$example")" ] || shown=$name
  SECONDS=0
  printf '%s, %s: ' "$shown" "$launcher"
  if [ "$launcher" = mpi ]; then
    [ -z "$no_mpi" ] || { row "$shown" "$launcher" - "skipped: $no_mpi" && return; }
    of_launcher=(MPI=1)
  fi
  if [ $all_built = no ]; then
    make -C "$TOP" "${switches[@]}" "${of_launcher[@]}" "$example" >"$log" 2>&1 || code=$?
    [ $code = 0 ] || { fail "$shown" "$launcher" "does not build" && return; }
  fi

  cd "$TOP/$example"
  if [ "$launcher" = mpi ]; then
    mpi_run "$ranks" "$program" >"$log" 2>&1 || code=$?
  else
    NTHREADS=$ranks "$program" >"$log" 2>&1 || code=$?
  fi
  cd "$TOP"
  case $code in
  0)
    row "$shown" "$launcher" "$ranks" verified
    verified=$((verified + 1))
    ;;
  77) row "$shown" "$launcher" "$ranks" "skipped: $(grep -m 1 "^$name: " "$log" || tail -n 1 "$log")" ;;
  *) fail "$shown" "$launcher" "$(how_it_failed $code "$launcher" "$name" "$log")" ;;
  esac
}

for example in "${examples[@]}"; do
  for name in $(programs_of "$example"); do
    run_one "$example" "$name" pthread
    run_one "$example" "$name" mpi
  done
done

# ---- the table -----------------------------------------------------------------------------------
echo
printf '%-22s %-9s %5s  %s\n' example launcher ranks result
[ ${#rows[@]} -eq 0 ] || printf '%s\n' "${rows[@]}"
[ $cpu = no ] || echo "(on the CPU stand-in)"
[ $failed = 0 ] && [ $verified -gt 0 ]
