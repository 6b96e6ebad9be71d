#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures every example, or those named, on the GPUs of this machine: under both launchers, eager and in a CUDA graph.
#
#   scripts/bench.sh [--no-install] [--out DIR] [EXAMPLE...]     (02 is 02_allreduce_sm)
#
#   --no-install   install nothing; without it gcc, make and MPI are installed if they are missing
#   --out DIR      where the results go (default: results/<date and time>)
#
# Writes a .csv and the printed table, .txt, per example, launcher and mode; and provenance.txt. If a part fails, the
# others still run. Without a GPU everything runs on the CPU stand-in, in small sizes, marked as such and without times.
# Exit code 0: all parts ran, or cannot run here; 1: a part failed; 2: usage.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$(realpath "$0")")/lib.sh"

out=results/$(date +%Y-%m-%d_%H%M%S) command="scripts/bench.sh $*"
arguments "--no-install --out DIR EXAMPLE..." "$@"
choose_examples "${words[@]}"
[ -n "$out" ] || die "--out needs a folder: --out DIR"
mkdir -p -- "$out" 2>/dev/null || true
[[ -d $out && -w $out ]] || die "cannot make or write the folder '$out'; choose another --out"
out=$(realpath -- "$out")
[ ! -e "$out/provenance.txt" ] || die "'$out' already has results; choose another --out"
prepare "" ""
build_examples
[ $kind = gpu ] || echo "a trial: its times mean nothing and are not kept"

# ---- what is measured ----------------------------------------------------------------------------
# parts_of EXAMPLE: lines of LAUNCHER MODE OPTIONS
parts_of() {
  local launcher density eager="--bench -b 1K -e 256M" graph="--bench -b 1K -e 1G -G 1"
  case $1.$kind in
  04*.gpu) eager="--bench --count 14728266" graph="--bench -G 1" ;;
  04*.cpu) eager="--bench --count 1K --steps 2" graph="$eager -G 1" ;;
  *.cpu) eager="--bench -b 1K -e 4K -n 1 -w 0 --repetitions 1" graph="$eager -G 1" ;;
  esac
  for launcher in $launchers; do
    echo "$launcher eager $eager"
    # threads could deadlock in graphs of kernels that wait for each other, so the program refuses them
    [[ $1.$launcher = 0[34]*.pthread ]] || echo "$launcher graph $graph"
  done
  [[ $1.$launcher = 04*.mpi ]] || return 0
  # also without a dense result, and with other densities
  echo "mpi graph.entries $graph --algorithm oktopk --result entries"
  [ $kind = gpu ] || return 0
  # the paths that pictures.py draws against the density
  for density in 0.001 0.005 0.05; do
    echo "mpi density$density $graph --preset lstm --count 27569568 --density $density" \
      "--algorithm topkA,topkAopt,gtopk,oktopk,topkSA,gaussiank"
  done
}

# provenance PROGRAM
provenance() {
  printf 'date: %s\ncommand: %s\nranks: %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$command" "$ranks"
  # git refuses a checkout of another user, which a container often sees
  echo "commit: $(git -C "$TOP" -c safe.directory='*' describe --always --dirty 2>/dev/null ||
    echo "not a git checkout")"
  if [ $kind = gpu ]; then
    nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader | sed 's/^/gpu: /'
    nvidia-smi topo -m | sed 's/\x1b\[[0-9;]*m//g; s/^/topology: /'
  else
    echo "stand-in: the CPU stand-in for CUDA and NCCL, without times"
  fi
  "$1" --version 2>/dev/null | sed 's/^/version: /'
  env | grep '^NCCL_' | grep -v '^NCCL_VERSION' | sort | sed 's/^/environment: /'
}

# part LAUNCHER MODE EXAMPLE OPTIONS...
part() {
  local name=$3.$1.$2 code=0
  echo "part: $name ${*:4}" >>"$out/provenance.txt"
  build_and_run "$1" "${@:3}" -J "$out/$name.csv" >"$out/$name.txt" || code=$?
  [ $code = 0 ] || rm -f "$out/$name.csv"
  # cannot run here
  [ $code != 77 ] || rm -f "$out/$name.txt"
  return $code
}

# ---- all of it -----------------------------------------------------------------------------------
begin_checks 1
provenance "$(built_program "${examples[0]}" $kind "${launchers##* }")" >"$out/provenance.txt"
for example in "${examples[@]}"; do
  while read -r launcher mode arguments; do
    # shellcheck disable=SC2086 # words
    check "$example.$launcher.$mode" part "$launcher" "$mode" "$example" $arguments
  done < <(parts_of "$example")
done
end_checks || failed=1
echo "results in $out"
[ $kind = cpu ] || echo "next: scripts/results.py plot $out && scripts/results.py html $out"
[ -z "${failed:-}" ]
