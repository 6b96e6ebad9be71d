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

digest() { # digest LAUNCHER RANKS [OPTIONS]: adds the line to $WORK/digests
  verified "$@" --digest
  grep '^Digest: [0-9a-f]\{16\}$' "$WORK/out" >>"$WORK/digests"
}

one_digest() {
  cat "$WORK/digests"
  [ "$(sort -u "$WORK/digests" | wc -l)" = 1 ]
  rm "$WORK/digests"
}
