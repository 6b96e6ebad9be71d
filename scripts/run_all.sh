#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs every example, or those named, on all GPUs under both launchers (one thread or one MPI process per
# GPU), and prints a line for each. Without a GPU (or with CUDA_VISIBLE_DEVICES=), nvcc or NCCL it runs them on the
# CPU stand-in.
#
#   scripts/run_all.sh [--no-install] [EXAMPLE...]     (02 is 02_allreduce_sm)
#
#   --no-install   install nothing; without it gcc, make and MPI are installed if they are missing
#
# Exit code 0: nothing failed and something ran; 1: otherwise; 2: usage.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$(realpath "$0")")/lib.sh"

arguments "--no-install EXAMPLE..." "$@"
choose_examples "${words[@]}"
prepare "" ""
build_examples
begin_checks 2

for name in $(make -s -C "$TOP" print-PROGRAMS EXAMPLE="${examples[*]}"); do
  for launcher in $launchers; do
    check "$name, $launcher, $ranks ranks" build_and_run "$launcher" "$name"
  done
done
end_checks
