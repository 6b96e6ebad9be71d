# SPDX-License-Identifier: Apache-2.0
"""What SparseUpdateOptimizer promises, case by case, on GPUs (nccl) or on the CPU (gloo, and the library's
stand-in):

    torchrun --standalone --nproc-per-node 2 tests/pytorch/optimizer_cases.py [--cuda] [--library FILE] [NAME...]

With names, only the cases whose name contains one of them. The last rank prints `ok NAME` for each; what
fails ends the job with its traceback.
"""

import argparse
import contextlib
import copy
import faulthandler
import functools
import io
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../04_sparse_allreduce/pytorch"))
import sparse_update_optimizer  # noqa: E402
from sparse_update_optimizer import SparseAllreduceError  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--cuda", action="store_true")
parser.add_argument("--library")
parser.add_argument("--limit", type=int, default=110, help="seconds")
parser.add_argument("names", nargs="*")
OPTIONS = parser.parse_args()
CUDA = OPTIONS.cuda
RANK = int(os.environ["RANK"])
DEVICE = torch.device("cpu")
if CUDA:
    DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
SparseUpdateOptimizer = functools.partial(sparse_update_optimizer.SparseUpdateOptimizer, library=OPTIONS.library)
CASES = []


def case(function):
    CASES.append(function)
    return function


# ---- a model, its data, optimizers ---------------------------------------------------------------
class Net(nn.Module):
    def __init__(self, width=24, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(1 + RANK)  # rank 0's weights are to become everybody's
        self.first, self.second, self.last = nn.Linear(8, width), nn.Linear(width, 24), nn.Linear(24, 5)
        self.to(DEVICE, dtype)

    def forward(self, x, without_second=False):
        x = torch.tanh(self.first(x))
        return self.last(x if without_second else torch.tanh(self.second(x)))


def batch(step, dtype=torch.float32):
    """Another one on each rank and in each step."""
    generator = torch.Generator().manual_seed(1000 * step + RANK)
    return torch.randn(6, 8, generator=generator).to(DEVICE, dtype)


def adamw(net):
    return torch.optim.AdamW(net.parameters(), lr=0.01)


def momentum(net):
    return torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


def groups(net):
    others = [*net.second.parameters(), *net.first.parameters()]
    return torch.optim.AdamW([{"params": net.last.parameters(), "lr": 0.02},
                              {"params": others, "weight_decay": 0.3}], lr=0.01)


def backward(net, step, scale=1.0, **options):
    loss = net(batch(step, next(net.parameters()).dtype), **options).square().sum()
    (loss * scale).backward()
    return loss


def one_step(net, optimizer, step):
    loss = backward(net, step)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


# ---- the same rule in plain torch ----------------------------------------------------------------
def of_all_ranks(tensor):
    everybody = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, tensor)
    return everybody


class Plain:
    """Top-k of what the optimizer changed and the residual, added in the order of ranks."""

    def __init__(self, optim, density, every=1, ahead=None):
        self.optim, self.every, self.steps = optim, every, 0
        density = density or 0.02 / dist.get_world_size()
        self.ahead = min(12 * density, 0.25) if ahead is None else ahead
        self.params = [p for g in optim.param_groups for p in g["params"]]
        for p in self.params:
            dist.broadcast(p.data, 0)
        self.shared = self.flat()
        for p, part in zip(self.params, self.flat().split([p.numel() for p in self.params])):
            p.data = part.view_as(p)  # where the wrapper has it: cuBLAS chooses kernels by alignment
        self.residual = torch.zeros_like(self.shared)
        self.k = max(1, int(self.shared.numel() * density))

    def flat(self):
        return torch.cat([p.detach().flatten().float() for p in self.params])

    def begin(self):
        return torch.sub(self.shared, self.residual, alpha=self.ahead)  # rounded once

    def step(self):
        self.optim.step()
        self.steps += 1
        if self.steps % self.every == 0:
            acc = self.residual + (self.begin() - self.flat())
            chosen = torch.sort(acc.abs(), descending=True, stable=True).indices[:self.k]
            offered = torch.zeros_like(acc)
            offered[chosen] = acc[chosen]
            total = torch.zeros_like(acc)
            for theirs in of_all_ranks(offered):
                total = total + theirs
            acc[chosen] = 0
            self.residual = acc
            # by a tensor: on GPUs PyTorch multiplies by the reciprocal of a number
            self.shared = self.shared - total / torch.full_like(total, dist.get_world_size())
            for p, part in zip(self.params, self.begin().split([p.numel() for p in self.params])):
                p.data.copy_(part.view_as(p))

    def zero_grad(self):
        self.optim.zero_grad()


def same(got, expected, what):
    """Bit for bit, NaN is equal to NaN."""
    if not torch.equal(got.nan_to_num(123), expected.nan_to_num(123)):
        i = int((got != expected).nonzero()[0])
        raise AssertionError("%s: %d differ, the first is element %d, %.9g, expected %.9g" %
                             (what, int((got != expected).sum()), i, got[i], expected[i]))


def flat(net):
    return torch.cat([p.detach().flatten().float() for p in net.parameters()])


