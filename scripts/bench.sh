#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures every example on the GPUs of this machine: under both launchers, eager and in a CUDA graph.
#
#   scripts/bench.sh [--no-install] [--quick] [--out DIR]
#
#   --no-install   install nothing; without it scripts/setup.sh installs what is needed and missing
#   --quick        fewer sizes and repetitions; without it, it takes six minutes on 2 GPUs
#   --out DIR      where the results go (default: results/<date and time>); what is there already is
#                  not measured again, so an interrupted run goes on with the same command
#
# Per example, launcher and mode one .csv and its log .txt; and provenance.txt. A failing part leaves its
# log in DIR/unfinished and does not keep the others from running.
# Without a GPU everything runs on the CPU stand-in, in small sizes, marked as such and without times.
# Exit code 0: all parts are there or cannot run here; 1: a part failed, or nothing can be built or
# written; 2: usage.
set -euo pipefail
# shellcheck source=scripts/lib/lib.sh
. "$(dirname "$(realpath "$0")")/lib/lib.sh"
# shellcheck source=scripts/lib/files.sh
. "$TOP/scripts/lib/files.sh"
unset MAKEFLAGS MAKELEVEL MFLAGS MPI CPU SANITIZE NTHREADS

extent=full setup_options=() out=results/$(date +%Y-%m-%d_%H%M%S) command="scripts/bench.sh $*"
while [ $# -gt 0 ]; do
  case $1 in
  --no-install) setup_options=(--no-install) ;;
  --quick) extent=quick ;;
  --out)
    [ -n "${2:-}" ] || die "--out needs a folder; allowed: --out DIR"
    out=$2
    shift
    ;;
  -h | --help) show_help ;;
  *) die "unknown argument '$1'; allowed: --no-install --quick --out DIR" ;;
  esac
  shift
done

[[ $out != *[[:cntrl:]]* ]] || die "--out: '$out' has a control character; allowed: another name"
prepare "gcc make" "${setup_options[@]}"

build=gpu switches=() ranks=$(gpu_count) why=$(missing_for_gpu_build)
[ "$ranks" -gt 0 ] || why="no GPU found${why:+, $why}"
if [ -n "$why" ]; then
  echo "$why: a trial on the CPU stand-in instead; its times mean nothing and are not kept"
  build=cpu switches=(CPU=1) ranks=4 extent=trial
fi
launchers=(pthread)
if have "$(mpicc_command)" && have "$(mpirun_command)"; then launchers+=(mpi); fi

mkdir -p -- "$out"
out=$(realpath -- "$out")
# Two at once would write the same files. Not every file system has locks.
exec {lock}<"$out"
flock -n "$lock" 2>/dev/null || [ $? != 1 ] || die "another bench.sh is at work in $out; allowed: another --out"
cd "$TOP"

# ---- what is measured, and on what --------------------------------------------------------------
# The parts of an example are its modes; an example with others than a sweep over sizes, eager and in
# a graph, has lines of its own in both functions.
modes_of() { # modes_of EXAMPLE LAUNCHER
  case $1.$2 in
  04_*.pthread) echo eager ;;
  04_*.mpi) # and without a dense result, other densities, what is sent by other numbers of ranks, a training job
    echo eager graph graph.entries
    [ $extent != full ] || echo density0.001 density0.005 density0.05
    seq -f 'ranks%g' 2 "$ranks"
    echo training
    ;;
  *) echo eager graph ;;
  esac
}

# the paths that scripts/plots/sparse_speedup.gnuplot draws against the density
PLOTTED=topkA,topkAopt,gtopk,oktopk,topkSA,gaussiank

options_of() { # options_of EXAMPLE MODE
  case $1.$2.$extent in
  04_*.graph*.full) echo --bench ;;
  04_*.graph*.quick | 04_*.eager.quick | 04_*.eager.full) echo --bench --count 14728266 ;;
  04_*.graph*.trial | 04_*.eager.trial) echo --bench --count 1K ;;
  04_*.density*) echo --bench -G 1 --preset lstm --count 27569568 --density "${2#density}" --algorithm "$PLOTTED" ;;
  04_*.ranks*.trial) echo --count 4K --steps 5 ;;
  04_*.ranks*) echo --count 64K --density 0.01 ;;
  04_*.training.trial) echo --epochs 1 ;;
  04_*.training.*) ;; # as it comes
  *.graph.full) echo --bench -b 1K -e 1G -f 4 ;;
  *.eager.full) echo --bench -b 1K -e 256M -f 4 ;;
  *.quick) echo --bench -b 1K -e 256M -f 8 --repetitions 5 ;;
  *.trial) echo --bench -b 1K -e 16K -f 4 -n 2 -w 1 --repetitions 2 ;;
  esac
  case $2 in
  graph) echo -G 1 ;;
  graph.entries) echo -G 1 --algorithm oktopk --result entries ;;
  esac
}

