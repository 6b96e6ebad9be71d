#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Where the time of a step goes: its kernels, and when they begin and end, medians over many steps. CUPTI, a
# part of CUDA, writes that down beside the program, so that no event takes time of its own.
#
#   scripts/timeline.sh [--first KERNEL] EXAMPLE [OPTIONS]
#   scripts/timeline.sh [--first KERNEL] --from FILE
#   scripts/timeline.sh 04_sparse_allreduce --bench -G 1 --algorithm oktopk --count 14728266
#
#   --first KERNEL   the kernel that a step begins with (04: local_pass); steps are of the kind that comes
#                    most often. Without it: kernels by themselves, whatever is around them
#   --from FILE      the records of an earlier run, one rank's
#   NP=N             ranks (default: the GPUs)
#
# One process per rank (`make MPI=1` before). The records stay in build/timeline/EXAMPLE.RANK.
# Exit code 0: printed; 1: the program failed, or recorded nothing; 2: usage, or no CUPTI.
set -euo pipefail
# shellcheck source=scripts/lib/lib.sh
. "$(dirname "$(realpath "$0")")/lib/lib.sh"
# shellcheck source=scripts/lib/job.sh
. "$TOP/scripts/lib/job.sh"

first='' from=''
while [[ ${1:-} = -* ]]; do
  case $1 in
  --first | --from)
    [ -n "${2:-}" ] || die "$1 needs a $([ "$1" = --first ] && echo kernel || echo file)"
    declare "${1#--}=$2"
    shift
    ;;
  -h | --help) show_help ;;
  *) die "unknown option '$1'; allowed: --first KERNEL, --from FILE" ;;
  esac
  shift
done

# Lines of "begin end device stream name", in the order of begins.
summary() {
  awk -v first="$first" '
    function sort(a, n,   gap, i, j, x) { # Shell
      for (gap = int(n / 2); gap > 0; gap = int(gap / 2))
        for (i = gap + 1; i <= n; i++) {
          x = a[i]
          for (j = i - gap; j > 0 && a[j] > x; j -= gap) a[j + gap] = a[j]
          a[j + gap] = x
        }
    }
    function quantile(a, n, q) { return a[1 + int((n - 1) * q + 0.5)] }
    function close_step(begin) { # the next one begins at `begin`
      if (kernels > 0) {
        step = ++steps[kind]
        all++
        lasted[kind, step] = begin - begun[1]
        for (i = 1; i <= kernels; i++) {
          begins[kind, i, step] = begun[i] - begun[1]
          ends[kind, i, step] = ended[i] - begun[1]
        }
      }
      kernels = 0
      kind = ""
    }
    function collect(table, of, n,   s) { for (s = 1; s <= n; s++) sorted[s] = table[of, s]; sort(sorted, n) }
    {
      name = $0
      sub(/^([0-9]+ +)([0-9]+ +)([0-9]+ +)([0-9]+ +)/, "", name)
      sub(/^void /, "", name)
      gsub(/\(anonymous namespace\)::/, "", name)
      sub(/\(.*/, "", name)
      at = $1 / 1e3
      until = $2 / 1e3
      if (first == "" || index(name, first) == 1) close_step(at)
      if (first != "" && kernels == 0 && index(name, first) != 1) next # before the first step
      begun[++kernels] = at
      ended[kernels] = until
      kind = kind (kind == "" ? "" : "\n") name
      if (first == "") close_step(until)
    }
    END {
      if (all == 0) exit 1 # the last step has no end, and does not count
      for (k in steps) if (steps[k] > n) n = steps[most = k]
      if (first == "") {
        printf "%9s %9s %9s %9s  %s\n", "times", "us", "10 %", "90 %", "kernel"
        for (k in steps) {
          collect(lasted, k, n = steps[k])
          printf "%9d %9.1f %9.1f %9.1f  %s\n", n, quantile(sorted, n, 0.5), quantile(sorted, n, 0.1),
            quantile(sorted, n, 0.9), k | "sort -k 1,1nr -k 5"
        }
        exit 0
      }
      collect(lasted, most, n)
      printf "%d steps of this kind, of %d; one takes %.1f us (10 %%: %.1f, 90 %%: %.1f)\n", n, all,
        quantile(sorted, n, 0.5), quantile(sorted, n, 0.1), quantile(sorted, n, 0.9)
      printf "%9s %9s %9s %9s %9s  %s\n", "begin", "end", "us", "10 %", "90 %", "kernel"
      m = split(most, names, "\n")
      for (i = 1; i <= m; i++) {
        collect(begins, most SUBSEP i, n); begin = quantile(sorted, n, 0.5)
        collect(ends, most SUBSEP i, n); end = quantile(sorted, n, 0.5)
        for (s = 1; s <= n; s++) sorted[s] = ends[most, i, s] - begins[most, i, s]
        sort(sorted, n)
        printf "%9.1f %9.1f %9.1f %9.1f %9.1f  %s\n", begin, end, quantile(sorted, n, 0.5),
          quantile(sorted, n, 0.1), quantile(sorted, n, 0.9), names[i]
      }
    }'
}

readable() { if have c++filt; then c++filt; else cat; fi; }

show() { # show FILE
  sort -n -- "$1" | readable | summary || { echo "timeline.sh: no step${first:+ that begins with $first} in $1" >&2 && exit 1; }
}

if [ -n "$from" ]; then
  [ $# = 0 ] || die "wrong arguments '$*'; allowed: --from FILE alone"
  { [ -f "$from" ] && [ -r "$from" ]; } || die "no file '$from' to read; allowed: the records of a rank, in build/timeline"
  ! head -n 1 -- "$from" | grep -qvE '^([0-9]+ ){4}[^ ]' || die "'$from' has no records; allowed: those of a rank, in build/timeline"
  show "$from"
  exit
fi

job_options=() # it wants GPUs
job_arguments '' "$@"
job_program
{ have gcc && have "$(mpirun_command)"; } || prepare "gcc $(mpirun_command)" --no-install
[[ $1 != 04_* || -n $first ]] || first=local_pass
records=$TOP/build/timeline/$(basename "${1%/}")
include=("$(cuda_home)/include" "$(cuda_home)/extras/CUPTI/include")
mkdir -p "$(dirname "$records")"
rm -f "$records".[0-9]*
gcc -shared -fPIC -O2 -o "$TOP/build/timeline.so" "$TOP/scripts/timeline.c" "${include[@]/#/-I}" \
  -L"$(cuda_home)/lib64" -L"$(cuda_home)/extras/CUPTI/lib64" -lcupti -pthread 2>"$records.log" ||
  die "scripts/timeline.c does not build, see $records.log; it needs CUPTI, which is part of CUDA"
ranks=${NP:-$(gpu_count)}
whole_number "$ranks" 1 1024 || die "NP='$ranks' is not a number of ranks; allowed: 1 to 1024, one GPU each"
code=0
TIMELINE_OUT=$records CUDA_INJECTION64_PATH=$TOP/build/timeline.so \
  mpi_run "$ranks" "${program[@]}" >"$records.log" 2>&1 || code=$?
[ $code = 0 ] || { tail -n 5 "$records.log" >&2 && echo "timeline.sh: exit code $code, see $records.log" >&2 && exit 1; }
for ((rank = 0; rank < ranks; rank++)); do
  [ -s "$records.$rank" ] || { echo "timeline.sh: rank $rank recorded nothing, see $records.log" >&2 && exit 1; }
  echo "rank $rank"
  show "$records.$rank"
done
