# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts, which source it. Defines TOP, the folder of the suite.

# with it, cd may go elsewhere and prints the folder
unset CDPATH
unset MAKEFLAGS MAKELEVEL MFLAGS MPI CPU SANITIZE NTHREADS # `make run MPI=1` exports these
# decimal points in numbers
export LC_ALL=C
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

have() { command -v "$1" >/dev/null 2>&1; }

# Prints one line on stderr, without control characters, and ends with exit code 2: usage.
die() {
  local message=$*
  echo "${0##*/}: ${message//[[:cntrl:]]/ }" >&2
  exit 2
}

# arguments ALLOWED ARGUMENTS...: sets options (the --switches), out (the word after --out) and words (the rest).
# shellcheck disable=SC2034 # for the scripts
arguments() {
  local allowed=$1 && shift
  options=' ' words=()
  while [ $# -gt 0 ]; do
    case $1 in
    # the comment at the head of the script
    -h | --help)
      awk 'NR > 2 { if (!/^#( |$)/) exit; sub(/^# ?/, ""); print }' "$0"
      exit 0
      ;;
    -*)
      [[ " $allowed " = *" $1 "* ]] || die "unknown option '$1'; allowed: $allowed"
      options+="$1 "
      [ "$1" != --out ] || { out=${2:-} && shift; }
      ;;
    *) words+=("$1") ;;
    esac
    shift
  done
}

# ---- tools and GPUs ------------------------------------------------------------------------------
# prepare COMMANDS PACKAGES: prints which of these commands (or files), and of those for building and running, are
# missing. Installs the packages of the distribution, unless --no-install is given. Never installs CUDA, NCCL or a
# driver.
prepare() {
  local what missing='' root='' packages="gcc g++ libc6-dev make libopenmpi-dev openmpi-bin $2"
  for what in gcc g++ make "$(mpicc_command)" "$(mpirun_command)" $1; do
    have "$what" || [ -e "$what" ] || missing+=" ${what##*/}"
  done
  [ -n "$missing" ] || return 0
  if [[ $options = *' --no-install '* ]] || ! have apt-get; then
    echo "${0##*/}: missing:$missing; as root: apt-get install $packages" >&2
  else
    [ "$(id -u)" = 0 ] || root=sudo
    echo "missing:$missing; ${0##*/} installs what it needs (--no-install forbids it): $root apt-get install $packages"
    # one repository of several may be out of reach
    $root apt-get -qq update || true
    # shellcheck disable=SC2086 # words
    $root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=120 \
      install --no-install-recommends $packages >/dev/null
    hash -r
  fi
  # without other tools fewer checks run
  for what in gcc make; do have "$what" || exit 1; done
}
mpicc_command() { echo "${MPICC:-${MPI_HOME:+$MPI_HOME/bin/}mpicc}"; }
mpirun_command() { echo "${MPIRUN:-${MPI_HOME:+$MPI_HOME/bin/}mpirun}"; }
have_mpi() { have "$(mpicc_command)" && have "$(mpirun_command)"; }

# The folder where make finds CUDA.
cuda_home() { make -s -C "$TOP" print-CUDA_HOME; }
# Prints what is missing for a GPU build; nothing if nothing is.
missing_for_gpu_build() { make -n -C "$TOP" build/gpu/flags 2>&1 | sed -n 's/.*\*\*\* \(.*\); allowed.*/\1/p'; }

# The number of GPUs that programs will see.
gpu_count() {
  local present visible=64
  present=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU') || true
  if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
    visible=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c '[0-9A-Za-z]') || true
  fi
  echo $((visible < present ? visible : present))
}

# make_for LAUNCHER ARGUMENTS...: runs make, for programs of this kind.
make_for() { make -C "$TOP" CPU="${kind/gpu/}" MPI="${1/pthread/}" "${@:2}"; }

# Builds the examples for all launchers. Sets kind to gpu; or to cpu, after a line with the reason.
# shellcheck disable=SC2034 # ranks is for the scripts
build_examples() {
  local why launcher programs
  launchers=pthread kind=gpu ranks=$(gpu_count) why=$(missing_for_gpu_build)
  [ "$ranks" -gt 0 ] || why="no GPU found${why:+, $why}"
  [ -z "$why" ] || { echo "$why: running on the CPU stand-in" && kind=cpu ranks=4; }
  if have_mpi; then launchers="pthread mpi"; else echo "no MPI: only threads"; fi
  # not the targets of the examples: they set links, which are the user's, and may be in a read-only folder
  read -ra programs <<<"$(make -s -C "$TOP" print-PROGRAMS EXAMPLE="${examples[*]}")"
  for launcher in $launchers; do
    make_for "$launcher" -k -j "$(nproc)" "${programs[@]/#/build/$kind-$launcher/}" | grep LINK
  done
}

