#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A run on several hosts without a scheduler, by Open MPI's `mpirun --host` (it logs in with ssh):
#
#   scripts/hosts.sh [--per-host N] [--dry-run] [--cpu] HOST,HOST... EXAMPLE [OPTIONS]
#   scripts/hosts.sh node1,node2 02_allreduce_sm --bench -G 1
#
#   --per-host N   ranks on each host (default: the GPUs of this one)
#   --dry-run      print the command
#   --cpu          the CPU stand-in (all its ranks have to be on one machine)
#
# The suite has to be at the same path on all hosts, built with `make MPI=1`. Variables NCCL_* of this
# shell reach all ranks.
set -euo pipefail
# shellcheck source=scripts/lib/lib.sh
. "$(dirname "$(realpath "$0")")/lib/lib.sh"
# shellcheck source=scripts/lib/job.sh
. "$TOP/scripts/lib/job.sh"

job_options+=(--per-host)
list=''
job_arguments list "$@"
[[ $list =~ ^[A-Za-z0-9][A-Za-z0-9._-]*(,[A-Za-z0-9][A-Za-z0-9._-]*)*$ ]] ||
  die "'$list' is no list of hosts; allowed: HOST,HOST..."
IFS=, read -ra hosts <<<"$list"
job_program
per_host=${per_host:-$(gpu_count)}
[ "$per_host" != 0 ] || die "no GPU here; allowed: --per-host N"

slots=$(printf ",%s:$per_host" "${hosts[@]}")
forwarded=()
for name in "${!NCCL_@}"; do forwarded+=(-x "$name"); done
job_run mpi_run $((per_host * ${#hosts[@]})) --host "${slots:1}" "${forwarded[@]}" \
  "$TOP/scripts/gpu_of_rank.sh" "${program[@]}"
