# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the scripts that start jobs on clusters share; to be sourced after lib.sh.

# job_arguments [--dry-run] [--cpu] EXAMPLE|PROGRAM [OPTIONS]: sets the array `program`, and what
# job_run does. EXAMPLE is a folder such as 02_allreduce_sm, built before with `make MPI=1`.
dry_run=no build=gpu program=()
job_arguments() {
  while [[ ${1:-} = --* ]]; do
    case $1 in
    --dry-run) dry_run=yes ;;
    --cpu) build=cpu ;;
    *) die "unknown option '$1'; allowed: --dry-run --cpu" ;;
    esac
    shift
  done
  [ $# -gt 0 ] || die "which example? allowed: $(examples | tr '\n' ' ')or the path of a program"
  program=("$@")
  if [ -f "$TOP/${1%/}/Makefile" ]; then program[0]=$(built_program "${1%/}" "$build" mpi); fi
  if [ $dry_run = no ] && ! command -v "${program[0]}" >/dev/null; then
    die "no program ${program[0]}; allowed: \`make MPI=1\` before, or --cpu and \`make CPU=1 MPI=1\`"
  fi
}

# Runs a command, or prints it with --dry-run. mpi_run of lib.sh is printed as what it calls.
job_run() {
  if [ $dry_run = no ]; then
    "$@"
  else
    [ "$1" != mpi_run ] || set -- "$(mpirun_command)" -np "${@:2}"
    printf '%q ' "$@" | sed 's/\\,/,/g;s/ $/\n/'
  fi
}
