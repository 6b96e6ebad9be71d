# SPDX-License-Identifier: Apache-2.0
"""Ends that must not hang: `left`, a state that nobody closes; `thrown`, an exception on the last rank only,
in the with-block of a state.

    torchrun --standalone --nproc-per-node 2 tests/pytorch/endings.py left|thrown
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../04_sparse_allreduce/pytorch"))
from sparse_allreduce_torch import SparseAllreduceState, sparse_allreduce_hook  # noqa: E402

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(300, 30))
state = SparseAllreduceState(model, density=0.1)
model.register_comm_hook(state, sparse_allreduce_hook)
for step in range(3):
    model(torch.ones(2, 300)).sum().backward()
if sys.argv[1] == "thrown":
    with state:
        if dist.get_rank() == dist.get_world_size() - 1:
            raise SystemExit("this rank has had enough")
        dist.barrier()
print("rank %d has come to its end" % dist.get_rank(), flush=True)
