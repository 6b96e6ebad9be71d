#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All checks that need no GPU: some twelve minutes on two cores. Installs what they need where that is
# missing (scripts/setup.sh).
#
#   scripts/test.sh [--no-install] [NAME...]
#
# With names, only the checks whose name contains one of them run, and what they need. A line says when
# a check begins and another one when it has ended; what failed and what was skipped stands once more
# at the end. The last line is `N passed, N failed, N skipped`. Exit code 0: nothing failed and
# something passed; 1: otherwise; 2: usage.
set -uo pipefail
# shellcheck source=scripts/lib/lib.sh
. "$(dirname "$(realpath "$0")")/lib/lib.sh"

setup_options=(--tests) names=()
for argument in "$@"; do
  case $argument in
  --no-install) setup_options+=(--no-install) ;;
  -h | --help) show_help ;;
  -* | '') die "unknown argument '$argument'; allowed: --no-install NAME..." ;;
  *) names+=("$argument") ;;
  esac
done
cd "$TOP" || exit 1
unset MAKEFLAGS MAKELEVEL MFLAGS MPI CPU SANITIZE # `make test MPI=1` hands these down

# ---- running checks ------------------------------------------------------------------------------
LOGS=$(temporary_folder) || exit
trap 'rm -rf "$LOGS"' EXIT
LANES=$(($(nproc) + 1)) # many checks wait, for timeouts for example

