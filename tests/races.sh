#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Looks for races in the kernels of 02 and 03: on the stand-in, with stores that arrive late and out of order, and threads,
# blocks and ranks in an order that a seed draws (common/cpu/races.c).
#
#   tests/races.sh [SEED...]
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../scripts/lib.sh"
cd "$TOP" || exit
export CPU_STANDIN_QUIET=1 NTHREADS CPU_STANDIN_RACES
build=build/cpu-pthread-races failed=0
make -s -j "$(nproc)" CPU=1 RACES=1 02_allreduce_sm 03_alltoallv_sm $build/tests/{allreduce_direct,alltoallv} || exit

# race RANKS PROGRAM [OPTIONS...]. Ranks start when the system lets them, so a seed that failed may have to run again.
race() {
  local output
  NTHREADS=$1
  output=$(timeout 1500 "$build/$2" "${@:3}" --timeout 300 2>&1) && return
  grep -v '^ok' <<<"$output"
  echo "FAILED; again: for i in {1..9}; do NTHREADS=$NTHREADS CPU_STANDIN_RACES=$CPU_STANDIN_RACES $build/${*:2} --timeout 300; done"
  failed=1
}

for CPU_STANDIN_RACES in "${@:-1}"; do
  for ranks in 2 3; do
    race $ranks tests/allreduce_direct
    race $ranks tests/alltoallv --cases 40
    race $ranks allreduce_sm --bench --minbytes 4K --maxbytes 4K --iters 20 --repetitions 3
  done
done
for CPU_STANDIN_RACES in $(seq 30); do # quick, with few chances
  for ranks in 2 3; do race $ranks alltoallv_sm --method barrier --count 6K --pattern random; done
done
exit $failed
