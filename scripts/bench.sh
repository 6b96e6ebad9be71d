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
  --out) [ $# -gt 1 ] || die "--out needs a folder; allowed: --out DIR"
    out=$2 && shift ;;
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

# ---- what is measured ----------------------------------------------------------------------------
parts_of() { # parts_of EXAMPLE: lines of LAUNCHER MODE OPTIONS
  local launcher n eager="--bench -b 1K -e 256M -f 4" graph="--bench -b 1K -e 1G -f 4 -G 1" words="--count 64K --density 0.01" epochs=
  case $1.$extent in
  04*.full) eager="--bench --count 14728266" graph="--bench -G 1" ;;
  04*.quick) eager="--bench --count 14728266" graph="$eager -G 1" ;;
  04*.trial) eager="--bench --count 1K" graph="--bench --count 1K -G 1" words="--count 4K --steps 5" epochs="--epochs 1" ;;
  *.quick) eager="--bench -b 1K -e 256M -f 8 --repetitions 5" graph="$eager -G 1" ;;
  *.trial) eager="--bench -b 1K -e 16K -f 4 -n 2 -w 1 --repetitions 2" graph="$eager -G 1" ;;
  esac
  for launcher in "${launchers[@]}"; do
    echo "$launcher eager $eager"
    [[ $1.$launcher = 04*.pthread ]] || echo "$launcher graph $graph"
  done
  [[ $1.$launcher = 04*.mpi ]] || return 0
  # and without a dense result, other densities, what is sent by other numbers of ranks, a training job
  echo "mpi graph.entries $graph --algorithm oktopk --result entries"
  for n in 0.001 0.005 0.05; do # the paths that pictures.py draws against the density
    [ $extent != full ] ||
      echo "mpi density$n $graph --preset lstm --count 27569568 --density $n --algorithm topkA,topkAopt,gtopk,oktopk,topkSA,gaussiank"
  done
  for n in $(seq 2 "$ranks"); do echo "mpi ranks$n $words"; done
  echo "mpi training $epochs"
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
for example in "${examples[@]}"; do
  while read -r launcher mode options; do
    name=$example.$launcher.$mode part=$out/$example.$launcher.$mode code=0 n=$ranks begin=$SECONDS program=$example
    case $mode in
    ranks*) n=${mode#ranks} ;;
    training) program=sparse_training ;;
    esac
    echo "part: $name $options" >>"$out/provenance.txt"
    # shellcheck disable=SC2086 # words
    run_program "$launcher" "$n" "$(built_program $program $kind "$launcher")" $options -J "$part.csv" >"$part.txt" 2>"$part.err" </dev/null ||
      code=$?
    case $code.$launcher.$mode in
    0.*) result='done' && rm "$part.err" ;;
    77.* | 2.pthread.graph) result="skipped: $(grep -m 1 -v '^note: ' "$part.err")" && rm -f "$part".* ;; # could deadlock
    *) result="failed: exit code $code, see $part.txt and .err" failed=1 && rm -f "$part.csv" ;;
    esac
    printf '%-40s %s, %d s\n' "$name" "$result" $((SECONDS - begin))
  done < <(parts_of "$example")
done
echo "results in $out"
[ $kind = cpu ] || echo "next: scripts/results.py plot $out && scripts/results.py html $out"
[ $failed = 0 ]
