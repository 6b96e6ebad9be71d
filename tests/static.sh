#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Looks at all files of the suite: tests/static.sh calls|clang_format|cppcheck|shellcheck|spdx. Exit code 77: no such
# tool here.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

# sources EXTENSION...: all files of the suite with one of them, no hidden folders
sources() {
  local extension pattern=()
  for extension in "$@"; do pattern+=(-o -name "*.$extension"); done
  find . \( -name build -o -name results -o -name '.?*' \) -prune -o -type f \( "${pattern[@]:1}" \) -print
}

# the formatting differs from version to version; this is the one of Debian 12
check_clang_format() {
  local command=clang-format
  ! command -v clang-format-14 >/dev/null || command=clang-format-14
  $command --version 2>/dev/null | grep -q 'version 14' || { echo "no clang-format of version 14" && return 77; }
  sources c h cu cuh | xargs $command --dry-run -Werror
}

# prints files without the line
check_spdx() {
  ! { sources c h cu cuh sh bash bats mk sbatch pbs py map && echo .ci/run && find . -name Makefile -not -path './.*'; } |
    xargs grep -L 'SPDX-License-Identifier: Apache-2.0' | grep .
}

# ctu: functions of two examples may have one name
check_cppcheck() {
  # shellcheck disable=SC2046 # words
  sources c | xargs cppcheck -q --std=c11 --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
    --suppress=missingIncludeSystem --suppress=arrayIndexThenCheck --suppress=ctunullpointer \
    -DCPU_STANDIN -D_GNU_SOURCE -D__x86_64__ -Icommon/cpu/include $(make -s CPU=1 print-INCLUDES)
}

# shellcheck disable=SC2016 # awk's
# the programs check every call: none is a statement of its own (usage.c checks in its own way)
check_calls() {
  sources c cu | grep -E '^./(0[1-9]_[a-z_]*/([a-z_]*[.]c|harness|simple|training)|common/[^c])' | xargs awk '
    /^ +(cuda|nccl|MPI_)[A-Z][A-Za-z]*\(.*\);/ && gsub(/\(/, "(") == gsub(/\)/, ")") {
      print FILENAME ":" FNR ": " $0
      bad = 1
    }
    END { exit bad }'
}

check_shellcheck() { sources sh bash bats sbatch pbs | xargs shellcheck .ci/run; }

case $1 in cppcheck | shellcheck) command -v "$1" >/dev/null || { echo "no $1" && exit 77; } ;; esac
"check_$1"
