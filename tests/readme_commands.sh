#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every block of commands in a page runs when it is pasted as a whole. In front of each ```shell block a comment,
# which readers of the page do not see, says where:
#
#   <!-- run: WHERE[, in FOLDER][, needs TOOL...] -->
#
#   anywhere        on every machine
#   GPUs or CPU=1   without two GPUs with CPU=1 in the environment: make takes the stand-in then
#   GPUs            with two GPUs or more only
#   in FOLDER       from this folder of the suite (else: the page's)
#   needs TOOL...   left out where one of these commands is not there
#
# What takes too long or wants a scheduler is changed by a sed script of the page, in tests/pages/, and runs so.
#
#   tests/readme_commands.sh [PAGE...]     all .md files of the suite without arguments
#
# It all happens in a copy of this tree with what is built in it, the blocks of a page one after the other.
# Exit code 0: every block has its comment, and those that run here succeeded.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../scripts/lib.sh"
cd "$TOP"
[ $# -gt 0 ] || set -- ./*.md docs/*.md [0-9][0-9]_*/{,*/}*.md
# seconds for a block that hangs
limit=1800

unset MAKEFLAGS MAKELEVEL MFLAGS MPI CPU SANITIZE NTHREADS
gpus=yes
if [ "$(gpu_count)" -lt 2 ] || [ -n "$(missing_for_gpu_build)" ]; then gpus=no; fi

work=$(mktemp -d) || exit
trap 'rm -rf "$work"' EXIT
mkdir "$work/home" "$work/suite" "$work/blocks"
# the kernels of 04: another check may be writing them
of_no_use=(--exclude=./.git --exclude='build/*-address*' --exclude='build/*-thread' --exclude='build/cpu/04_*.cu.o')
[ $gpus = yes ] || of_no_use+=(--exclude='build/gpu-*')
# 1: another check wrote a file meanwhile
{ tar -cf - "${of_no_use[@]}" . || [ $? = 1 ]; } |
  tar -C "$work/suite" -xf -

# blocks PAGE: a file for each block, NUMBER.LINE, with its comment in the first line.
blocks() {
  awk -v folder="$work/blocks/" '
    /^<!-- run: / { comment = ""; in_comment = 1 }
    in_comment { comment = comment (comment == "" ? "" : ";") $0; in_comment = !/-->$/; next }
    /^```/ && code { code = 0; close(file); next }
    /^```(shell|sh|bash|console)$/ { file = sprintf("%s%03d.%d", folder, ++n, NR); print comment >file; code = 1; comment = ""; next }
    code { print >file; next }
    { comment = "" }' "$1"
}

# run_block PAGE FILE: says what became of it.
run_block() {
  local page=$1 where folder tool tools code=0 begin=$SECONDS environment=(CPU_STANDIN_DEVICES=4 "MAKEFLAGS=-j$(nproc)")
  local name=${page#./}:${2##*.} changes
  where=$(head -n 1 "$2")
  if [[ ! $where =~ ^\<!--\ run:\ (anywhere|GPUs or CPU=1|GPUs)(, in ([^, ]+))?(, needs ([^,]+))?\ --\>$ ]]; then
    echo "$name: where does this block run? allowed: a line <!-- run: ... --> before it, see tests/readme_commands.sh"
    failed=$((failed + 1))
    return
  fi
  where=${BASH_REMATCH[1]} folder=${BASH_REMATCH[3]:-$(dirname "$page")} tools=${BASH_REMATCH[5]}
  if [ "$where" = GPUs ] && [ $gpus = no ]; then echo "$name: left out, no GPUs" && return; fi
  for tool in $tools; do have "$tool" || { echo "$name: left out, no $tool" && return; }; done
  # PyTorch would take a GPU
  if [ "$where" = "GPUs or CPU=1" ] && [ $gpus = no ]; then environment+=(CPU=1 CUDA_VISIBLE_DEVICES=); fi
  changes=${page#./}
  changes=tests/pages/$(tr / _ <<<"${changes%.md}").sed
  [ -f "$changes" ] || changes=/dev/null
  tail -n +2 "$2" | sed -f "$changes" >"$work/commands"
  if grep -q 'MPI=1' "$work/commands" && ! have_mpi; then echo "$name: left out, no MPI" && return; fi
  (cd "$work/suite/$folder" && env HOME="$work/home" "${environment[@]}" \
    timeout -k 5 "$limit" bash -exo pipefail "$work/commands") >"$work/log" 2>&1 </dev/null || code=$?
  if [ $code = 0 ]; then
    ran=$((ran + 1))
    echo "$name: ran, $((SECONDS - begin)) s"
  else
    failed=$((failed + 1))
    echo "$name: exit code $code"
    tail -n 30 "$work/log" | sed 's/^/    /'
  fi
}

ran=0 failed=0
for page in "$@"; do
  [ -f "$page" ] || continue
  rm -f "$work"/blocks/*
  blocks "$page"
  for block in "$work"/blocks/*; do
    [ ! -f "$block" ] || run_block "$page" "$block"
  done
done
echo "$ran blocks of commands ran, $failed failed"
[ $failed = 0 ] && [ $ran -gt 0 ]
