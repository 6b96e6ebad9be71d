#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Says what the suite needs and this machine lacks, and installs it with apt-get. Never CUDA, NCCL
# or a driver: whoever wants those chooses the version.
#
#   scripts/setup.sh [--no-install] [--tests] [--plots]
#
#   --no-install   only say what is missing
#   --tests        also what scripts/test.sh needs
#   --plots        also what scripts/plot.sh needs
#
# Exit code 0: nothing is missing (any more); 1: something is; 2: usage.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

install=yes tests=no plots=no
for argument in "$@"; do
  case $argument in
  --no-install) install=no ;;
  --tests) tests=yes plots=yes ;;
  --plots) plots=yes ;;
  -h | --help) sed -n '3,13s/^# \{0,1\}//p' "$0" && exit 0 ;;
  *) die "unknown argument '$argument'; allowed: --no-install --tests --plots" ;;
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

check() {
  missing=() packages=()
  if ! have gcc || ! header_found '#include <stdio.h>'; then need gcc gcc libc6-dev; fi
  have make || need make make
  if ! have "$(mpicc_command)" || ! have "$(mpirun_command)"; then
    need MPI openmpi-bin libopenmpi-dev
  fi
  if [ -x "$(cuda_home)/bin/nvcc" ]; then have g++ || need "g++ (for nvcc)" g++; fi
  if [ "$plots" = yes ]; then have gnuplot || need gnuplot gnuplot-nox; fi
  [ "$tests" = yes ] || return 0
  header_found '#include <cmocka.h>' || need cmocka libcmocka-dev
  local tool
  for tool in bats clang-format cppcheck shellcheck python3; do
    have "$tool" || need "$tool" "$tool"
  done
  have xmllint || need xmllint libxml2-utils
  have pkg-config || need pkg-config pkg-config
}

check
[ ${#missing[@]} -gt 0 ] || exit 0
list=$(printf ', %s' "${missing[@]}")
echo "missing: ${list:2}"
[ "$install" = yes ] || exit 1

have apt-get || { echo "setup.sh: no apt-get here; install it by other means" >&2 && exit 1; }
root=()
if [ "$(id -u)" != 0 ]; then
  have sudo || { echo "setup.sh: neither root nor sudo; as root: apt-get install ${packages[*]}" >&2 && exit 1; }
  root=(sudo)
fi

echo "installing: ${packages[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 "$@" >>"$log" 2>&1 </dev/null; }
apt update || true # one repository of several may be out of reach
if ! apt install -y --no-install-recommends "${packages[@]}"; then
  cat "$log" >&2
  echo "setup.sh: apt-get install failed (output above)" >&2
  exit 1
fi
hash -r
check
[ ${#missing[@]} -eq 0 ] || { echo "setup.sh: still missing after the installation: ${missing[*]}" >&2 && exit 1; }
