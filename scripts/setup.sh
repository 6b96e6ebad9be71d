#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Says what building and running needs and this machine lacks (gcc, make, MPI), and installs it with
# apt-get. Never CUDA, NCCL or a driver: whoever wants those chooses the version.
#
#   scripts/setup.sh [--no-install] [--tests | --plots]
#
#   --no-install   only say what is missing
#   --tests        also what scripts/test.sh needs
#   --plots        what scripts/plot.sh needs, and nothing else
#
# Exit code 0: nothing is missing (any more); 1: something is; 2: usage.
set -euo pipefail
# shellcheck source=scripts/lib/lib.sh
. "$(dirname "$(realpath "$0")")/lib/lib.sh"

install=yes kind=run
for argument in "$@"; do
  case $argument in
  --no-install) install=no ;;
  --tests | --plots)
    [ "$kind" = run ] || die "'$argument' after '--$kind'; allowed: one of --tests and --plots"
    kind=${argument#--}
    ;;
  -h | --help) show_help ;;
  *) die "unknown argument '$argument'; allowed: --no-install, and --tests or --plots" ;;
  esac
done

missing=() packages=()
need() { # need WHAT PACKAGE...
  missing+=("$1")
  packages+=("${@:2}")
}
header_found() { # header_found '#include <...>'...: in the standard folders
  printf '%s\n' "$@" | gcc -E - >/dev/null 2>&1
}

check_run() {
  if ! have gcc || ! header_found '#include <stdio.h>'; then need gcc gcc libc6-dev; fi
  have make || need make make
  if ! have "$(mpicc_command)" || ! have "$(mpirun_command)"; then
    need MPI openmpi-bin libopenmpi-dev
  fi
  # nvcc calls it; tests compile the headers as C++
  if [ "$kind" = tests ] || [ -x "$(cuda_home)/bin/nvcc" ]; then have g++ || need g++ g++; fi
}

check_plots() { have gnuplot || need gnuplot gnuplot-nox; }

check_tests() {
  local tool
  check_run
  check_plots
  header_found '#include <cmocka.h>' || need cmocka libcmocka-dev
  for tool in bats ccache clang-format cppcheck shellcheck python3; do
    have "$tool" || need "$tool" "$tool"
  done
  have xmllint || need xmllint libxml2-utils
  have pkg-config || need pkg-config pkg-config
}

check() {
  missing=() packages=()
  "check_$kind"
}

check
[ ${#missing[@]} -gt 0 ] || exit 0
list=$(printf ', %s' "${missing[@]}")
list=${list:2}

# Nothing is installed: one line that says what to ask for.
stop() {
  echo "setup.sh: missing: $list${1:+; $1}; allowed, as root: apt-get install ${packages[*]}" >&2
  exit 1
}

[ $install = yes ] || stop ""
have apt-get || { echo "setup.sh: missing: $list; no apt-get here: it has to be installed by other means" >&2 && exit 1; }
root=()
if [ "$(id -u)" != 0 ]; then
  { have sudo && sudo true 2>/dev/null; } || stop "neither root nor sudo"
  root=(sudo)
fi

echo "missing: $list"
echo "installing: ${packages[*]} (a minute or two)"
work=$(temporary_folder) || exit
trap 'rm -rf "$work"' EXIT
apt() { "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 "$@" >>"$work/log" 2>&1 </dev/null; }
apt update || true # one repository of several may be out of reach
if ! apt install -y --no-install-recommends "${packages[@]}"; then
  cat "$work/log" >&2
  echo "setup.sh: apt-get install failed (output above)" >&2
  exit 1
fi
echo "installed after $SECONDS s"
hash -r
check
[ ${#missing[@]} -eq 0 ] || { echo "setup.sh: still missing after the installation: ${missing[*]}" >&2 && exit 1; }
