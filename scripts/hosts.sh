#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A run on several hosts without a scheduler, by Open MPI's `mpirun --host` (it logs in with ssh):
#
#   scripts/hosts.sh [--per-host N] HOST,HOST... [--dry-run] [--cpu] EXAMPLE [OPTIONS]
#   scripts/hosts.sh node1,node2 02_allreduce_sm --bench -G 1
#
#   --per-host N   ranks on each host (default: the GPUs of this one)
#   --dry-run      print the command
#   --cpu          the CPU stand-in (all its ranks have to be on one machine)
#
# The suite has to be at the same path on all hosts, built with `make MPI=1`. Variables NCCL_* of this
# shell reach all ranks.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/job.sh
. "$(dirname "$0")/job.sh"

per_host=$(gpu_count) given=
case ${1:-} in
--per-host)
  per_host=${2:-} given=yes
  shift $(($# > 1 ? 2 : 1))
  ;;
-h | --help) sed -n '3,14s/^# \{0,1\}//p' "$0" && exit 0 ;;
esac
[ "$per_host" != 0 ] || [ -n "$given" ] || die "no GPU here; allowed: --per-host N"
whole_number "$per_host" 1 1024 || die "--per-host: '$per_host' is not a number of ranks; allowed: 1 to 1024"
[[ ${1:-} =~ ^[A-Za-z0-9][A-Za-z0-9._-]*(,[A-Za-z0-9][A-Za-z0-9._-]*)*$ ]] ||
  die "'${1:-}' is no list of hosts; allowed: HOST,HOST..."
IFS=, read -ra hosts <<<"$1"
job_arguments "${@:2}"

slots=$(printf ",%s:$per_host" "${hosts[@]}")
forwarded=()
for name in "${!NCCL_@}"; do forwarded+=(-x "$name"); done
job_run mpi_run $((per_host * ${#hosts[@]})) --host "${slots:1}" "${forwarded[@]}" \
  "$TOP/scripts/gpu_of_rank.sh" "${program[@]}"
