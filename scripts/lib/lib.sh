# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What several scripts share; to be sourced. Defines TOP, the folder of the repository.

unset CDPATH # with it, cd goes elsewhere and prints where
# Numbers have a point in all files: where the locale has a comma, awk would read 5.94 as 5. Not every machine has
# C.UTF-8, in which that letter is one character; plain C is everywhere.
export LC_ALL=C
{ LC_ALL=C.UTF-8; } 2>/dev/null # bash warns where it is missing
letter=$'\303\274'
[ ${#letter} = 1 ] || LC_ALL=C
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

have() { command -v "$1" >/dev/null 2>&1; }

# For --help: the comment at the head of the script.
show_help() {
  awk 'NR > 2 { if (!/^#( |$)/) exit; sub(/^# ?/, ""); print }' "$0"
  exit 0
}

# One line on stderr, whatever is in the argument that it quotes, and exit code 2: usage.
die() {
  local message=$*
  echo "${0##*/}: ${message//[[:cntrl:]]/ }" >&2
  exit 2
}

# whole_number TEXT LOWEST HIGHEST: digits, and between these bounds. No leading zero: bash would count in eights.
whole_number() { [[ $1 =~ ^(0|[1-9][0-9]{0,8})$ ]] && [ "$1" -ge "$2" ] && [ "$1" -le "$3" ]; }

# A new folder for temporary files: work=$(temporary_folder) || exit
temporary_folder() {
  mktemp -d 2>/dev/null ||
    die "no temporary files can be made in ${TMPDIR:-/tmp}; allowed: TMPDIR=<a folder that can be written to>"
}

# prepare "TOOL..." [OPTIONS]: installs what is missing, by scripts/setup.sh with these options. Where one
# of the tools is missing after that, the script ends: setup.sh has said what to ask for.
prepare() {
  local tool
  "$TOP/scripts/setup.sh" "${@:2}" && return
  for tool in $1; do have "$tool" || exit 1; done
  echo "going on with what is here"
}

# The directories of the examples, 01_allreduce_ub and so on, one per line.
examples() {
  local makefile
  for makefile in "$TOP"/[0-9][0-9]_*/Makefile; do
    [ -f "$makefile" ] && basename "$(dirname "$makefile")"
  done
}

# choose_examples WORDS [NAME...]: sets the array examples to those named, to all where none is. WORDS
# say what else would have been allowed.
choose_examples() {
  local words=$1 name
  shift
  mapfile -t examples < <(examples)
  for name in "$@"; do
    grep -qxF -e "${name%/}" <<<"$(examples)" || die "no example '$name'; allowed: $words${examples[*]}"
  done
  [ $# = 0 ] || examples=("${@%/}")
}

# The name of an example's program: allreduce_ub. An example may have a second one.
program_of() { echo "${1#*_}"; }
programs_of() { program_of "$1" && case $1 in 04_*) echo sparse_training ;; esac; }

suite_version() { sed -n 's/^#define SUITE_VERSION "\(.*\)"/\1/p' "$TOP/common/launch/launcher.c"; }

# git refuses a checkout of another user, which a container often sees.
commit() {
  git -C "$TOP" -c safe.directory='*' describe --always --dirty 2>/dev/null || echo "not a git checkout"
}

# built_program EXAMPLE|PROGRAM|tests/gpu/FOLDER gpu|cpu pthread|mpi: where make puts a program.
built_program() {
  case $1 in
  tests/*) echo "$TOP/build/$2-$3/tests/${1##*/}" ;;
  [!0-9]*) echo "$TOP/build/$2-$3/$1" ;;
  *) echo "$TOP/build/$2-$3/$(program_of "$1")" ;;
  esac
}

# Where CUDA and NCCL are: the same answers as in the Makefile.
cuda_home() {
  local nvcc
  if [ -n "${CUDA_HOME:-}" ]; then
    echo "$CUDA_HOME"
  elif nvcc=$(command -v nvcc); then
    echo "${nvcc%/bin/nvcc}"
  else
    echo /usr/local/cuda
  fi
}

nccl_home() {
  if [ -n "${NCCL_HOME:-}" ]; then
    echo "$NCCL_HOME"
  elif [ -f /usr/include/nccl.h ]; then
    echo /usr
  else
    cuda_home
  fi
}

# The folder of libnccl.so.2, nothing if there is none.
nccl_library_folder() {
  local folder
  for folder in lib64 lib "lib/$(uname -m)-linux-gnu"; do
    if [ -e "$(nccl_home)/$folder/libnccl.so.2" ]; then echo "$(nccl_home)/$folder" && return; fi
  done
}

# The header of CUPTI, nothing if it is not there.
cupti_header() {
  local folder
  for folder in include extras/CUPTI/include; do
    if [ -f "$(cuda_home)/$folder/cupti.h" ]; then echo "$(cuda_home)/$folder/cupti.h" && return; fi
  done
}

# Says what is missing for a GPU build, nothing if it can be made.
missing_for_gpu_build() {
  [ -x "$(cuda_home)/bin/nvcc" ] || { echo "no nvcc at $(cuda_home)/bin/nvcc" && return; }
  [ -f "$(nccl_home)/include/nccl.h" ] || { echo "no nccl.h in $(nccl_home)/include" && return; }
  [ -n "$(nccl_library_folder)" ] || echo "no libnccl.so.2 below $(nccl_home)"
}

# GPUs that programs will see.
gpu_count() {
  local present=0 visible
  if have nvidia-smi; then present=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU') || true; fi
  if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
    visible=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c '[0-9A-Za-z]') || true
    [ "$visible" -lt "$present" ] && present=$visible
  fi
  echo "$present"
}

mpicc_command() { echo "${MPICC:-${MPI_HOME:+$MPI_HOME/bin/}mpicc}"; }
mpirun_command() { echo "${MPIRUN:-${MPI_HOME:+$MPI_HOME/bin/}mpirun}"; }

# mpi_run RANKS PROGRAM [ARGUMENTS]: mpirun as any user and with more ranks than cores. By the
# environment, because options differ between versions of Open MPI and other MPIs have none of them.
# Containers often forbid the copies between processes that Open MPI would like to make.
# The shell in parentheses becomes mpirun itself.
mpi_run() (
  ranks=$1 settings=(OMPI_MCA_btl_vader_single_copy_mechanism=none
    OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
    OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none)
  shift
  if [ "$(id -u)" = 0 ]; then settings+=(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1); fi
  exec env "${settings[@]}" "$(mpirun_command)" -np "$ranks" "$@"
)

# how_it_failed CODE LAUNCHER PROGRAM LOG: in words. A rank that fails says so in a line of its own; where
# there is none, mpirun ended the job for a reason of its own, and its exit code is not the program's.
how_it_failed() {
  if [ "$2" = mpi ] && ! grep -qE "^(\[rank [0-9]+\]|$3:) " "$4"; then
    echo "mpirun ended with $1, no rank reported an error"
  elif [ "$1" -gt 128 ]; then
    echo "ended by signal $(($1 - 128))"
  else
    echo "exit code $1"
  fi
}
