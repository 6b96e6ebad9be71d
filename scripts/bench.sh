#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures every example on the GPUs of this machine and writes the raw results and their provenance.
#
#   scripts/bench.sh [--out DIR]       (default: results/<date and time>)
#
# Per example, launcher (pthread, mpi) and mode (graph, eager) one CSV file, and provenance.txt.
# scripts/report.sh DIR puts the tables into the READMEs.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
out=results/$(date +%Y-%m-%d_%H%M%S)
if [ $# -eq 2 ] && [ "$1" = --out ] && [ -n "$2" ]; then
  out=$2
elif [ $# -ne 0 ]; then
  die "wrong arguments '$*'; allowed: --out DIR, or none"
fi
gpus=$(gpu_count)
if [ "$gpus" = 0 ]; then
  echo "bench.sh: no GPU here; the timings of the CPU stand-in mean nothing" >&2
  exit 77
fi
mkdir -p "$out"

provenance() {
  echo "date: $(date -u +%Y-%m-%dT%H:%M:%SZ)"
  echo "commit: $(git describe --always --dirty 2>/dev/null || echo "not a git checkout")"
  echo "command: scripts/bench.sh"
  nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader | sed 's/^/gpu: /'
  01_allreduce_ub/build/gpu-mpi/allreduce_ub --version | sed 's/^/version: /'
  env | grep '^NCCL_' | grep -v '^NCCL_VERSION' | sort | sed 's/^/environment: /' || true
  nvidia-smi topo -m | sed 's/^/topology: /;s/\x1b\[[0-9;]*m//g'
}

for folder in $(examples); do
  make -s -j -C "$folder"
  make -s -j -C "$folder" MPI=1
  for launcher in pthread mpi; do
    start=("$folder/build/gpu-$launcher/$(program_of "$folder")")
    [ $launcher = mpi ] && start=(mpi_run "$gpus" "${start[@]}")
    for graph in 0 1; do
      # refused, see 03_alltoallv_sm/alltoallv.h
      [[ $graph = 1 && $launcher = pthread && $folder = 03_* ]] && continue
      name=$folder.$launcher.$([ $graph = 1 ] && echo graph || echo eager)
      echo "== $name" >&2
      "${start[@]}" --bench -G $graph -f 4 -b 1K -e 1G -J "$out/$name.csv" | tee "$out/$name.txt"
    done
  done
done
provenance >"$out/provenance.txt"
echo "results in $out" >&2