# build_and_run LAUNCHER EXAMPLE|PROGRAM [ARGUMENTS]
build_and_run() {
  local program
  program=$(built_program "$2" "$kind" "$1")
  make_for "$1" -s "${program#"$TOP/"}" || return
  if [ "$1" = mpi ]; then mpi_run "$ranks" "$program" "${@:3}"; else NTHREADS=$ranks "$program" "${@:3}"; fi
}

# ---- examples and programs -----------------------------------------------------------------------
examples() { (cd "$TOP" && for makefile in [0-9][0-9]_*/Makefile; do dirname "$makefile"; done); }

# choose_examples [NAME...]: sets the array examples to those named (02 or 02_allreduce_sm), or to all.
choose_examples() {
  local name example
  examples=()
  for name in "$@"; do
    example=$(examples | awk -F_ -v name="${name%/}" '$0 == name || $1 == name')
    [ -n "$example" ] || die "no example '$name'; allowed: $(examples | xargs), or their numbers"
    examples+=("$example")
  done
  [ $# -gt 0 ] || mapfile -t examples < <(examples)
}

# built_program EXAMPLE|PROGRAM|tests/gpu/FOLDER gpu|cpu pthread|mpi: prints the path of the built program.
built_program() {
  case $1 in
  tests/*) echo "$TOP/build/$2-$3/tests/${1##*/}" ;;
  *) echo "$TOP/build/$2-$3/${1#[0-9][0-9]_}" ;;
  esac
}

# mpi_run RANKS PROGRAM [ARGUMENTS]: runs mpirun as any user and with more ranks than cores. It sets environment
# variables, because options differ between versions of Open MPI. Containers often forbid the copies between processes
# that Open MPI prefers.
MPI_SETTINGS=(OMPI_MCA_btl_vader_single_copy_mechanism=none
  OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
  OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none)
if [ "$(id -u)" = 0 ]; then MPI_SETTINGS+=(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1); fi
# the shell in parentheses becomes mpirun itself, which would read what the caller reads
mpi_run() (exec env "${MPI_SETTINGS[@]}" "$(mpirun_command)" -np "$@" </dev/null)

# ---- checks --------------------------------------------------------------------------------------
# A check is a command. Exit code 0: passed; 77: skipped, the last line is the reason; else failed, and its output is
# shown.
# if not empty, only checks whose name contains one of them run
names=()
# begin_checks LANES: that many at a time
begin_checks() {
  lanes=$1
  logs=$(mktemp -d) || exit
  trap 'rm -rf "$logs"' EXIT
}

# check NAME COMMAND...
check() {
  local word wanted=no
  for word in "${names[@]:-$1}"; do [[ $1 != *"$word"* ]] || wanted=yes; done
  [ $wanted = yes ] || return 0
  while (($(jobs -rp | wc -l) >= lanes)); do wait -n; done
  run_check "$@" &
}

run_check() {
  local log=$logs/${1//\//.} code=0 begin=$SECONDS result output=
  echo "FAILED  $1, which did not end" >"$log.result"
  "${@:2}" >"$log" 2>&1 </dev/null || code=$?
  case $code in
  0) result="ok      $1, $((SECONDS - begin)) s" ;;
  77) result="skip    $1: $(tail -n 1 "$log")" ;;
  # of TAP only tests that have not passed
  *)
    result="FAILED  $1, exit code $code, $((SECONDS - begin)) s"
    output=$(grep -v '^ok ' "$log" | tail -n 100 | sed 's/^/        /')
    ;;
  esac
  echo "$result" >"$log.result"
  echo "$result${output:+$'\n'$output}"
}

# Prints skipped and failed checks again, then the sum. Fails if a check failed or none passed.
end_checks() {
  wait
  cat "$logs"/*.result 2>/dev/null | sort | awk '!/^ok/ { print } { n[$1]++ }
    END {
      printf "%d passed, %d failed, %d skipped\n", n["ok"], n["FAILED"], n["skip"]
      exit n["FAILED"] > 0 || !n["ok"]
    }'
}
