#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs an example on this machine as if its ranks were on several hosts: NCCL takes ranks with different
# NCCL_HOSTID for ranks of different hosts and goes through the network between them (here sockets on
# the loopback interface, a few GB/s).
#
#   scripts/multihost_sim.sh [--dry-run] [--cpu] HOSTS EXAMPLE [OPTIONS]
#   NP=4 scripts/multihost_sim.sh 2 03_alltoallv_sm
#
#   NP=N        ranks (default: the GPUs, 4 with --cpu); the first N / HOSTS are host 0 and so on
#   --dry-run   print the command
#   --cpu       the CPU stand-in, to which NCCL_HOSTID means nothing: all ranks stay on one host
#
# One process per rank (`make MPI=1`): a process has one NCCL_HOSTID, so threads cannot be hosts.
set -euo pipefail
# shellcheck source=scripts/lib/lib.sh
. "$(dirname "$(realpath "$0")")/lib/lib.sh"
# shellcheck source=scripts/lib/job.sh
. "$TOP/scripts/lib/job.sh"

hosts=''
job_arguments hosts "$@"
whole_number "$hosts" 1 1024 || die "'$hosts' is not a number of hosts; allowed: 1 to 1024"
job_program
ranks=${NP:-$([ "$build" = gpu ] && gpu_count || echo 4)}
[ "$ranks" != 0 ] || [ -n "${NP:-}" ] || die "no GPU here; allowed: NP=N, $hosts or more"
whole_number "$ranks" "$hosts" 65536 || die "NP='$ranks' is not a number of ranks; allowed: $hosts to 65536"
[ "$build" = gpu ] || echo "note: the stand-in has one host, whatever NCCL_HOSTID says" >&2

# shellcheck disable=SC2016 # for the shell of each rank
job_run mpi_run "$ranks" bash -c 'rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
export NCCL_HOSTID=simulated$((rank * $1 / $0)); echo "rank $rank: host $NCCL_HOSTID" >&2
exec "${@:2}"' "$ranks" "$hosts" "${program[@]}"
