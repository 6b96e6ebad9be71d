# SPDX-License-Identifier: Apache-2.0
# 04_sparse_allreduce/pytorch on the stand-in, where Python has PyTorch; PYTHON names another Python.
# shellcheck disable=SC2016,SC2034 # text with backquotes; variables for the helper
load helper

EXAMPLES="04_sparse_allreduce"
PYTHON=${PYTHON:-python3}
HOOK=$TOP/04_sparse_allreduce/pytorch

needs_pytorch() {
  "$PYTHON" -c 'import torch, torch.distributed; assert torch.distributed.is_available()' 2>/dev/null || skip "no PyTorch in $PYTHON"
}

# pytorch RANKS SCRIPT [ARGUMENTS]: what torchrun does, without loading PyTorch once more: a rank that fails ends
# the others. For 120 s at most; sets code, $WORK/out, $WORK/err.
pytorch() {
  local rank ranks=() count=$1
  code=0
  export OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES="" MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000)) WORLD_SIZE=$count
  for ((rank = 0; rank < count; rank++)); do
    RANK=$rank LOCAL_RANK=$rank timeout -k 5 120 "$PYTHON" -B "${@:2}" >>"$WORK/out.$rank" 2>>"$WORK/err.$rank" </dev/null &
    ranks+=($!)
  done
  for ((rank = 0; rank < count && code == 0; rank++)); do wait -n "${ranks[@]}" || code=$?; done
  [ "$code" = 0 ] || kill "${ranks[@]}" 2>/dev/null || true
  wait
  cat "$WORK"/out.* >"$WORK/out"
  cat "$WORK"/err.* >"$WORK/err"
  rm -f "$WORK"/out.* "$WORK"/err.*
}

@test "structure and numbers that Python has copied are those of the headers" {
  needs_pytorch
  "$PYTHON" -B "$TOP/tests/pytorch/config_mirror.py" >"$WORK/mirror.c"
  [ "$(grep -c _Static_assert "$WORK/mirror.c")" -gt 50 ]
  gcc -std=c11 -fsyntax-only -DCPU_STANDIN -isystem "$TOP/common/cpu/include" -I"$TOP/04_sparse_allreduce/lib" "$WORK/mirror.c"
  [ -n "$(missing_for_gpu_build)" ] ||
    gcc -std=c11 -fsyntax-only -isystem "$(nccl_home)/include" -isystem "$(cuda_home)/include" -I"$TOP/04_sparse_allreduce/lib" "$WORK/mirror.c"
}

@test "two ranks: everything that the hook promises" {
  needs_pytorch
  pytorch 2 "$TOP/tests/pytorch/hook_cases.py"
  exits_with 0
  [ "$(grep -c '^ok ' "$WORK/out")" = "$(grep -cE '^@(gpu_)?case' "$TOP/tests/pytorch/hook_cases.py")" ] || show
}

@test "three ranks, and a group of two of them" {
  needs_pytorch
  pytorch 3 "$TOP/tests/pytorch/hook_cases.py" every_step_is_topka oktopk_loses a_group a_step_that_overflows
  exits_with 0
  [ "$(grep -c '^ok ' "$WORK/out")" = 4 ] || show
}

@test "nothing hangs in the end: a state that was not closed, an exception on one rank" {
  needs_pytorch
  pytorch 2 "$TOP/tests/pytorch/endings.py" left
  exits_with 0
  [ "$(grep -c 'has come to its end$' "$WORK/out")" = 2 ] || show
  pytorch 2 "$TOP/tests/pytorch/endings.py" thrown
  exits_with 1
  says 'this rank has had enough'
  prints_nothing
}

@test "a library that is not there, or of another kind, is refused with a sentence" {
  needs_pytorch
  mkdir "$WORK/apart"
  cp "$HOOK"/*.py "$WORK/apart"
  pytorch 1 "$WORK/apart/train_text.py" --steps 1 --ways oktopk
  exits_with 1
  says 'SparseAllreduceError: no /.*/libsparse_allreduce.so; allowed: `make CPU=1` makes it, or library=<its path>$'
  cp "$TOP/build/cpu-pthread"/lib*.so "$WORK/apart"
  mv "$WORK/apart/libsparse_allreduce.so" "$WORK/apart/libsparse_allreduce_cpu.so"
  pytorch 1 "$WORK/apart/train_text.py" --steps 1 --ways oktopk # as installed
  exits_with 0
  gpu=$TOP/build/gpu-pthread/libsparse_allreduce.so
  [ -f "$gpu" ] || skip "no GPU build"
  pytorch 1 "$HOOK/train_text.py" --steps 1 --ways oktopk --library "$gpu"
  exits_with 1
  says 'SparseAllreduceError: .* (is for GPUs, the model.s parameters are on the CPU|cannot be used: .*)$'
}

@test "a library that was made with another NCCL than PyTorch has loaded is refused with a line that says how to make it" {
  needs_pytorch
  gpu=$TOP/build/gpu-pthread/libsparse_allreduce.so
  [ -f "$gpu" ] || skip "no GPU build"
  header=$(awk '/define NCCL_(MAJOR|MINOR|PATCH) /{printf "%s%s", dot, $3; dot="."}' "$(nccl_home)/include/nccl.h")
  loaded=$("$PYTHON" -c 'import torch; print(".".join(map(str, torch.cuda.nccl.version())))' 2>/dev/null) || skip "a PyTorch without NCCL"
  [ "$header" != "$loaded" ] || skip "PyTorch has the same NCCL"
  home=$("$PYTHON" -B "$HOOK/sparse_allreduce_torch.py")
  [ -f "$home/include/nccl.h" ]
  code=0
  PYTHONPATH=$HOOK "$PYTHON" -B -c 'import sys, sparse_allreduce_torch as s; s._load(sys.argv[1], True)' "$gpu" >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 1
  says "^sparse_allreduce_torch.SparseAllreduceError: $gpu was made with NCCL $header, PyTorch has loaded $loaded; allowed: make NCCL_HOME=$home$"
}

@test "the example learns, and writes what it has seen" {
  needs_pytorch
  pytorch 2 "$HOOK/train_text.py" --steps 30 --rate 3e-3 --ways dense,oktopk,topkA,local --density 0.05 --csv "$WORK/steps.csv"
  exits_with 0
  [ "$(tail -n 1 "$WORK/out")" = "All ranks had the same weights in the end" ] || show
  prints '^2 ranks, 0.1 million weights, 30 steps of 512 bytes, density 0.05$'
  [ "$(wc -l <"$WORK/steps.csv")" = 121 ]
  # the loss of the first step is that of equal bytes, ln 256 = 5.55; all ways begin with it
  awk -F, '$5 == 1 { if ($6 < 5.3 || $6 > 5.8) exit 1; if (first == "") first = $6; if ($6 != first) exit 1 }' "$WORK/steps.csv"
  for way in dense oktopk topkA; do
    awk -F, -v way=$way '$1 == way && $5 > 25 { sum += $6; n++ } END { exit !(n == 5 && sum / n < 4.2) }' "$WORK/steps.csv" ||
      { tail -n 3 "$WORK/steps.csv" && show; }
  done
}