def shared_by_all(net, optimizer, what):
    own = flat(net)
    with optimizer.shared_weights():
        for weights in of_all_ranks(flat(net)):
            same(weights, flat(net), what + ": weights of another rank")
    same(flat(net), own, what + ": weights after shared_weights()")


def refused(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error) and "\n" not in str(error), "%r: %s" % (words, error)
    else:
        raise AssertionError("%r was not refused" % words)


def compare(make, what, steps=6, train=one_step, density=0.1, **options):
    """The wrapper and Plain, step by step."""
    ours, plain = Net(), Net()
    optimizer = SparseUpdateOptimizer(make(ours), density=density, **options)
    reference = Plain(make(plain), density, **{name: options[name] for name in options if name != "exchange"})
    for step in range(steps):
        for net, o in ((ours, optimizer), (plain, reference)):
            train(net, o, step)
        same(flat(ours), flat(plain), "%s, step %d" % (what, step))
        shared_by_all(ours, optimizer, what)
    optimizer.close()


# ---- cases ---------------------------------------------------------------------------------------
@case
def every_step_is_that_of_the_rule():
    for make in (adamw, momentum, groups):
        for options in ({}, {"every": 3}, {"density": None}, {"ahead": 0, "exchange": 1}, {"ahead": 0, "density": 1}):
            compare(make, "%s, %r" % (make.__name__, options), **options)


@case
def accumulated_clipped_scheduled():
    schedules = {}

    def train(net, optimizer, step):
        if step == 0:
            wrapped = getattr(optimizer, "optim", optimizer) if isinstance(optimizer, Plain) else optimizer
            schedules[optimizer] = torch.optim.lr_scheduler.LambdaLR(wrapped, lambda n: 1 / (n + 1))
        backward(net, 2 * step)
        backward(net, 2 * step + 1)
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        schedules[optimizer].step()

    compare(adamw, "accumulated", train=train)


@case
def a_scaler_that_skips_on_one_rank():
    """Its scale is a power of two, so gradients have the same bits with it and without."""
    ours, plain = Net(), Net()
    optimizer, reference = SparseUpdateOptimizer(adamw(ours), density=0.1), Plain(adamw(plain), 0.1)
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=1024.0)
    for step in range(5):
        scaler.scale(ours(batch(step)).square().sum() * (float("inf") if (step, RANK) == (2, 0) else 1)).backward()
        if step == 3:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if step != 2:
            one_step(plain, reference, step)
        same(flat(ours), flat(plain), "step %d" % step)
    optimizer.close()


@case
def saved_and_loaded_in_the_middle():
    for options in ({}, {"algorithm": "oktopk"}, {"every": 2, "algorithm": "topkAopt"}):
        net = Net()
        optimizer = SparseUpdateOptimizer(groups(net), density=0.1, **options)
        for step in range(9):
            if step == 5:
                file = io.BytesIO()
                with optimizer.shared_weights() if options else contextlib.nullcontext():
                    torch.save(optimizer.state_dict(), file)
                file.seek(0)
                other = Net()
                restarted = SparseUpdateOptimizer(groups(other), density=0.1, **options)
                restarted.load_state_dict(torch.load(file, weights_only=True))
            for n, o in ((net, optimizer), (other, restarted)) if step >= 5 else ((net, optimizer),):
                one_step(n, o, step)
        same(flat(other), flat(net), "%r" % options)
        shared_by_all(other, restarted, "restarted")
        optimizer.close()
        restarted.close()


@case
def loaded_with_a_smaller_every():
    nets = Net(), Net()
    slow, fast = (SparseUpdateOptimizer(adamw(net), density=1, every=every) for net, every in zip(nets, (9, 2)))
    for step in range(3):
        one_step(nets[0], slow, step)
    fast.load_state_dict(slow.state_dict())
    one_step(nets[1], fast, 3)
    same(flat(nets[1]), of_all_ranks(flat(nets[1]))[0], "after 4 local steps")
    slow.close()
    fast.close()


@case
def a_parameter_without_gradient_on_one_rank():
    def train(net, optimizer, step):
        backward(net, step, without_second=RANK == 0)
        optimizer.step()
        optimizer.zero_grad()

    compare(adamw, "without gradient", train=train)


@case
def all_paths_keep_the_weights_of_all_ranks_equal_and_learn():
    for algorithm in ("oktopk", "gtopk", "topkSA", "gaussiank", "dense"):
        net = Net()
        optimizer = SparseUpdateOptimizer(adamw(net), density=0.1, algorithm=algorithm)
        losses = []
        for step in range(30):
            losses.append(one_step(net, optimizer, step % 5))
            shared_by_all(net, optimizer, "%s, step %d" % (algorithm, step))
        assert sum(losses[-5:]) < 0.8 * sum(losses[:5]), "%s: %r" % (algorithm, losses)
        optimizer.close()