# What must not change within one folder of results.
circumstances() {
  local program part example launcher mode
  program=$(built_program "$(examples | head -n 1)" $build "${launchers[-1]}")
  [ $build = gpu ] || echo "stand-in: the CPU stand-in for CUDA and NCCL, without times"
  echo "commit: $(commit)"
  echo "ranks: $ranks"
  for part in "${parts[@]}"; do
    read -r example launcher mode <<<"$part"
    echo "part: $example.$launcher.$mode $(options_of "$example" "$mode" | tr '\n' ' ')"
  done | sed 's/ $//'
  [ $build = cpu ] ||
    nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader | sed 's/^/gpu: /'
  "$program" --version 2>/dev/null | sed 's/^/version: /'
  env | grep '^NCCL_' | grep -v '^NCCL_VERSION' | sort | sed 's/^/environment: /' || true
  [ $build = cpu ] || nvidia-smi topo -m | sed 's/\x1b\[[0-9;]*m//g;s/^/topology: /'
}

note_provenance() {
  local file=$out/provenance.txt now date
  now=$(circumstances)
  date=$(date -u +%Y-%m-%dT%H:%M:%SZ)
  begin_file "$file"
  if [ ! -s "$file" ]; then
    printf 'date: %s\ncommand: %s\n%s\n' "$date" "$command" "$now" | write_file
  elif diff <(grep -v -e '^date: ' -e '^command: ' -e '^continued: ' "$file") <(echo "$now") >&2; then
    { cat "$file" && echo "continued: $date"; } | write_file
  else
    die "$out has results of other circumstances (above); allowed: another --out"
  fi
  keep_files
}

# ---- parts ---------------------------------------------------------------------------------------
run_part() { # run_part EXAMPLE LAUNCHER MODE: sets result
  local name=$1.$2.$3 code=0 program start options n=$ranks
  local unfinished=$out/unfinished/$name
  if [ -f "$out/unfinished/$1.$2.build" ]; then
    result="failed: does not build, see $out/unfinished/$1.$2.build"
    return
  fi
  read -rd '' -a options <<<"$(options_of "$1" "$3")" || true
  if [[ $3 = ranks* ]]; then n=${3#ranks}; fi
  program=$(built_program "$1" "$build" "$2")
  if [ "$3" = training ]; then program=${program%/*}/$(programs_of "$1" | tail -n 1); fi
  start=("$program" "${options[@]}" -J "$unfinished.csv")
  if [ "$2" = mpi ]; then
    mpi_run "$n" "${start[@]}" >"$unfinished.txt" 2>"$unfinished.err" </dev/null || code=$?
  else
    NTHREADS=$n "${start[@]}" >"$unfinished.txt" 2>"$unfinished.err" </dev/null || code=$?
  fi
  if [ $code = 0 ] && [ -s "$unfinished.csv" ]; then
    mv "$unfinished.txt" "$out/$name.txt"
    mv "$unfinished.csv" "$out/$name.csv" # last: a part with a CSV is done
    rm "$unfinished.err"
    result='done'
  elif [ $code = 77 ] || [ "$code.$2.$3" = 2.pthread.graph ]; then # programs refuse what could deadlock
    # the program's line; mpirun puts some of its own behind it
    result="skipped: $(grep -m 1 -v '^note: ' "$unfinished.err" || true)"
    rm -f "$unfinished".*
  else
    result="failed: exit code $code, see $unfinished.txt and .err"
  fi
}

minutes() { # of seconds, in words
  if [ "$1" -lt 90 ]; then echo "$1 s"; else echo "$((($1 + 30) / 60)) min"; fi
}

mkdir -p "$out/unfinished"
parts=()
for launcher in "${launchers[@]}"; do
  if [ "$launcher" = mpi ]; then switches+=(MPI=1); fi
  for example in $(examples); do
    log=$out/unfinished/$example.$launcher.build # stays where the build fails
    if make -s -j "$(nproc)" "${switches[@]}" "$example" >"$log" 2>&1; then rm "$log"; fi
    for mode in $(modes_of "$example" "$launcher"); do parts+=("$example $launcher $mode"); done
  done
done
note_provenance

failed=0 timed=0 spent=0 number=0
for part in "${parts[@]}"; do
  read -r example launcher mode <<<"$part"
  number=$((number + 1))
  printf '[%d/%d] %-20s %-7s %-12s ' $number ${#parts[@]} "$example" "$launcher" "$mode"
  if [ -s "$out/$example.$launcher.$mode.csv" ]; then
    echo "there already"
    continue
  fi
  begin=$SECONDS
  run_part "$example" "$launcher" "$mode"
  if [ "$result" = 'done' ]; then timed=$((timed + 1)) spent=$((spent + SECONDS - begin)); fi
  if [[ $result = failed* ]]; then failed=$((failed + 1)); fi
  left=$((${#parts[@]} - number))
  rest=
  if [ $timed -gt 0 ] && [ $left -gt 0 ]; then rest="; about $(minutes $((spent * left / timed))) left"; fi
  echo "$result, $(minutes $((SECONDS - begin)))$rest"
done
[ "$launcher" = mpi ] || echo "no MPI: the launcher mpi was not measured"
rmdir "$out/unfinished" 2>/dev/null || true

shown=$(printf %q "${out#"$TOP"/}")
echo "results in $shown"
[ $build = cpu ] || echo "next: scripts/plot.sh $shown && scripts/report.sh --html $shown"
[ $failed = 0 ] || echo "bench.sh: $failed of ${#parts[@]} parts failed; the same command tries them again" >&2
[ $failed = 0 ]
