#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures every example, or those named, on the GPUs of this machine: under both launchers, eager and in a CUDA graph.
#
#   scripts/bench.sh [--no-install] [--quick] [--out DIR] [EXAMPLE...]     (02 is 02_allreduce_sm)
#
#   --no-install   install nothing; without it gcc, make and MPI are installed where they are missing
#   --quick        fewer sizes and repetitions; without it, it takes six minutes on 2 GPUs
#   --out DIR      where the results go (default: results/<date and time>)
#
# Per example, launcher and mode one .csv and its log .txt; and provenance.txt. A failing part leaves its log and does
# not keep the others from running. Without a GPU everything runs on the CPU stand-in, in small sizes, marked as
# such and without times. Exit code 0: all parts are there or cannot run here; 1: a part failed; 2: usage.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$(realpath "$0")")/lib.sh"

extent=full install=yes out=results/$(date +%Y-%m-%d_%H%M%S) command="scripts/bench.sh $*" named=()
while [ $# -gt 0 ]; do
  case $1 in
  --no-install) install=no ;;
  --quick) extent=quick ;;
  --out)
    [ -n "${2:-}" ] || die "--out needs a folder; allowed: --out DIR"
    out=$2
    shift
    ;;
  -h | --help) show_help ;;
  -*) die "unknown option '$1'; allowed: --no-install --quick --out DIR EXAMPLE..." ;;
  *) named+=("$1") ;;
  esac
  shift
done
choose_examples "${named[@]}"
prepare $install "${RUN_NEEDS[@]}"

kind=gpu switches=() ranks=$(gpu_count) why=$(missing_for_gpu_build) launchers=(pthread)
[ "$ranks" -gt 0 ] || why="no GPU found${why:+, $why}"
if [ -n "$why" ]; then
  echo "$why: a trial on the CPU stand-in instead; its times mean nothing and are not kept"
  kind=cpu switches=(CPU=1) ranks=4 extent=trial
fi
if have_mpi; then launchers+=(mpi); else echo "no MPI: the launcher mpi is not measured"; fi
mkdir -p -- "$out" && out=$(realpath -- "$out") || exit
[ ! -e "$out/provenance.txt" ] || die "'$out' has results; allowed: another --out"
cd "$TOP" || exit
unset NTHREADS

# ---- what is measured: the parts of an example are its modes ---------------------------------------------
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

options_of() { # options_of EXAMPLE MODE
  case $1.$2.$extent in
  04_*.graph*.full) echo --bench ;;
  04_*.graph*.quick | 04_*.eager.quick | 04_*.eager.full) echo --bench --count 14728266 ;;
  04_*.graph*.trial | 04_*.eager.trial) echo --bench --count 1K ;;
  04_*.density*) # the paths that plots/sparse_speedup.gnuplot draws against the density
    echo --bench -G 1 --preset lstm --count 27569568 --density "${2#density}" --algorithm topkA,topkAopt,gtopk,oktopk,topkSA,gaussiank
    ;;
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

provenance() { # provenance PROGRAM
  printf 'date: %s\ncommand: %s\ncommit: %s\nranks: %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$command" "$(commit)" "$ranks"
  if [ $kind = gpu ]; then
    nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader | sed 's/^/gpu: /'
    nvidia-smi topo -m | sed 's/\x1b\[[0-9;]*m//g; s/^/topology: /'
  else
    echo "stand-in: the CPU stand-in for CUDA and NCCL, without times"
  fi
  "$1" --version 2>/dev/null | sed 's/^/version: /'
  env | grep '^NCCL_' | grep -v '^NCCL_VERSION' | sort | sed 's/^/environment: /'
}

# ---- all of it -----------------------------------------------------------------------------------
failed=0
for launcher in "${launchers[@]}"; do make -s -k -j "$(nproc)" "${switches[@]}" MPI="${launcher/pthread/}" "${examples[@]}" || failed=1; done
provenance "$(built_program "${examples[0]}" $kind "${launchers[-1]}")" >"$out/provenance.txt"
for launcher in "${launchers[@]}"; do
  for example in "${examples[@]}"; do
    for mode in $(modes_of "$example" "$launcher"); do
      part=$example.$launcher.$mode code=0 n=$ranks begin=$SECONDS program=$(built_program "$example" $kind "$launcher")
      case $mode in
      ranks*) n=${mode#ranks} ;;
      training) program=${program%/*}/sparse_training ;;
      esac
      read -rd '' -a options <<<"$(options_of "$example" "$mode")"
      echo "part: $part ${options[*]}" >>"$out/provenance.txt"
      run_program "$launcher" "$n" "$program" "${options[@]}" -J "$out/$part.csv" >"$out/$part.txt" 2>"$out/$part.err" </dev/null || code=$?
      case $code.$launcher.$mode in
      0.*) result='done' && rm "$out/$part.err" ;;
      77.* | 2.pthread.graph) # programs refuse what could deadlock
        result="skipped: $(grep -m 1 -v '^note: ' "$out/$part.err")"
        rm -f "$out/$part".*
        ;;
      *) result="failed: exit code $code, see $out/$part.txt and .err" failed=1 && rm -f "$out/$part.csv" ;;
      esac
      printf '%-40s %s, %d s\n' "$part" "$result" $((SECONDS - begin))
    done
  done
done
echo "results in $out"
[ $kind = cpu ] || echo "next: scripts/results.py plot $out && scripts/results.py html $out"
[ $failed = 0 ]