wanted() {
  local name
  [ ${#names[@]} -gt 0 ] || return 0
  for name in "${names[@]}"; do [[ $1 != *"$name"* ]] || return 0; done
  return 1
}

record() { echo "$2 $3 $4" >"$LOGS/$1.count"; } # NAME PASSED FAILED SKIPPED

run_check() { # run_check NAME COMMAND...
  local name=$1 code=0 start=$SECONDS counts result=ok
  shift
  "$@" >"$LOGS/$name" 2>&1 </dev/null || code=$?
  if grep -q '^1\.\.[0-9]*$' "$LOGS/$name"; then # TAP: every test counts
    counts=$(awk '/^ok .*# skip/ { s++; next } /^ok / { p++ } /^not ok / { f++ } END { print p + 0, f + 0, s + 0 }' \
      "$LOGS/$name")
    sed -n "s/^ok [0-9]* \(.*\) # skip *\(.*\)/  $name, \1: \2/p" "$LOGS/$name" >"$LOGS/$name.skipped"
    sed -n "s/^not ok [0-9]* /  $name, /p" "$LOGS/$name" >"$LOGS/$name.failed"
  else
    counts="$((code == 0)) $((code != 0)) 0"
  fi
  # shellcheck disable=SC2086 # three numbers
  set -- $counts
  if [ $code != 0 ] && [ "$2" = 0 ]; then set -- "$1" 1 "$3"; fi
  record "$name" "$1" "$2" "$3"
  if [ "$2" != 0 ]; then
    result=FAIL
    # the first error of a compiler, else the last line
    [ -s "$LOGS/$name.failed" ] ||
      echo "  $name: $(grep -m 1 ' error: ' "$LOGS/$name" || tail -n 1 "$LOGS/$name")" >"$LOGS/$name.failed"
  fi
  printf '%-5s %-28s %4d s\n' $result "$name" $((SECONDS - start))
  [ $result = ok ] || failure "$LOGS/$name"
}

# What to show of a failed check: of bats the failed tests, else the end.
failure() {
  if grep -q '^not ok ' "$1"; then
    awk '/^(not )?ok / { show = /^not/ } show' "$1" | head -n 150 | sed 's/^/      /'
  else
    tail -n 40 "$1" | sed 's/^/      /'
  fi
}

# All checks stand in the function checks, which is called twice: at first to count them.
counting=yes total=0 begun=0

# check NAME COMMAND...: as many at a time as there are lanes.
check() {
  wanted "$1" || return 0
  if [ $counting = yes ]; then total=$((total + 1)) && return; fi
  while [ "$(jobs -rp | wc -l)" -ge "$LANES" ]; do wait -n; done
  begun=$((begun + 1))
  printf '      %-28s begins, %d of %d\n' "$1" $begun $total
  record "$1" 0 1 0 # until it has come to its end
  run_check "$@" &
}

skip() { # skip NAME WHY
  wanted "$1" || return 0
  if [ $counting = yes ]; then total=$((total + 1)) && return; fi
  begun=$((begun + 1))
  record "$1" 0 0 1
  echo "  $1: $2" >"$LOGS/$1.skipped"
  printf 'skip  %-28s %s\n' "$1" "$2"
}

# ---- what is needed ------------------------------------------------------------------------------
prepare "gcc make" "${setup_options[@]}"
# Folders and launchers compile many of the same files. The cache is that of this run alone.
if have ccache; then
  mkdir "$LOGS/bin"
  for compiler in gcc g++; do ln -s "$(command -v ccache)" "$LOGS/bin/$compiler"; done
  export PATH=$LOGS/bin:$PATH CCACHE_DIR=$LOGS/ccache CCACHE_NOHASHDIR=1
fi
LAUNCHERS="pthread" both="all tests"
if have "$(mpicc_command)" && have "$(mpirun_command)"; then LAUNCHERS="pthread mpi" both=both-tests; fi

sources() { # sources EXTENSION...: all files of the suite with one of them, no hidden folders
  local extension pattern=()
  for extension in "$@"; do pattern+=(-o -name "*.$extension"); done
  find . \( -name build -o -name results -o -name '.?*' \) -prune -o -type f \( "${pattern[@]:1}" \) -print
}

# ---- static checks -------------------------------------------------------------------------------
clang_format_all() { sources c h cu cuh | xargs "$1" --dry-run -Werror; } # clang_format_all COMMAND

spdx() {
  local file failed=0
  for file in $(sources c h cu cuh sh bash bats mk sbatch pbs gnuplot py map) .ci/run $(find . -name Makefile -not -path './.*'); do
    head -n 3 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' && continue
    echo "$file: no SPDX-License-Identifier: Apache-2.0 in the first three lines"
    failed=1
  done
  return $failed
}

cppcheck_all() {
  sources c | xargs cppcheck -q --std=c11 --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
    --suppress=missingIncludeSystem --suppress=arrayIndexThenCheck -DCPU_STANDIN -D_GNU_SOURCE \
    -Icommon -Icommon/launch -Icommon/verify -Icommon/bench -Icommon/cpu -Icommon/cpu/include -I02_allreduce_sm/own -I03_alltoallv_sm/lib -I04_sparse_allreduce -I04_sparse_allreduce/lib
}

shellcheck_all() { sources sh bash bats sbatch pbs | xargs shellcheck .ci/run; }

# bash goes on after `! command`, and after `a && b` if a fails: bats would not notice.
bats_conditions() {
  if grep -nE '^ +(!|(\[|\[\[|cmp|diff|grep) .*&&) ' tests/cli/*.bats | grep -v '||'; then
    echo "allowed: one condition in a line, if ...; then false; fi" && return 1
  fi
}

# What was once added stays, whatever .gitignore says: a program, or the link to one.
tracked() {
  local files
  files=$(git ls-files -ci --exclude-standard) || return
  [ -z "$files" ] || { echo "tracked, and ignored by .gitignore: ${files//$'\n'/ }" && return 1; }
}

static_checks() {
  local tool version clang_format=clang-format
  # The formatting differs from version to version; this is the one of Debian 12.
  if have clang-format-14; then clang_format=clang-format-14; fi
  version=$("$clang_format" --version 2>/dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p')
  if [ "$version" = 14 ]; then
    check clang-format clang_format_all "$clang_format"
  else
    skip clang-format "version 14 is wanted, found: ${version:-none}"
  fi
  for tool in cppcheck shellcheck; do
    if have $tool; then check $tool ${tool}_all; else skip $tool "not installed"; fi
  done
  check spdx spdx
  if [ -e .git ] && git rev-parse -q --verify HEAD >/dev/null; then check tracked tracked; else skip tracked "no git checkout"; fi
  check bats-conditions bats_conditions
  check readme-snippets tests/readme_snippets.sh
  check readme-tables scripts/report.sh --check results/2xH200-nccl2.28
  check plotted-data scripts/plot.sh --check results/2xH200-nccl2.28
  check plotted-data-words scripts/plot.sh --check results/words-standin
  check plotted-data-training scripts/plot.sh --check results/training-standin
  check plotted-data-pytorch scripts/plot.sh --check results/pytorch
  check links tests/links.sh
}

# ---- builds --------------------------------------------------------------------------------------
# shellcheck disable=SC2086 # $both is one word or two
build_cpu() { make -s -j "$LANES" CPU=1 STRICT=1 $both; } # for all launchers

# shellcheck disable=SC2086
build_gpu() {
  local settings=()
  # one architecture is enough to see warnings, where no GPU asks for another
  if [ "$(gpu_count)" = 0 ] && [ -z "${NVCC_GENCODE:-}" ]; then
    settings=("NVCC_GENCODE=-gencode arch=compute_90,code=sm_90")
  fi
  if have ccache; then settings+=("NVCC=ccache $(cuda_home)/bin/nvcc"); fi
  make -s -j "$LANES" STRICT=1 "${settings[@]}" $both
}

# with another compiler, in a tree of its own
build_clang() {
  mkdir -p "$LOGS/clang" && cp -r Makefile common tests 0* "$LOGS/clang" &&
    make -s -C "$LOGS/clang" -j "$LANES" CPU=1 STRICT=1 CC=clang CFLAGS=-O0 all tests
}

build_checks() {
  local why
  why=$(missing_for_gpu_build)
  if [ -n "$why" ]; then skip build-gpu "$why"; else check build-gpu build_gpu; fi
  check build-cpu build_cpu
  if have clang; then check build-clang build_clang; else skip build-clang "not installed"; fi
  wait
  [ "$LAUNCHERS" != pthread ] || skip build-mpi "no MPI"
}

# ---- tests ---------------------------------------------------------------------------------------
# What hangs ends itself sooner; this is for what does not. Machines differ in speed by a factor of three.
LIMIT=(timeout -k 5 1800)

unit() { # unit NAME
  make -s CPU=1 STRICT=1 "build/cpu-pthread/tests/$1" || return
  env CPU_STANDIN_QUIET=1 "${LIMIT[@]}" "build/cpu-pthread/tests/$1"
}

# A page has the numbers that this test prints.
published_effects() {
  unit test_published >"$LOGS/published" 2>&1 || { cat "$LOGS/published" && return 1; }
  tests/readme_published.sh "$LOGS/published"
}

sanitizer_checks() {
  check sanitize-thread-pthread "${LIMIT[@]}" tests/sanitize.sh thread pthread
  check sanitize-address-pthread "${LIMIT[@]}" tests/sanitize.sh address,undefined pthread
  if [ "$LAUNCHERS" != pthread ]; then
    check sanitize-address-mpi "${LIMIT[@]}" tests/sanitize.sh address,undefined mpi
  fi
}

unit_checks() {
  local source test
  for source in tests/unit/test_*.c; do
    test=$(basename "$source" .c)
    [ "$test" = test_published ] || check "unit-${test#test_}" unit "$test"
  done
  check unit-readme-published published_effects
}

cli_checks() {
  local file files=()
  have bats || { skip cli "no bats" && return; }
  for file in tests/cli/*.bats; do
    if wanted "cli-$(basename "$file" .bats)"; then files+=("$file"); fi
  done
  # several bats must not build at once; here all is up to date unless only some checks were asked for
  if [ $counting = no ] && [ ${#files[@]} -gt 0 ]; then build_cpu >/dev/null 2>&1 || true; fi
  for file in "${files[@]}"; do
    check "cli-$(basename "$file" .bats)" "${LIMIT[@]}" bats --tap "$file"
  done
}

# Most checks need what is built, the sanitizers make their own. What lasts long begins early, so that
# nothing long is left to run alone.
checks() {
  local builds
  build_checks
  builds=$(jobs -rp)
  sanitizer_checks
  static_checks
  # shellcheck disable=SC2086 # several
  [ -z "$builds" ] || wait $builds || true
  cli_checks
  unit_checks
  check readme-commands "${LIMIT[@]}" tests/readme_commands.sh
}

checks
[ $total -gt 0 ] || die "no check has a name like: ${names[*]}"
echo "$total checks, $LANES at a time"
counting=no
checks
wait

# ---- the sum -------------------------------------------------------------------------------------
passed=0 failed=0 skipped=0
for file in "$LOGS"/*.count; do
  read -r p f s <"$file"
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
done
for what in skipped failed; do
  [ "${!what}" = 0 ] || { echo "$what:" && cat "$LOGS"/*.$what; }
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ] && [ $passed -gt 0 ]
