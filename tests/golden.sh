#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints what an example without options prints on stdout: golden.sh 01_allreduce_ub 4, or golden.sh
# 01_allreduce_ub 4 2 where four ranks share two GPUs.
# Measured and chosen numbers are # in it: golden.sh --mask 04_sparse_allreduce makes them so in what
# it reads.
set -euo pipefail
PATHS="dense topkA topkA2 topkAopt gtopk oktopk topkSA gaussiank gaussiankconcat gaussiankSA"

mask() {
  case $1 in
  04_*)
    awk -v paths=" $PATHS " '
      index(paths, " " $1 " ") { $2 = $3 = $4 = $5 = $6 = $7 = $8 = "#" }
      /^Gradient: / { $2 = "#"; sub(/k = [0-9]+/, "k = #") }
      { print }'
    ;;
  *) cat ;;
  esac
}
if [ "$1" = --mask ]; then mask "$2" && exit; fi
example=$1 ranks=$2 gpus=${3:-$2}

# for_ranks FORMAT: one line per rank, with the rank for each %d.
for_ranks() {
  for ((rank = 0; rank < ranks; rank++)); do echo "${1//%d/$rank}"; done
}

devices() {
  for ((rank = 0; rank < ranks; rank++)); do
    echo "  Rank $rank communicator initialized using device $((rank % gpus))"
  done
}

allreduce() { # HEADING DEREGISTERED
  echo "Starting AllReduce example with $ranks rank$([ "$ranks" = 1 ] || echo s)"
  devices
  echo "$1"
  for_ranks "  Rank %d allocating 4.00 MB per buffer"
  for_ranks "  Rank %d data initialized (value: %d)"
  echo "Starting AllReduce with 1048576 elements (4 MB)"
  echo "AllReduce completed successfully"
  echo "Verification - Expected: $((ranks * (ranks - 1) / 2)).0, Got: $((ranks * (ranks - 1) / 2)).0"
  echo "Results verified correctly"
  for_ranks "  Rank %d $2 deregistered"
  echo "All resources cleaned up successfully"
}

# Counts halve with the destination's rank, from 1024 on and never below 1; rank 0's lines.
alltoallv() {
  local counts="" sends=0 window=0 to count offset=0
  for ((to = 0; to < ranks; to++)); do
    count=$((to < 10 ? 1024 >> to : 1))
    counts+=" $count" sends=$((sends + count))
  done
  window=$((1024 * ranks))
  echo "Starting AlltoAllV example with $ranks ranks"
  devices
  echo "Setting up AlltoAllV with variable-sized transfers"
  echo "  Send counts per rank:$counts"
  echo "  Total send elements: $sends, Total recv elements: $window"
  echo "Symmetric Memory allocation"
  for_ranks "  Rank %d allocating send: $(megabytes $((4 * sends))) MB, recv: $(megabytes $((4 * window))) MB"
  echo "Starting AlltoAllV with variable-sized transfers"
  echo "AlltoAllV completed successfully"
  echo "Verification:"
  for ((to = 0; to < ranks; to++)); do
    echo "  Received from rank $to: 1024 elements at offset $offset"
    offset=$((offset + 1024))
  done
  echo "Results structure verified correctly"
}

sparse_allreduce() {
  local path all="$ranks ranks"
  [ "$ranks" != 1 ] || all="1 rank"
  echo "Starting sparse AllReduce example with $all"
  devices
  echo "Gradient: # elements of type float, heavy, 70 steps; k = # (density 0.01)"
  echo "path              us/step    ratio  local/k global/k   words sent    words in the paper       xi  verified"
  for path in $PATHS; do echo "$path # # # # # # # 70 steps x $all"; done
  echo "All paths verified correctly"
}

megabytes() { LC_ALL=C awk -v bytes="$1" 'BEGIN { printf "%.2f", bytes / 1048576 }'; }

case $example in
01_allreduce_ub) allreduce "User Buffer allocation:" "buffers" ;;
02_allreduce_sm) allreduce "Symmetric Memory allocation" "symmetric memory windows" ;;
03_alltoallv_sm) alltoallv ;;
04_sparse_allreduce) sparse_allreduce ;;
*)
  echo "golden.sh: unknown example '$example'; allowed: 01_allreduce_ub, 02_allreduce_sm, 03_alltoallv_sm, 04_sparse_allreduce" >&2
  exit 2
  ;;
esac
