# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the scripts that start jobs on clusters share; to be sourced after lib.sh.

# job_arguments VARIABLE [OPTIONS] [WORD] EXAMPLE|PROGRAM [ARGUMENTS]: takes the arguments of a script
# apart. Options, those of job_options, come in any order before EXAMPLE. Where VARIABLE is not empty, it is
# set to the word in front of EXAMPLE.
job_options=(--dry-run --cpu) dry_run=no build=gpu per_host='' program=()
job_arguments() {
  local variable=$1
  shift
  while [ $# -gt 0 ]; do
    if [[ $1 = -h || $1 = --help ]]; then
      show_help
    elif [[ $1 != -* ]]; then
      [ -n "$variable" ] || break
      printf -v "$variable" %s "$1"
      variable=
    else
      [[ " ${job_options[*]} " = *" $1 "* ]] || die "unknown option '$1'; allowed: ${job_options[*]}"
      case $1 in
      --dry-run) dry_run=yes ;;
      --cpu) build=cpu ;;
      --per-host)
        whole_number "${2:-}" 1 1024 || die "--per-host: '${2:-}' is not a number of ranks; allowed: 1 to 1024"
        # shellcheck disable=SC2034 # for hosts.sh
        per_host=$2
        shift
        ;;
      esac
    fi
    shift
  done
  program=("$@")
}

# Sets the array `program` to the command of each rank. EXAMPLE is a folder such as 02_allreduce_sm, built
# before with `make MPI=1`; no matter if its command is only printed.
job_program() {
  local switches="MPI=1"
  [ ${#program[@]} -gt 0 ] || die "which example? allowed: $(examples | tr '\n' ' ')or the path of a program"
  [ $build = gpu ] || switches="CPU=1 MPI=1"
  if [ -f "$TOP/${program[0]%/}/Makefile" ]; then program[0]=$(built_program "${program[0]%/}" "$build" mpi); fi
  if [ $dry_run = no ] && ! have "${program[0]}"; then
    die "no program ${program[0]}; allowed: \`make $switches\` before"
  fi
}

# Runs a command, or prints it with --dry-run. mpi_run of lib.sh is printed as what it calls.
job_run() {
  local command=("$@")
  [ "$1" != mpi_run ] || command=("$(mpirun_command)" -np "${@:2}")
  if [ $dry_run = yes ]; then
    printf '%q ' "${command[@]}" | sed 's/\\,/,/g;s/ $/\n/'
  else
    have "${command[0]}" || die "no ${command[0]} here; allowed: a machine that has it, or --dry-run"
    "$@"
  fi
}
