# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the bats files of 04_sparse_allreduce share.
# shellcheck disable=SC2034 # variables for those who load this
load helper

EXAMPLES="04_sparse_allreduce"
SMALL=(--count 3000 --steps 5)

sparse() { start "$1" "$2" 04_sparse_allreduce "${@:3}"; } # sparse LAUNCHER RANKS [OPTIONS]

verified() {
  sparse "$@"
  exits_with 0
  prints '^All paths verified correctly$'
}

refused() { # refused PATTERN-OF-THE-LINE [OPTIONS]: on two ranks
  sparse pthread 2 "${@:2}"
  exits_with 2
  one_line "^sparse_allreduce: $1"
  prints_nothing
}

digest() { # digest LAUNCHER RANKS [OPTIONS]: adds the line to $WORK/digests
  verified "$@" --digest
  grep '^Digest: [0-9a-f]\{16\}$' "$WORK/out" >>"$WORK/digests"
}

one_digest() {
  cat "$WORK/digests"
  [ "$(sort -u "$WORK/digests" | wc -l)" = 1 ]
  rm "$WORK/digests"
}

# broken PATH FILE LINE NEW [OPTIONS]: with NEW in place of LINE in that file the path fails the verification.
# BROKEN_LAUNCHER=mpi: with a process for each rank.
# shellcheck disable=SC2034 # code is for exits_with
broken() {
  local copy=$FAULT_FOLDER/broken/04_sparse_allreduce
  if [ ! -d "$copy" ]; then
    mkdir "$FAULT_FOLDER/broken"
    cp -rp "$TOP"/{Makefile,common,scripts,0*,tests} "$FAULT_FOLDER/broken"
    mkdir "$FAULT_FOLDER/broken/build"
    cp -rp "$TOP"/build/cpu* "$FAULT_FOLDER/broken/build"
  fi
  awk -v line="$3" -v new="$4" '{ at = index($0, line) }
    at { $0 = substr($0, 1, at - 1) new substr($0, at + length(line)); found++ }
    { print } END { exit found != 1 }' "$TOP/04_sparse_allreduce/$2" >"$copy/$2"
  code=0
  if [ "${BROKEN_LAUNCHER:-pthread}" = mpi ]; then # where oktopk is one-sided
    make -s -C "$copy/.." CPU=1 MPI=1 04_sparse_allreduce
    mpi_job 4 "$copy/sparse_allreduce" --algorithm "$1" "${@:5}" >"$WORK/out" 2>"$WORK/err" || code=$?
  else
    make -s -C "$copy/.." CPU=1 04_sparse_allreduce
    NTHREADS=4 "$copy/sparse_allreduce" --algorithm "$1" "${@:5}" >"$WORK/out" 2>"$WORK/err" || code=$?
  fi
  cp "$TOP/04_sparse_allreduce/$2" "$copy/$2"
  exits_with 1
  prints '^Results are WRONG, see standard error$'
}
