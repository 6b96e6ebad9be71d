# SPDX-License-Identifier: Apache-2.0
# 04_sparse_allreduce/pytorch on the stand-in, where Python has PyTorch; PYTHON names another Python.
# shellcheck disable=SC2016,SC2034 # text with backquotes; variables for the helper
load helper

EXAMPLES="04_sparse_allreduce"
PYTHON=${PYTHON:-python3}
PYTORCH=$TOP/04_sparse_allreduce/pytorch

needs_pytorch() {
  "$PYTHON" -c 'import torch, torch.distributed; assert torch.distributed.is_available()' 2>/dev/null || skip "no PyTorch in $PYTHON"
}

# pytorch RANKS SCRIPT [ARGUMENTS]: what torchrun does, without loading PyTorch once more: a rank that fails ends
# the others. Sets code, $WORK/out, $WORK/err.
pytorch() {
  local rank ranks=() count=$1
  code=0
  export OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES="" MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000)) WORLD_SIZE=$count
  for ((rank = 0; rank < count; rank++)); do
    RANK=$rank LOCAL_RANK=$rank timeout -k 5 600 "$PYTHON" -B "${@:2}" >>"$WORK/out.$rank" 2>>"$WORK/err.$rank" </dev/null &
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
  [ "$(grep -c _Static_assert "$WORK/mirror.c")" -gt 28 ]
  gcc -std=c11 -fsyntax-only -DCPU_STANDIN -isystem "$TOP/common/cpu/include" -I"$TOP/04_sparse_allreduce/lib" "$WORK/mirror.c"
}

@test "two ranks: everything that the optimizer promises" {
  needs_pytorch
  pytorch 2 "$TOP/tests/pytorch/optimizer_cases.py"
  exits_with 0
  [ "$(grep -c '^ok ' "$WORK/out")" = "$(grep -c -E '^@(case|pattern)' "$TOP/tests/pytorch/optimizer_cases.py")" ] || show
}

@test "three ranks, and a group of two of them" {
  needs_pytorch
  pytorch 3 "$TOP/tests/pytorch/optimizer_cases.py" every_step skips a_group_of all_paths
  exits_with 0
  [ "$(grep -c '^ok ' "$WORK/out")" = 4 ] || show
}

@test "a rank that dies: the others end with a sentence" {
  needs_pytorch
  cat >"$WORK/dies.py" <<'PY'
import os, torch, torch.distributed as dist
from sparse_update_optimizer import SparseUpdateOptimizer
dist.init_process_group("gloo")
net = torch.nn.Linear(100, 10)
optimizer = SparseUpdateOptimizer(torch.optim.AdamW(net.parameters()), density=0.1, timeout_seconds=5)
for step in range(4):
    net(torch.randn(3, 100)).square().sum().backward()
    if step == 2 and dist.get_rank() == 1:
        os._exit(0)
    optimizer.step()
PY
  PYTHONPATH=$PYTORCH pytorch 2 "$WORK/dies.py"
  [[ $code != 0 && $code != 124 ]] || show
  says 'SparseAllreduceError: .*timed out waiting for rank'
}

@test "a library that is not there, or of another kind, is refused with a sentence" {
  needs_pytorch
  mkdir "$WORK/apart"
  cp "$PYTORCH"/*.py "$WORK/apart"
  pytorch 1 "$WORK/apart/train_text.py" --steps 1 --ways sparse
  exits_with 1
  says 'SparseAllreduceError: there is no /.*/libsparse_allreduce.so: build it with `make CPU=1`, or pass library=<its path>$'
  cp "$TOP/build/cpu-pthread"/lib*.so "$WORK/apart"
  mv "$WORK/apart/libsparse_allreduce.so" "$WORK/apart/libsparse_allreduce_cpu.so"
  pytorch 1 "$WORK/apart/train_text.py" --steps 1 --ways sparse # as installed
  exits_with 0
  gpu=$TOP/build/gpu-pthread/libsparse_allreduce.so
  [ -f "$gpu" ] || skip "no GPU build"
  cp "$gpu" "$WORK/apart/libsparse_allreduce_cpu.so"
  pytorch 1 "$WORK/apart/train_text.py" --steps 1 --ways sparse
  exits_with 1
  says 'SparseAllreduceError: .* (is for GPUs, the parameters are on the CPU|cannot be used: .*)$'
}

@test "the example learns" {
  needs_pytorch
  pytorch 2 "$PYTORCH/train_text.py" --steps 30 --ways ddp+rate=3e-3,sparse+density=0.05+rate=7.5e-3,sparse+ahead=0+rate=7.5e-3+momentum=0
  exits_with 0
  [ "$(tail -n 1 "$WORK/out")" = "All ranks had the same weights in the end" ] || show
  # the loss of the first step is that of equal bytes, ln 256 = 5.55; all ways begin with it
  awk '/^ddp/ { first = $2 } /=/ { if ($2 < 5.3 || $2 > 5.8 || $2 != first || $3 > 4.6 || $4 > 4.4) exit 1; n++ }
    END { exit n != 3 }' "$WORK/out" || show
}
