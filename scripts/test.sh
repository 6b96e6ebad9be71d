#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All checks that need no GPU: some nine minutes on two cores. Installs the tools that they need from the
# distribution, and says so before.
#
#   scripts/test.sh [--no-install] [NAME...]
#
# With names, only the checks whose name contains one of them. What failed and what was skipped stands once more at the
# end; the last line is `N passed, N failed, N skipped`. Exit code 0: nothing failed and something passed; 1: otherwise;
# 2: usage.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$(realpath "$0")")/lib.sh"

install=yes names=()
for argument in "$@"; do
  case $argument in
  --no-install) install=no ;;
  -h | --help) show_help ;;
  -* | '') die "unknown argument '$argument'; allowed: --no-install NAME..." ;;
  *) names+=("$argument") ;;
  esac
done
cd "$TOP" || exit
prepare $install "${RUN_NEEDS[@]}" g++ bats ccache clang-format cppcheck pkg-config python3 shellcheck \
  /usr/include/cmocka.h=libcmocka-dev
begin_checks $(($(nproc) + 1)) # many checks wait, for timeouts for example

tests=(all tests) sanitized=(pthread)
if have_mpi; then tests=(both-tests) sanitized=(pthread mpi); fi
if have ccache; then # several checks compile the same files
  mkdir "$logs/bin"
  for compiler in gcc g++ clang; do ln -s "$(command -v ccache)" "$logs/bin/$compiler"; done
  export PATH=$logs/bin:$PATH CCACHE_DIR=${CCACHE_DIR:-$TOP/build/ccache} CCACHE_NOHASHDIR=1
  NVCC="ccache $(cuda_home)/bin/nvcc" && export NVCC
fi

no_gpu_build=$(missing_for_gpu_build)
if [ "$(gpu_count)" = 0 ]; then # one architecture is enough to see warnings
  export NVCC_GENCODE=${NVCC_GENCODE:--gencode arch=compute_90,code=sm_90}
fi

# need COMMAND CHECK...: the check is skipped where the command is missing.
need() {
  have "$1" || { echo "no $1" && return 77; }
  "${@:2}"
}

sources() { # sources EXTENSION...: all files of the suite with one of them, no hidden folders
  local extension pattern=()
  for extension in "$@"; do pattern+=(-o -name "*.$extension"); done
  find . \( -name build -o -name results -o -name '.?*' \) -prune -o -type f \( "${pattern[@]:1}" \) -print
}

# ---- static checks -------------------------------------------------------------------------------
check_clang_format() { # the formatting differs from version to version; this is the one of Debian 12
  local command=clang-format
  if have clang-format-14; then command=clang-format-14; fi
  $command --version 2>/dev/null | grep -q 'version 14' || { echo "no clang-format of version 14" && return 77; }
  sources c h cu cuh | xargs $command --dry-run -Werror
}

check_spdx() {
  local file failed=0
  for file in $(sources c h cu cuh sh bash bats mk sbatch pbs py map) .ci/run $(find . -name Makefile -not -path './.*'); do
    head -n 3 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' && continue
    echo "$file: no SPDX-License-Identifier: Apache-2.0 in the first three lines"
    failed=1
  done
  return $failed
}

check_cppcheck() { # ctu: functions of two examples may have one name
  local libraries=(0[2-4]_*/ 0[2-4]_*/lib)
  need cppcheck true && sources c | xargs cppcheck -q --std=c11 --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
    --suppress=missingIncludeSystem --suppress=arrayIndexThenCheck --suppress=ctunullpointer -DCPU_STANDIN -D_GNU_SOURCE \
    -Icommon -Icommon/launch -Icommon/verify -Icommon/bench -Icommon/cpu -Icommon/cpu/include \
    "${libraries[@]/#/-I}"
}

check_shellcheck() { need shellcheck true && sources sh bash bats sbatch pbs | xargs shellcheck .ci/run; }

# ---- builds: warnings are errors here ---------------------------------------------------------------
build_cpu() { flock "$logs" make -s -j "$lanes" CPU=1 STRICT=1 "${tests[@]}"; }
build_gpu() {
  [ -z "$no_gpu_build" ] || { echo "$no_gpu_build" && return 77; }
  flock "$logs/gpu" make -s -j "$lanes" STRICT=1 "${tests[@]}"
}
build_clang() { # in a tree of its own
  mkdir "$logs/clang" && cp -r Makefile common scripts tests 0* "$logs/clang" &&
    make -s -C "$logs/clang" -j "$lanes" CPU=1 STRICT=1 CC=clang CFLAGS=-O0 all tests
}

# built cpu|gpu COMMAND...: the first check that needs the build makes it, the others wait for it.
built() { { [ "$1" = gpu ] && [ -n "$no_gpu_build" ]; } || "build_$1" && "${@:2}"; }

# ---- tests ---------------------------------------------------------------------------------------
# What hangs ends itself sooner; this is for what does not. Machines differ in speed by a factor of three.
LIMIT=(timeout -k 5 1800)
unit() { CPU_STANDIN_QUIET=1 CMOCKA_MESSAGE_OUTPUT=TAP "${LIMIT[@]}" "build/cpu-pthread/tests/$1"; }
sanitize() { # for all launchers, which share objects
  local launcher
  for launcher in "${sanitized[@]}"; do "${LIMIT[@]}" tests/sanitize.sh "$1" "$launcher" || return; done
}
mpi() { have_mpi || { echo "no MPI: only threads were tested" && return 77; }; }

# ---- all of it: what lasts long begins early, so that nothing long is left to run alone -------------------
check build-cpu build_cpu
check sanitize-address sanitize address,undefined
check sanitize-thread "${LIMIT[@]}" tests/sanitize.sh thread pthread
check build-gpu build_gpu
check readme-commands built cpu "${LIMIT[@]}" tests/readme_commands.sh
for file in $(wc -l tests/cli/*.bats | sort -rn | awk 'NR > 1 { print $2 }'); do # the longest first
  kind=cpu
  [[ ! $file =~ gpu|install ]] || kind=gpu # install.bats: both
  check "cli-$(basename "$file" .bats)" need bats built cpu built $kind "${LIMIT[@]}" bats --tap "$file"
done
check build-clang need clang build_clang
for file in tests/unit/test_*.c; do
  name=$(basename "$file" .c)
  check "unit-${name#test_}" built cpu unit "$name"
done
for name in clang_format cppcheck shellcheck spdx; do check "${name//_/-}" check_$name; done
check readme-snippets tests/readme_snippets.sh
check links tests/links.sh
for folder in results/*/; do
  [ ! -e "$folder/plots" ] || check "${folder%/}" need python3 scripts/results.py plot --check "$folder"
done
check results need python3 scripts/results.py pages --check results/2xH200-nccl2.28
check mpi mpi
end_checks
