#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs all checks that need no GPU: about eight minutes on two cores. Installs the tools that they need from the
# distribution, and says so first.
#
#   scripts/test.sh [--no-install] [NAME...]
#
# With names, runs only checks whose name contains one of them. Prints failed and skipped checks again at the end; the
# last line is `N passed, N failed, N skipped`. Exit code 0: nothing failed and something passed; 1: otherwise;
# 2: usage.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$(realpath "$0")")/lib.sh"

arguments "--no-install NAME..." "$@"
names=("${words[@]}")
cd "$TOP" || exit
tools="bats clang-format cppcheck patch pkg-config python3 shellcheck"
prepare "$tools /usr/include/cmocka.h" "$tools libcmocka-dev"
read -ra programs <<<"$(make -s print-PROGRAMS)"
# many checks wait, for timeouts for example
begin_checks $(($(nproc) + 2))

tests=(all tests) sanitized=(pthread)
if have_mpi; then tests=(both-tests) sanitized=(pthread mpi); fi
# one architecture is enough to see warnings
[ "$(gpu_count)" != 0 ] || export NVCC_GENCODE="${NVCC_GENCODE:--gencode arch=compute_90,code=sm_90}"

# need COMMAND CHECK...: the check is skipped where the command is missing.
need() { if have "$1"; then "${@:2}"; else echo "no $1" && return 77; fi; }

# ---- builds: warnings are errors here ---------------------------------------------------------------
build_cpu() { flock "$logs" make -s -j "$lanes" CPU=1 STRICT=1 "${tests[@]}"; }
build_gpu() {
  local missing
  missing=$(missing_for_gpu_build) || true
  [ -z "$missing" ] || { echo "$missing" && return 77; }
  flock "$logs/gpu" make -s -j "$lanes" STRICT=1 "${tests[@]}"
}
# Not `all`: it sets the links in the folders of the examples.
variant() { make -s -j "$lanes" CPU=1 STRICT=1 VARIANT="$1" "${@:2}" "${programs[@]/#/build/cpu-pthread-$1/}"; }
build_clang() { variant clang CC=clang CFLAGS=-O0 tests; }
# as on Grace; qemu runs the programs
aarch64() {
  local run
  variant aarch64 CC=aarch64-linux-gnu-gcc CXX=aarch64-linux-gnu-g++ CFLAGS=-O1 || return
  for run in allreduce_ub allreduce_sm alltoallv_sm "sparse_allreduce --count 3000 --steps 5"; do
    # shellcheck disable=SC2086 # words
    NTHREADS=3 "${LIMIT[@]}" qemu-aarch64 -L /usr/aarch64-linux-gnu build/cpu-pthread-aarch64/$run || return
  done
}

# built cpu|gpu COMMAND...: the first check that needs the build makes it, the others wait for it.
built() {
  local code=0
  "build_$1" || code=$?
  if [[ $code = 0 || $code = 77 ]]; then "${@:2}"; else return $code; fi
}

# ---- tests ---------------------------------------------------------------------------------------
# For tests that hang and do not end themselves. Machines differ in speed by a factor of three.
LIMIT=(timeout -k 5 3600)
unit() { CPU_STANDIN_QUIET=1 CMOCKA_MESSAGE_OUTPUT=TAP "${LIMIT[@]}" "build/cpu-pthread/tests/$1"; }
# for all launchers, which share objects
sanitize() {
  local launcher
  for launcher in "${sanitized[@]}"; do "${LIMIT[@]}" tests/sanitize.sh "$1" "$launcher" || return; done
}

# ---- all of it: long checks first, so that none of them runs alone at the end ----------------------------
check build-cpu build_cpu
check sanitize-address sanitize address,undefined
check sanitize-thread "${LIMIT[@]}" tests/sanitize.sh thread pthread
check build-gpu build_gpu
check races built cpu "${LIMIT[@]}" tests/races.sh
# once each, the longest first
for file in $(printf 'tests/cli/%s.bats\n' sparse_library cases sparse alltoallv training |
  awk '!seen[$0]++' - <(ls tests/cli/*.bats)); do
  kind=cpu
  # install.bats: both
  [[ ! $file =~ gpu|install ]] || kind=gpu
  check "cli-$(basename "$file" .bats)" need bats built cpu built $kind "${LIMIT[@]}" bats --tap "$file"
done
check readme-commands built cpu "${LIMIT[@]}" tests/readme_commands.sh
check build-clang need clang build_clang
check aarch64 need aarch64-linux-gnu-gcc need qemu-aarch64 aarch64
for file in tests/unit/test_*.c; do
  name=$(basename "$file" .c)
  check "unit-${name#test_}" built cpu unit "$name"
done
for name in calls clang_format cppcheck shellcheck spdx; do check "${name/_/-}" tests/static.sh $name; done
check readme-snippets tests/readme_snippets.sh
check links tests/links.sh
for folder in results/*/plots; do check "$folder" need python3 scripts/results.py plot --check "${folder%/plots}"; done
check results need python3 scripts/results.py pages --check results/2xH200-nccl2.28
end_checks
