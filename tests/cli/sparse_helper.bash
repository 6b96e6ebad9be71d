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
