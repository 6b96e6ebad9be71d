#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# NVIDIA's nccl-tests beside --bench of 01, 02 and 03, in turns, on the GPUs of this machine. For maintainers.
#
#   scripts/maintain/nccl_tests.sh FOLDER DIR
#
#   FOLDER  where all_reduce_perf and alltoall_perf are, built with MPI=1
#   DIR     a folder of results, as scripts/bench.sh makes it
#
# Five rounds, in CUDA graphs of 20 calls. Each program writes into DIR/nccl_tests; medians.csv there has the
# median of the five for both, and ours / theirs.
# Both show the slowest rank (-a 3). nccl-tests times the first launch of a graph as well, so it gets ten (-G 10).
# Exit code 0: all ran; 1: one failed, and its output is shown; 2: usage.
set -euo pipefail
# shellcheck source=scripts/lib/lib.sh
. "$(dirname "$(realpath "$0")")/../lib/lib.sh"
# shellcheck source=scripts/lib/results.sh
. "$TOP/scripts/lib/results.sh"
# shellcheck source=scripts/lib/files.sh
. "$TOP/scripts/lib/files.sh"

case ${1:-} in -h | --help) show_help ;; esac
[ $# = 2 ] || die "wrong number of arguments; allowed: FOLDER DIR"
tests=$(realpath -- "$1")
for program in all_reduce_perf alltoall_perf; do
  [ -x "$tests/$program" ] || die "no $program in '$1'; allowed: FOLDER, with nccl-tests built with MPI=1"
done
times_folder "$2"
out=$(realpath -- "$dir")/nccl_tests
ranks=$(gpu_count)
for example in 01_allreduce_ub 02_allreduce_sm 03_alltoallv_sm; do
  make -s -j "$(nproc)" -C "$TOP" MPI=1 "$example"
done
mkdir -p -- "$out"

sweep=(-b 1K -e 256M -f 8 -n 20 -w 5)
run() { # run FILE PROGRAM [OPTIONS]: its output in FILE
  mpi_run "$ranks" "${@:2}" >"$1" 2>&1 </dev/null && return
  cat "$1" >&2
  echo "nccl_tests.sh: ${2##*/} failed" >&2
  exit 1
}
ours() { # ours NAME EXAMPLE [OPTIONS]
  run "$out/$1.txt" "$(built_program "$2" gpu mpi)" --bench -G 1 "${sweep[@]}" --repetitions 5 -J "$out/$1.csv" "${@:3}"
  rm "$out/$1.txt" # the same as in the CSV
}
theirs() { # theirs NAME PROGRAM [OPTIONS]
  run "$out/$1.txt" "$tests/$2" -G 10 "${sweep[@]}" -a 3 "${@:3}"
}
for round in 1 2 3 4 5; do
  ours "01.$round" 01_allreduce_ub
  theirs "all_reduce_perf.R0.$round" all_reduce_perf -R 0
  theirs "all_reduce_perf.R1.$round" all_reduce_perf -R 1
  ours "02.$round" 02_allreduce_sm
  theirs "all_reduce_perf.R2.$round" all_reduce_perf -R 2
  ours "03.$round" 03_alltoallv_sm --pattern uniform
  theirs "alltoall_perf.$round" alltoall_perf
  echo "round $round of 5: done after $SECONDS s"
done

# ours: FILE VARIANT; theirs: FILE. The sixth word of a line of theirs is the time out of place.
begin_file "$out/medians.csv"
{
  echo "example,variant,size,nccl-tests,its us,our us,ours / its"
  while read -r file variant test; do
    awk -v example="$file" -v variant="$variant" -v test="${test/./ }" "$AWK_CSV"'
      function size(b) { return b >= 1048576 ? b / 1048576 " MiB" : b / 1024 " KiB" }
      function median(list,    v, n, i, j, t) {
        n = split(list, v, " ")
        for (i = 2; i <= n; i++) for (j = i; j > 1 && v[j] + 0 < v[j - 1] + 0; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
        return v[int((n + 1) / 2)]
      }
      FILENAME ~ /csv$/ {
        count = split($0, field, ",")
        if (FNR == 1) for (i = 1; i <= count; i++) column[field[i]] = i
        else if (field[need("variant")] == variant && is_time(field[need("us")])) {
          bytes = field[need("bytes")]
          if (!(bytes in our)) order[++n] = bytes
          our[bytes] = our[bytes] " " field[need("us")]
        }
      }
      FILENAME !~ /csv$/ && $1 ~ /^[0-9]+$/ { their[$1] = their[$1] " " $6 }
      END {
        for (i = 1; i <= n; i++)
          printf "%s,%s,%s,%s,%.2f,%.2f,%.3f\n", example, variant, size(order[i]), test, median(their[order[i]]),
            median(our[order[i]]), median(our[order[i]]) / median(their[order[i]])
      }' "$out/$file".?.csv "$out/$test".?.txt
  done <<'PAIRS'
01 plain all_reduce_perf.R0
01 registered all_reduce_perf.R1
02 symmetric all_reduce_perf.R2
03 send/recv alltoall_perf
PAIRS
} | write_file
keep_files
column -s , -t <"$out/medians.csv" 2>/dev/null || cat "$out/medians.csv"
