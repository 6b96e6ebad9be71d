#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a release of NCCL changes: builds all examples against each of several, runs them, and measures 02, 03 and
# 04. For maintainers; installs nothing.
#
#   scripts/maintain/nccl_releases.sh [--build] DIR [NCCL_HOME...]
#
#   --build      only build, in build/nccl; without it what is built already is not built again
#   DIR          where results go: a folder per release, which scripts/compare.sh compares, and releases.csv
#   NCCL_HOME    folders with include/nccl.h and lib/libnccl.so.2, a release each; without any, the table is made
#                of what is in DIR
#
# Each example runs with all GPUs, one process each, and its output has to be the expected one: golden.txt.
# Exit code 0: all releases ran as expected; 1: one did not, or does not build; 2: usage.
set -euo pipefail
# shellcheck source=scripts/lib/lib.sh
. "$(dirname "$(realpath "$0")")/../lib/lib.sh"
# shellcheck source=scripts/lib/results.sh
. "$TOP/scripts/lib/results.sh"
# shellcheck source=scripts/lib/files.sh
. "$TOP/scripts/lib/files.sh"
unset MAKEFLAGS MAKELEVEL MFLAGS MPI CPU SANITIZE NTHREADS

build_only=no
case ${1:-} in
--build) build_only=yes && shift ;;
-h | --help) show_help ;;
-*) die "unknown option '$1'; allowed: --build" ;;
esac
[ $# -ge 1 ] || die "no folder for the results; allowed: [--build] DIR [NCCL_HOME...]"
homes=()
for home in "${@:2}"; do
  [ -f "$home/include/nccl.h" ] || die "no include/nccl.h in '$home'; allowed: folders of releases of NCCL"
  homes+=("$(realpath -- "$home")")
done
mkdir -p -- "$1"
out=$(realpath -- "$1")
cd "$TOP"
version_of() { awk '/^#define NCCL_(MAJOR|MINOR|PATCH) / { v = v dot $3; dot = "." } END { print v }' "$1/include/nccl.h"; }

# ---- builds: each release has a copy of the sources, so that all can be made at the same time ------
build() { # build NCCL_HOME
  local tree
  tree=build/nccl/$(version_of "$1")
  mkdir -p "$tree"
  tar --exclude=build --exclude=.git --exclude=./results -cf - . | tar xf - -C "$tree"
  NCCL_HOME=$1 make -s -j "$(nproc)" -C "$tree" MPI=1 >"$tree.log" 2>&1 ||
    { echo "does not build: $TOP/$tree.log" && return 1; }
}
pids=() failed=0
for home in "${homes[@]}"; do
  build "$home" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
[ $failed$build_only = 0no ] || exit $failed

# ---- one release ---------------------------------------------------------------------------------
ranks=$(gpu_count)
program() { echo "$tree/build/gpu-mpi/$(program_of "$1")"; }

golden() { # golden EXAMPLE: whether it prints what it should; what else it says is shown
  local code=0
  NCCL_DEBUG_FILE=/dev/stderr mpi_run "$ranks" "$(program "$1")" >"$work/$1.out" 2>"$work/$1.err" </dev/null || code=$?
  if diff <(tests/golden.sh "$1" "$ranks") <(tests/golden.sh --mask "$1" <"$work/$1.out") >>"$work/$1.err" && [ $code = 0 ]; then
    echo "$1: as expected"
  else
    echo "$1: NOT as expected, exit code $code"
  fi
  sed 's/^/  /' "$work/$1.err"
}

bench() { # bench EXAMPLE [OPTIONS]
  local name=$results/$1.mpi.graph
  rm -f "$name.csv"
  mpi_run "$ranks" "$(program "$1")" --bench -G 1 "${@:2}" -J "$name.csv" >"$name.txt" 2>"$work/err" </dev/null ||
    { cat "$work/err" >&2 && echo "$(basename "$results"): --bench of $1 failed" >&2 && failed=1; }
}

work=$(temporary_folder) || exit
trap 'rm -rf "$work"; remove_new_files' EXIT
for home in "${homes[@]}"; do
  version=$(version_of "$home") begin=$SECONDS
  tree=$TOP/build/nccl/$version results=$out/$version
  mkdir -p "$results"
  {
    date -u +'date: %Y-%m-%dT%H:%M:%SZ'
    echo "command: scripts/maintain/nccl_releases.sh; per release golden runs, 02 and 03 --bench -G 1 -b 1K -e 256M -f 8, 04 oktopk"
    echo "commit: $(commit)"
    nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv,noheader | sed 's/^/gpu: /'
    "$(program 01_allreduce_ub)" --version 2>/dev/null | sed 's/^/version: /'
    env | grep '^NCCL_' | grep -v -e '^NCCL_VERSION' -e '^NCCL_HOME' | sort | sed 's/^/environment: /' || true
  } >"$results/provenance.txt"
  grep -q "NCCL header $version, runtime $version" "$results/provenance.txt" ||
    die "another NCCL than $version is loaded: $(sed -n 's/^version: NCCL //p' "$results/provenance.txt"); allowed: no LD_LIBRARY_PATH to it"
  for example in $(examples); do golden "$example"; done >"$results/golden.txt"
  if grep -q '^0.*NOT as expected' "$results/golden.txt"; then failed=1; fi
  bench 02_allreduce_sm -b 1K -e 256M -f 8 --repetitions 5
  bench 03_alltoallv_sm -b 1K -e 256M -f 8 --repetitions 5 --pattern uniform
  bench 04_sparse_allreduce --algorithm oktopk --count 14728266 --density 0.02
  echo "$version: $(grep -c '^0.*: as expected' "$results/golden.txt") of $(examples | wc -l) examples as expected, $((SECONDS - begin)) s"
done

# ---- the table: a row per quantity, a column per release -----------------------------------------
mapfile -t versions < <(for file in "$out"/*/golden.txt; do basename "$(dirname "$file")"; done | sort -V)
value() { # value VERSION EXAMPLE VARIANT BYTES: us, or - where there is none
  local file=$out/$1/$2.mpi.graph.csv
  [ -f "$file" ] || { echo - && return; }
  awk -F, -v variant="$3" -v bytes="$4" "$AWK_CSV"'
    NR == 1 {
      header()
      us_at = need("us")
      if (sparse = "path" in column) name = need("path")
      else { name = need("variant"); size = need("bytes") }
      next
    }
    $name == variant && (sparse || $size == bytes) { us = $us_at }
    END { print is_time(us) ? sprintf("%.2f", us) : "-" }' "$file"
}
begin_file "$out/provenance.txt"
awk -F': ' '
  $1 == "gpu" { split($2, f, ", "); gpu = f[2] ", driver " f[3]; n++ }
  $1 == "environment" { environment = environment " `" $2 "`" }
  $1 == "date" { date = $0 }
  END { print date "\nmachine: " n " x " gpu "; one process per GPU, in CUDA graphs;" environment }' \
  "$out/${versions[0]}/provenance.txt" | write_file
begin_file "$out/releases.csv"
{
  (IFS=, && echo "us of,size,${versions[*]}")
  while IFS=, read -r example variant bytes size; do
    printf '%s %s,%s' "${example%%_*}" "$variant" "$size"
    for version in "${versions[@]}"; do
      us=$(value "$version" "$example" "$variant" "$bytes")
      printf ',%s' "$us"
    done
    echo
  done <<'ROWS'
02_allreduce_sm,plain,1024,1 KiB
02_allreduce_sm,plain,65536,64 KiB
02_allreduce_sm,plain,268435456,256 MiB
02_allreduce_sm,symmetric,1024,1 KiB
02_allreduce_sm,symmetric,65536,64 KiB
02_allreduce_sm,symmetric,268435456,256 MiB
02_allreduce_sm,own,1024,1 KiB
02_allreduce_sm,own,268435456,256 MiB
03_alltoallv_sm,send/recv,1024,1 KiB
03_alltoallv_sm,send/recv,65536,64 KiB
03_alltoallv_sm,send/recv,268435456,256 MiB
03_alltoallv_sm,alltoallv,65536,64 KiB
03_alltoallv_sm,alltoallv,268435456,256 MiB
04_sparse_allreduce,oktopk,,14.7 M elements
04_sparse_allreduce,simple oktopk,,14.7 M elements
ROWS
} | write_file
keep_files
column -s , -t <"$out/releases.csv" 2>/dev/null || cat "$out/releases.csv"
exit $failed
