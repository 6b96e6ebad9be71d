# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the scripts share; to be sourced. Defines TOP, the folder of the suite.

unset CDPATH # with it, cd goes elsewhere and prints where
unset MAKEFLAGS MAKELEVEL MFLAGS MPI CPU SANITIZE # `make run MPI=1` hands these down
export LC_ALL=C # numbers have a point
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

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

# ---- what is here --------------------------------------------------------------------------------
# prepare yes|no WHAT[=PACKAGE,...]...: which of these commands (or files) are missing, and with `yes` their
# installation from the distribution. Never CUDA, NCCL or a driver: whoever wants those chooses the version.
prepare() {
  local install=$1 need what missing=() packages=() root=()
  for need in "${@:2}"; do
    what=${need%%=*}
    have "$what" || [ -e "$what" ] || { missing+=("${what##*/}") && packages+=("${need#*=}"); }
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  read -ra packages <<<"${packages[*]//,/ }"
  have apt-get || install=no
  [ "$(id -u)" = 0 ] || root=(sudo)
  if [ "$install" = no ] || { [ ${#root[@]} = 1 ] && ! have sudo; }; then
    echo "${0##*/}: missing: ${missing[*]}; allowed, as root: apt-get install ${packages[*]}" >&2
  else
    echo "missing: ${missing[*]}; ${0##*/} installs what it needs (--no-install forbids it): ${root[*]} apt-get install ${packages[*]}"
    "${root[@]}" apt-get -qq update || true # one repository of several may be out of reach
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=120 install \
      --no-install-recommends "${packages[@]}" >/dev/null
    hash -r
  fi
  for what in gcc make; do have "$what" || exit 1; done # without others there is less to do
}
mpicc_command() { echo "${MPICC:-${MPI_HOME:+$MPI_HOME/bin/}mpicc}"; }
mpirun_command() { echo "${MPIRUN:-${MPI_HOME:+$MPI_HOME/bin/}mpirun}"; }
# for prepare: what building and running needs
# shellcheck disable=SC2034
RUN_NEEDS=("gcc=gcc,libc6-dev" make "$(mpicc_command)=libopenmpi-dev" "$(mpirun_command)=openmpi-bin")
have_mpi() { have "$(mpicc_command)" && have "$(mpirun_command)"; }

# Where make finds CUDA and NCCL.
cuda_home() { make -s -C "$TOP" print-CUDA_HOME; }
nccl_home() { make -s -C "$TOP" print-NCCL_HOME; }
# Says what is missing for a GPU build, nothing if it can be made.
missing_for_gpu_build() { make -n -C "$TOP" build/gpu/flags 2>&1 | sed -n 's/.*\*\*\* \(.*\); allowed.*/\1/p'; }

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

# git refuses a checkout of another user, which a container often sees.
commit() {
  git -C "$TOP" -c safe.directory='*' describe --always --dirty 2>/dev/null || echo "not a git checkout"
}
suite_version() { sed -n 's/^#define SUITE_VERSION "\(.*\)"/\1/p' "$TOP/common/launch/launcher.c"; }

# ---- examples and programs -----------------------------------------------------------------------
examples() { (cd "$TOP" && for makefile in [0-9][0-9]_*/Makefile; do dirname "$makefile"; done); }

# choose_examples [NAME...]: sets the array examples to those named, by 02 or 02_allreduce_sm; to all without a name.
choose_examples() {
  local known name example
  mapfile -t known < <(examples)
  examples=()
  for name in "$@"; do
    for example in "${known[@]}" ''; do [[ $example != "${name%/}" && ${example%%_*} != "$name" ]] || break; done
    [ -n "$example" ] || die "no example '$name'; allowed: ${known[*]}, or their numbers"
    examples+=("$example")
  done
  [ $# -gt 0 ] || examples=("${known[@]}")
}

# The name of an example's program: allreduce_ub. An example may have a second one.
program_of() { echo "${1#[0-9][0-9]_}"; }
programs_of() { program_of "$1" && make -s -C "$TOP" "print-MORE_$1" | grep .; }

# built_program EXAMPLE|PROGRAM|tests/gpu/FOLDER gpu|cpu pthread|mpi: where make puts it.
built_program() {
  case $1 in
  tests/*) echo "$TOP/build/$2-$3/tests/${1##*/}" ;;
  *) echo "$TOP/build/$2-$3/$(program_of "$1")" ;;
  esac
}

# mpi_run RANKS PROGRAM [ARGUMENTS]: mpirun as any user and with more ranks than cores. By the
# environment, because options differ between versions of Open MPI and other MPIs have none of them.
# Containers often forbid the copies between processes that Open MPI would like to make.
MPI_SETTINGS=(OMPI_MCA_btl_vader_single_copy_mechanism=none
  OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
  OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none)
if [ "$(id -u)" = 0 ]; then MPI_SETTINGS+=(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1); fi
# the shell in parentheses becomes mpirun itself
mpi_run() (exec env "${MPI_SETTINGS[@]}" "$(mpirun_command)" -np "$@")

# run_program pthread|mpi RANKS PROGRAM [ARGUMENTS]
run_program() {
  if [ "$1" = mpi ]; then mpi_run "${@:2}"; else NTHREADS=$2 "${@:3}"; fi
}

# ---- checks, of test.sh and gpu_check.sh ---------------------------------------------------------
# A check is a command. Exit code 0: passed; 77: skipped, the last line says why; else failed, and its output is shown.
# Where it prints TAP (bats, cmocka), each of its tests counts.
names=()         # words: with them only checks whose name has one
begin_checks() { # begin_checks LANES: that many at a time
  lanes=$1
  logs=$(mktemp -d) || exit
  trap 'rm -rf "$logs"' EXIT
}

check() { # check NAME COMMAND...
  local word wanted=${#names[@]}
  for word in "${names[@]}"; do [[ $1 != *"$word"* ]] || wanted=0; done
  [ "$wanted" = 0 ] || return 0
  while (($(jobs -rp | wc -l) >= lanes)); do wait -n; done
  run_check "$@" &
}

run_check() {
  local name=$1 log=$logs/${1//\//.} code=0 begin=$SECONDS why counts='/^not ok / { f++ } /^ok / { p++ } /^ok .*# (skip|SKIP)/ { p--; s++ }'
  echo 0 1 0 >"$log.count" # until it has ended
  "${@:2}" >"$log" 2>&1 </dev/null || code=$?
  why=$(tail -n 1 "$log")
  if [ $code = 77 ]; then
    echo 0 0 1 >"$log.count"
    printf 'skip    %s: %s\n' "$name" "$why" | tee "$log.end"
    return
  fi
  # what ends with an error, and has no failed test, has failed in between
  awk -v code=$code "tolower(\$0) ~ /^1\\.\\.[0-9]/ { tap = 1 } $counts
    END { if (!tap) p = s = f = 0; if (code && !f) f = 1; if (!code && !tap) p = 1; print p + 0, f + 0, s + 0 }" "$log" >"$log.count"
  sed -n "s|^ok [0-9]* \(.*\) # skip *\(.*\)|skip    $name, \1: \2|p" "$log" >"$log.end"
  if [[ $(<"$log.count") = *' 0 '* ]]; then
    printf 'ok      %s, %d s\n' "$name" $((SECONDS - begin))
  else # of TAP what belongs to failed tests, else the end
    echo "FAILED  $name" >>"$log.end"
    why=$(awk '/^(not )?ok / { show = /^not/ } show' "$log" | head -n 100)
    why=${why:-$(tail -n 40 "$log")}
    printf 'FAILED  %s, %d s\n%s\n' "$name" $((SECONDS - begin)) "        ${why//$'\n'/$'\n'        }"
  fi
}

# What was skipped and what failed, once more; then the sum. Fails where something failed or nothing passed.
end_checks() {
  wait
  sort "$logs"/*.end 2>/dev/null
  cat "$logs"/*.count 2>/dev/null |
    awk '{ p += $1; f += $2; s += $3 } END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 || !p }'
}