@case
def weights_of_16_bits_have_a_copy_of_32():
    net = Net(dtype=torch.bfloat16)
    optimizer = SparseUpdateOptimizer(torch.optim.SGD(net.parameters(), lr=1e-4), density=1, every=3)
    before = copy.deepcopy(net)
    for step in range(200):
        (net if step % 2 else optimizer).zero_grad()
        (sum(p.sum() for p in net.parameters())).backward()
        optimizer.step()
    for p, q in zip(net.parameters(), before.parameters()):  # each step alone would be rounded away
        assert p.dtype == torch.bfloat16 and torch.allclose(p.float(), q.float() - 0.02, atol=0.004)
    shared_by_all(net, optimizer, "16 bits")
    optimizer.close()


@case
def a_group_of_ranks():
    if dist.get_world_size() == 1:
        return
    group = dist.new_group([dist.get_world_size() - 2, dist.get_world_size() - 1])
    if RANK < dist.get_world_size() - 2:
        return
    net = Net()
    optimizer = SparseUpdateOptimizer(adamw(net), density=0.1, group=group)
    for step in range(3):
        one_step(net, optimizer, step)
    with optimizer.shared_weights():
        everybody = [torch.empty_like(flat(net)) for _ in range(2)]
        dist.all_gather(everybody, flat(net), group=group)
        same(everybody[0], everybody[1], "in a group")
    optimizer.close()


@case
def what_cannot_be_is_refused_on_all_ranks():
    net = Net()
    refused(TypeError, "no field 'densty'; allowed: algorithm", lambda: SparseUpdateOptimizer(adamw(net), densty=1))
    refused(ValueError, "algorithm='topk'; allowed: dense, topkA",
            lambda: SparseUpdateOptimizer(adamw(net), algorithm="topk"))
    refused(ValueError, "every=0; allowed: 1 or more", lambda: SparseUpdateOptimizer(adamw(net), every=0))
    refused(SparseAllreduceError, "density", lambda: SparseUpdateOptimizer(adamw(net), density=2.0))
    SparseUpdateOptimizer(torch.optim.Adagrad(Net().parameters())).close()  # has a state from the beginning
    refused(ValueError, "the optimizer has a state of 16-bit parameters: pass a new one",
            lambda: SparseUpdateOptimizer(torch.optim.Adagrad(Net(dtype=torch.bfloat16).parameters())))
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][RANK]
    of_one = SparseUpdateOptimizer(adamw(Net()), density=0.1, group=alone).state_dict()
    optimizer = SparseUpdateOptimizer(adamw(net), density=0.1)
    with optimizer.shared_weights():
        refused(SparseAllreduceError, "leave shared_weights() first", optimizer.step)
    refused(SparseAllreduceError, "groups of parameters cannot be added", lambda: optimizer.add_param_group({}))
    saved = optimizer.state_dict()
    saved["library"] = of_all_ranks(saved["library"].to(DEVICE))[RANK - 1]
    if dist.get_world_size() > 1:
        words = ("rank 1 has another `every`, or parameters of other shapes or types, than rank 0: "
                 "all ranks need the same")
        refused(SparseAllreduceError, words, lambda: SparseUpdateOptimizer(adamw(Net(width=24 + (RANK == 1)))))
        refused(SparseAllreduceError, words, lambda: SparseUpdateOptimizer(adamw(net), every=1 + (RANK == 1)))
        own, other = (ValueError, "every=0"), (SparseAllreduceError, "rank 1: every=0; allowed: 1 or more")
        error, words = own if RANK == 1 else other
        refused(error, words, lambda: SparseUpdateOptimizer(adamw(net), every=0 if RANK == 1 else 1))
        refused(SparseAllreduceError, "state", lambda: optimizer.load_state_dict(saved))
        refused(SparseAllreduceError, "ranks", lambda: optimizer.load_state_dict(of_one))
    optimizer.close()
    optimizer.close()
    refused(SparseAllreduceError, "the optimizer is closed", optimizer.step)


@case
def a_gradient_that_is_not_finite_is_heard_of_on_all_ranks():
    net = Net()
    optimizer = SparseUpdateOptimizer(adamw(net), density=0.1)
    backward(net, 0, scale=float("nan") if RANK == 0 else 1.0)
    refused(SparseAllreduceError, "not finite", optimizer.step)


@case
def a_rank_that_is_late_is_heard_of():
    net = Net()
    optimizer = SparseUpdateOptimizer(adamw(net), density=0.1, timeout_seconds=3)
    for step in range(2):
        one_step(net, optimizer, step)
    time.sleep(9 if RANK == dist.get_world_size() - 1 else 0)
    if dist.get_world_size() > 1:
        refused(SparseAllreduceError, "timed out waiting for rank", optimizer.step)


# ---- main ----------------------------------------------------------------------------------------
def main():
    faulthandler.dump_traceback_later(OPTIONS.limit, exit=True)  # where it hangs, of each rank
    if CUDA:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl" if CUDA else "gloo")
    for function in CASES:
        if OPTIONS.names and not any(name in function.__name__ for name in OPTIONS.names):
            continue
        with torch.cuda.stream(torch.cuda.Stream() if CUDA else None):  # the example has the default one
            function()
        dist.barrier()
        if RANK == dist.get_world_size() - 1:
            print("ok %s" % function.__name__, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
