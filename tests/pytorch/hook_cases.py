# SPDX-License-Identifier: Apache-2.0
"""What 04_sparse_allreduce/pytorch promises, case by case, on GPUs (nccl) or on the CPU (gloo, and the
library's stand-in):

    torchrun --standalone --nproc-per-node 2 tests/pytorch/hook_cases.py [--cuda] [--library FILE] [NAME...]

With names, only the cases whose name contains one of them. The last rank prints `ok NAME` for each; what
fails ends the job with its traceback.
"""

import argparse
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
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../04_sparse_allreduce/pytorch"))
import sparse_allreduce_torch  # noqa: E402
from sparse_allreduce_torch import SparseAllreduceError, sparse_allreduce_hook  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--cuda", action="store_true")
parser.add_argument("--library")
parser.add_argument("--limit", type=int, default=110, help="seconds")
parser.add_argument("names", nargs="*")
OPTIONS = parser.parse_args()
CUDA = OPTIONS.cuda
RANK = int(os.environ["RANK"])
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if CUDA else torch.device("cpu")
EXCHANGES = ("auto", "sendrecv")
SparseAllreduceState = functools.partial(sparse_allreduce_torch.SparseAllreduceState, library=OPTIONS.library)
CASES = []
ON_GPUS = []


def case(function):
    CASES.append(function)
    return function


def gpu_case(function):
    """With --cuda these run, unless others are named: a handle on a GPU takes up to a second to make and free."""
    ON_GPUS.append(function)
    return case(function)


# ---- models --------------------------------------------------------------------------------------
class Net(nn.Module):
    """Layers of equal and of different sizes; they are used in another order than they were made, so
    that the buckets that DistributedDataParallel rebuilds are not those of the first step."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(1)
        self.last = nn.Linear(24, 5)
        self.first = nn.Linear(8, 24)
        self.second = nn.Linear(24, 24)
        self.third = nn.Linear(24, 24)
        self.to(DEVICE, dtype)

    def forward(self, x):
        return self.last(torch.tanh(self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))))


SMALL = 0.001  # MiB of a bucket: so there are some


def parallel(net, **options):
    options.setdefault("bucket_cap_mb", 25 if CUDA else SMALL)  # making a handle on a GPU takes a third of a second
    return DistributedDataParallel(net, device_ids=[DEVICE] if CUDA else None, **options)


def batch(step, dtype=torch.float32, rows=6, width=8):
    """Another one on each rank and in each step."""
    generator = torch.Generator().manual_seed(1000 * step + RANK)
    return torch.randn(rows, width, generator=generator).to(DEVICE, dtype)


def gradients(model):
    return {name: p.grad.clone() for name, p in model.module.named_parameters() if p.grad is not None}


def backward(model, step, dtype=torch.float32):
    model.zero_grad(set_to_none=True)
    model(batch(step, dtype)).square().sum().backward()
    return gradients(model)


def descend(model, rate=0.01):
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= rate * p.grad


# ---- comparing -----------------------------------------------------------------------------------
def same(got, expected, what):
    """Bit for bit; NaN is equal to NaN."""
    assert got.keys() == expected.keys(), "%s: %s, expected %s" % (what, got.keys(), expected.keys())
    for name in got:
        if not torch.equal(got[name].nan_to_num(123), expected[name].nan_to_num(123)):
            raise AssertionError("%s: %s is\n%s\nexpected\n%s" % (what, name, got[name], expected[name]))


def different(got, expected, what):
    assert any(not torch.equal(got[name], expected[name]) for name in got), "%s should differ" % what


def refused(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error) and "\n" not in str(error), "%r: %s" % (words, error)
    else:
        raise AssertionError("%r was not refused" % words)


class Spy:
    """A hook in front of ours: keeps what each rank's buckets hold before they are exchanged."""

    def __init__(self, model, state):
        self.layouts, self.buckets = [], []
        self.names = {id(p): name for name, p in model.module.named_parameters()}
        model.register_comm_hook(state, self.hook)

    def hook(self, state, bucket):
        if bucket.index() == 0:
            self.layouts.append([])
            self.buckets = []
        self.layouts[-1].append(tuple(self.names[id(p)] for p in bucket.parameters()))
        self.buckets.append((list(bucket.parameters()), bucket.buffer().clone()))
        at = bucket.buffer().data_ptr()  # a parameter's gradient is where the hook takes it to be
        for p, g in zip(bucket.parameters(), bucket.gradients()):
            assert g.data_ptr() == at
            at += p.numel() * g.element_size()
        return sparse_allreduce_hook(state, bucket)


def of_all_ranks(tensor):
    everybody = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, tensor)
    return everybody


class TopkA:
    """The k largest of gradient + residual, of each rank and bucket, added in the order of ranks."""

    def __init__(self, spy, density):
        self.spy, self.density = spy, density
        self.residuals = {}  # name: of all ranks

    def step(self):
        averages = {}
        for parameters, buffer in self.spy.buckets:
            names, sizes = [self.spy.names[id(p)] for p in parameters], [p.numel() for p in parameters]
            k = max(1, int(buffer.numel() * self.density))
            total = torch.zeros(buffer.numel(), device=buffer.device)
            lefts = []
            for rank, gradient in enumerate(of_all_ranks(buffer)):
                acc = gradient.float()
                if names[0] in self.residuals:
                    acc = acc + torch.cat([self.residuals[name][rank] for name in names])
                chosen = torch.sort(acc.abs(), descending=True, stable=True).indices[:k]
                offered = torch.zeros_like(acc)
                offered[chosen] = acc[chosen]
                total = total + offered
                left = acc.clone()
                left[chosen] = 0
                lefts.append(left.split(sizes))
            average = (total / dist.get_world_size()).to(buffer.dtype)
            for i, (name, p) in enumerate(zip(names, parameters)):
                averages[name] = average.split(sizes)[i].view_as(p)
                self.residuals[name] = [left[i] for left in lefts]
        return averages

    def mine(self):
        return {name: all_ranks[RANK].cpu() for name, all_ranks in self.residuals.items()}


# ---- cases ---------------------------------------------------------------------------------------
@case
def everything_sent_is_what_pytorch_does():
    for exchange, options in (("auto", {}), ("sendrecv", {"gradient_as_bucket_view": True}), ("auto", {"bucket_cap_mb": 25})):
        plain, sparse = parallel(Net(), **options), parallel(Net(), **options)
        with SparseAllreduceState(sparse, algorithm="topkA", density=1.0, exchange=exchange) as state:
            sparse.register_comm_hook(state, sparse_allreduce_hook)
            for step in range(4):
                same(backward(sparse, step), backward(plain, step), "step %d" % step)
                descend(sparse)
                descend(plain)
            assert (state.steps, state.skipped) == (4, 0)


@gpu_case
def every_step_is_topka_and_residuals_move_with_their_parameters():
    for dtype in (torch.float16,) if CUDA else (torch.float32, torch.float16, torch.bfloat16):
        model = parallel(Net(dtype), bucket_cap_mb=SMALL)
        with SparseAllreduceState(model, algorithm="topkA", density=0.1) as state:
            spy = Spy(model, state)
            expected = TopkA(spy, 0.1)
            for step in range(5):
                got = backward(model, step, dtype)
                same(got, expected.step(), "%s, step %d" % (dtype, step))
                same(state.state_dict()["residuals"], expected.mine(), "residuals, step %d" % step)
                descend(model)
            assert spy.layouts[0] != spy.layouts[1] == spy.layouts[4], "buckets were not rebuilt"
            assert len(spy.layouts[1]) > 1


class Bucket:
    """One of our own in place of DistributedDataParallel's, of one parameter."""

    def __init__(self, parameter, index, count):
        self.at, self.count, self.parameter = index, count, parameter
        self.values = batch(index + 10 * count, rows=parameter.numel(), width=1).flatten()

    def index(self):
        return self.at

    def is_last(self):
        return self.at == self.count - 1

    def buffer(self):
        return self.values

    def gradients(self):
        return [self.values]

    def parameters(self):
        return [self.parameter]


@case
def buckets_of_one_size_are_told_apart_by_their_parameters():
    model = parallel(Net())
    p = {name: q for name, q in model.module.named_parameters() if q.numel() == 24}
    with SparseAllreduceState(model, algorithm="topkA", density=0.1) as state:
        spy = Spy(model, state)
        expected = TopkA(spy, 0.1)
        for order in (sorted(p), sorted(p, reverse=True), sorted(p)):
            buckets = [Bucket(p[name], i, len(order)) for i, name in enumerate(order)]
            futures = [spy.hook(state, bucket) for bucket in buckets]
            got = {name: future.wait() for name, future in zip(order, futures)}
            same(got, expected.step(), "order %s" % order)
            same(state.state_dict()["residuals"], expected.mine(), "residuals")


@case
def oktopk_loses_nothing():
    """Sum of all averages + mean of residuals = mean of all gradients, up to the rounding of sums."""
    steps = 12
    for exchange in EXCHANGES:
        model = parallel(Net())
        with SparseAllreduceState(model, preset="bert", algorithm="oktopk", density=0.05, exchange=exchange) as state:
            spy = Spy(model, state)
            sent, all_of_it, size = {}, {}, {}
            for step in range(steps):
                for name, gradient in backward(model, step).items():
                    sent[name] = sent.get(name, 0) + gradient.flatten()
                for parameters, buffer in spy.buckets:
                    mean = torch.stack(of_all_ranks(buffer)).mean(0)
                    largest = torch.stack(of_all_ranks(buffer)).abs().amax(0)
                    for p, part, bound in zip(parameters, mean.split([p.numel() for p in parameters]),
                                              largest.split([p.numel() for p in parameters])):
                        name = spy.names[id(p)]
                        all_of_it[name] = all_of_it.get(name, 0) + part
                        size[name] = size.get(name, 0) + bound
            for name, residual in state.state_dict()["residuals"].items():
                kept = torch.stack(of_all_ranks(residual.to(DEVICE))).mean(0)
                bound = 4 * steps * 2.0**-24 * size[name] + 1e-30
                assert bool(((sent[name] + kept - all_of_it[name]).abs() <= bound).all()), name
                assert bool((kept != 0).any()), "%s: nothing was kept back" % name
                assert bool((sent[name] != 0).any()), "%s: nothing was sent" % name


def train_scaled(scaler, steps, poison=None, algorithm="topkA"):
    """Gradients before the optimizer's step, and what is left in the end. poison: (step, rank, layer)
    whose gradient is infinite; its step is then left out of the list."""
    model = parallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = []
    with SparseAllreduceState(model, algorithm=algorithm, density=0.1, scaler=scaler) as state:
        model.register_comm_hook(state, sparse_allreduce_hook)
        for step in steps:
            optimizer.zero_grad()
            loss = model(batch(step)).square().sum()
            hit = poison is not None and step == poison[0]
            if hit and RANK == poison[1]:
                weight = getattr(model.module, poison[2]).weight
                loss = loss + (weight * float("inf")).sum()
            before = state.state_dict()["residuals"], copy.deepcopy(model.state_dict())
            (loss if scaler is None else scaler.scale(loss)).backward()
            scale = 1.0 if scaler is None else scaler.get_scale()
            if hit:
                same(state.state_dict()["residuals"], before[0], "residuals after a skipped step")
                assert all(bool(g.isnan().all()) for g in gradients(model).values())
            elif scaler is None:
                seen.append(gradients(model))
            else:
                seen.append({name: g / scale for name, g in gradients(model).items()})
            if scaler is None:
                if not hit:
                    optimizer.step()
                continue
            scaler.step(optimizer)
            scaler.update()
            if hit:
                same(model.state_dict(), before[1], "weights after a skipped step")
                assert scaler.get_scale() == scale / 2
        return seen, state.state_dict()["residuals"], state.skipped, model.state_dict()


def grad_scaler(**options):
    return torch.amp.GradScaler(DEVICE.type, init_scale=1024.0, **options)


@case
def a_scale_that_changes_leaves_no_trace():
    for algorithm in ("topkA", "oktopk"):
        plain = train_scaled(None, range(7), algorithm=algorithm)
        scaler = grad_scaler(growth_interval=2)
        scaled = train_scaled(scaler, range(7), algorithm=algorithm)
        assert scaler.get_scale() == 1024.0 * 8
        for step in range(7):
            same(scaled[0][step], plain[0][step], "%s, step %d" % (algorithm, step))
        same(scaled[1], plain[1], "residuals")
        same(scaled[3], plain[3], "weights")
        assert scaled[2] == 0


@gpu_case
def a_step_that_overflows_is_as_if_it_had_not_been():
    clean = train_scaled(None, [0, 1, 3, 4])
    # in the last bucket, and in the first one
    hits = (("first", grad_scaler()), ("last", grad_scaler()), ("second", None))
    for layer, scaler in hits[:1] if CUDA else hits:
        hit = train_scaled(scaler, range(5), poison=(2, dist.get_world_size() - 1, layer))
        assert hit[2] == 1
        for step in range(4):
            same(hit[0][step], clean[0][step], "%s, step %d" % (layer, step))
        same(hit[1], clean[1], "residuals")
        same(hit[3], clean[3], "weights")


@case
def the_first_step_may_overflow():
    hit = train_scaled(grad_scaler(), range(3), poison=(0, 0, "second"))
    assert hit[2] == 1 and len(hit[0]) == 2


@gpu_case
def drop_leaves_out_what_is_not_finite():
    model = parallel(Net())
    with SparseAllreduceState(model, algorithm="topkA", density=1.0, nonfinite="drop") as state:
        model.register_comm_hook(state, sparse_allreduce_hook)
        loss = model(batch(0)).square().sum()
        if RANK == 0:
            loss = loss + model.module.second.weight[0, 0] * float("inf")
        loss.backward()
        assert all(bool(g.isfinite().all()) for g in gradients(model).values())
        assert (state.steps, state.skipped) == (1, 0)
    refused(ValueError, "without a scaler", lambda: SparseAllreduceState(model, scaler=grad_scaler(), nonfinite="drop"))


@gpu_case
def half_precision_with_a_scaler_is_exchanged_as_float32():
    """2^-24 is the smallest float16; its share of a scale of 1024 is not."""
    model = parallel(nn.Linear(1, 4, bias=False).to(DEVICE, torch.float16))
    with SparseAllreduceState(model, algorithm="topkA", density=1.0, scaler=(scaler := grad_scaler())) as state:
        model.register_comm_hook(state, sparse_allreduce_hook)
        scaler.scale(torch.ones((), device=DEVICE))  # as the first scale() does
        (model(torch.ones(1, 1, device=DEVICE, dtype=torch.float16)) * 2.0**-24).sum().backward()
        assert bool((model.module.weight.grad == 2.0**-24).all()), model.module.weight.grad


@gpu_case
def gradients_that_are_accumulated():
    plain, sparse = parallel(Net()), parallel(Net())
    with SparseAllreduceState(sparse, algorithm="topkA", density=1.0) as state:
        sparse.register_comm_hook(state, sparse_allreduce_hook)
        for step in range(0, 6, 2):
            for model in (plain, sparse):
                model.zero_grad()
                with model.no_sync():
                    model(batch(step)).square().sum().backward()
                model(batch(step + 1)).square().sum().backward()
            same(gradients(sparse), gradients(plain), "step %d" % step)
        assert state.steps == 3


@case
def parameters_that_a_step_may_not_use_are_refused():
    """What arrives late for a parameter that no rank uses in a step would be lost."""
    model = parallel(Net(), find_unused_parameters=True)
    refused(ValueError, "find_unused_parameters=True; allowed: False", lambda: SparseAllreduceState(model, density=0.05))
    SparseAllreduceState(model, algorithm="dense").close()  # nothing is late


@case
def an_average_too_large_for_float16_is_an_error():
    """900 in each step: at a density of 1 % an element waits for a hundred steps."""

    class Weights(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.Parameter(torch.zeros(1000, dtype=torch.float16, device=DEVICE))

        def forward(self):
            return (self.weights * 900).sum()

    for dtype in (torch.float16, torch.bfloat16):
        model = parallel(Weights().to(dtype))
        with SparseAllreduceState(model, algorithm="topkA", density=0.01) as state:
            model.register_comm_hook(state, sparse_allreduce_hook)

            def steps():
                for _ in range(100):
                    model.zero_grad(set_to_none=True)
                    model().backward()
                    assert torch.isfinite(model.module.weights.grad).all()

            if dtype == torch.float16:
                refused(Exception, "an average is larger than float16 holds", steps)
            else:
                steps()


def resumed(steps, saved_at, **options):
    """Trains; at `saved_at` goes on with a new model and state, which load what the old ones saved."""
    model = parallel(Net(), **options)
    state = SparseAllreduceState(model, algorithm="topkA", density=0.1)
    model.register_comm_hook(state, sparse_allreduce_hook)
    for step in range(steps):
        if step == saved_at:
            file = io.BytesIO()
            torch.save({"model": model.module.state_dict(), "exchange": state.state_dict()}, file)
            state.close()
            file.seek(0)
            saved = torch.load(file, weights_only=True)
            model = parallel(Net(), **options)
            model.module.load_state_dict(saved["model"])
            state = SparseAllreduceState(model, algorithm="topkA", density=0.1)
            state.load_state_dict(saved["exchange"])
            same(state.state_dict()["residuals"], saved["exchange"]["residuals"], "what was loaded")
            model.register_comm_hook(state, sparse_allreduce_hook)
        backward(model, step)
        descend(model)
    result = dict(model.module.state_dict()), state.state_dict()["residuals"]
    assert state.steps == steps
    state.close()
    return result


@case
def a_run_that_was_saved_and_loaded_has_the_same_bits():
    """With one bucket, whose k largest do not depend on the order of parameters."""
    whole, parts = resumed(6, None, bucket_cap_mb=25), resumed(6, 3, bucket_cap_mb=25)
    same(parts[0], whole[0], "weights")
    same(parts[1], whole[1], "residuals")


@case
def a_state_that_is_loaded_replaces_the_residuals_of_a_running_one():
    """In one bucket, whose k largest do not depend on the order of parameters."""
    model = parallel(Net(), bucket_cap_mb=25)
    with SparseAllreduceState(model, algorithm="topkA", density=0.1) as state:
        model.register_comm_hook(state, sparse_allreduce_hook)
        empty = state.state_dict()
        first = backward(model, 0)
        saved = state.state_dict()
        second = backward(model, 1)
        different(backward(model, 0), first, "a step with residuals")
        state.load_state_dict(empty)
        assert state.steps == 0
        same(backward(model, 0), first, "a step without residuals")
        backward(model, 2)
        state.load_state_dict(saved)
        same(state.state_dict()["residuals"], saved["residuals"], "what was loaded")
        same(backward(model, 1), second, "a step with the residuals of the first one")
        other = dict(saved, rank=RANK + 1)
        refused(ValueError, "the state of rank %d of" % (RANK + 1), lambda: state.load_state_dict(other))
        other = dict(saved, residuals={"x": torch.zeros(1)})
        refused(ValueError, "other parameters", lambda: state.load_state_dict(other))


@case
def dense_and_warm_up_steps():
    for options in ({"algorithm": "dense"}, {"algorithm": "oktopk", "warmup_steps": 3}):
        plain, model = parallel(Net()), parallel(Net())
        with SparseAllreduceState(model, density=0.1, **options) as state:
            model.register_comm_hook(state, sparse_allreduce_hook)
            for step in range(3):
                same(backward(model, step), backward(plain, step), "%s, step %d" % (options, step))
            got, all_of_it = backward(model, 3), backward(plain, 3)
            if options["algorithm"] == "dense":
                same(got, all_of_it, "step 3")
            else:
                different(got, all_of_it, "the first sparse step")


class Collective(torch.autograd.Function):
    """A collective of the model's own, in the forward and in the backward pass, some not waited for."""
    pending = []

    @staticmethod
    def forward(context, x):
        y = x.clone()
        dist.all_reduce(y)
        return x + 0 * y

    @staticmethod
    def backward(context, gradient):
        copy_of_it = gradient.clone()
        dist.all_reduce(copy_of_it)
        big = torch.ones(1 << 20, device=gradient.device)
        Collective.pending.append((big, dist.all_reduce(big, async_op=True)))
        return gradient + 0 * copy_of_it


class Talkative(Net):
    def __init__(self):
        super().__init__()
        self.norm = nn.SyncBatchNorm(24).to(DEVICE) if CUDA else nn.Identity()

    def forward(self, x):
        x = Collective.apply(torch.tanh(self.first(x)))
        x = self.norm(self.third(torch.tanh(self.second(x))))
        return self.last(Collective.apply(torch.tanh(x)))


@gpu_case
def collectives_of_the_model_beside_the_exchange():
    for exchange, algorithm, density in (("auto", "oktopk", 0.05), ("sendrecv", "oktopk", 0.05), ("auto", "topkA", 1.0)):
        plain, model = (parallel(Talkative(), bucket_cap_mb=2 * SMALL) for _ in range(2))
        with SparseAllreduceState(model, algorithm=algorithm, density=density, exchange=exchange) as state:
            model.register_comm_hook(state, sparse_allreduce_hook)
            for step in range(10):
                got, expected = backward(model, step), backward(plain, step)
                if density == 1.0:
                    same(got, expected, "%s, step %d" % (exchange, step))
                for big, work in Collective.pending:
                    work.wait()
                    assert bool((big == dist.get_world_size()).all())
                Collective.pending.clear()
                descend(model)
                plain.module.load_state_dict(model.module.state_dict())
            assert state.steps == 10


@case
def what_cannot_be_is_refused_by_all_ranks_with_a_sentence():
    model = parallel(Net())
    refused(SparseAllreduceError, "density must be", lambda: SparseAllreduceState(model, density=2.0))
    other = SparseAllreduceState(model, density=0.1 * (RANK + 1))
    model.register_comm_hook(other, sparse_allreduce_hook)
    refused(SparseAllreduceError, "count or configuration differ between ranks", lambda: backward(model, 0))
    refused(TypeError, "no field 'densitty'", lambda: SparseAllreduceState(model, densitty=0.1))
    refused(TypeError, "no field 'result'", lambda: SparseAllreduceState(model, result=0))
    refused(ValueError, "algorithm='topk'; allowed: dense, topkA, ", lambda: SparseAllreduceState(model, algorithm="topk"))
    refused(ValueError, "preset='resnet'", lambda: SparseAllreduceState(model, preset="resnet"))
    refused(ValueError, "nonfinite='propagate'", lambda: SparseAllreduceState(model, nonfinite="propagate"))
    refused(SparseAllreduceError, "/nowhere.so cannot be used", lambda: SparseAllreduceState(model, library="/nowhere.so"))
    # one rank's mistake is everybody's error
    mistake = {"algorithm": "topk"} if RANK == 1 else {}
    refused(ValueError if mistake else SparseAllreduceError, "algorithm='topk'",
            lambda: SparseAllreduceState(model, **mistake))


@case
def a_double_or_a_stranger_is_refused_in_the_step():
    model = parallel(Net(torch.float64))
    with SparseAllreduceState(model) as state:
        model.register_comm_hook(state, sparse_allreduce_hook)
        refused(Exception, "gradients are torch.float64; allowed: torch.float16, ", lambda: backward(model, 0, torch.float64))
    model, other = parallel(Net()), parallel(Net())
    with SparseAllreduceState(other) as state:
        model.register_comm_hook(state, sparse_allreduce_hook)
        refused(Exception, "a parameter is not of the model that this state was made for", lambda: backward(model, 0))


@case
def a_bucket_that_could_never_send_is_refused_in_the_step():
    model = parallel(Net())
    with SparseAllreduceState(model, algorithm="gaussiankSA", density=1e-6) as state:
        model.register_comm_hook(state, sparse_allreduce_hook)
        refused(Exception, "count * density must be 2 or more", lambda: backward(model, 0))


@case
def a_closed_state_is_refused_and_closing_twice_is_not():
    model = parallel(Net())
    with SparseAllreduceState(model, density=0.1) as state:
        model.register_comm_hook(state, sparse_allreduce_hook)
        backward(model, 0)
    state.close()
    refused(Exception, "the state of sparse_allreduce_hook is closed", lambda: backward(model, 1))


@case
def an_exception_in_the_backward_pass_leaves_no_buckets_behind():
    model = parallel(Net())
    with SparseAllreduceState(model, algorithm="topkA", density=1.0) as state:
        model.register_comm_hook(state, sparse_allreduce_hook)
        backward(model, 0)
        state._waiting = [None]  # as it is after an exception between two buckets
        same(backward(model, 1), backward(parallel(Net()), 1), "the next step")


@gpu_case
def two_models_beside_each_other():
    plain, models = [parallel(Net()) for _ in range(2)], [parallel(Net()) for _ in range(2)]
    with SparseAllreduceState(models[0], algorithm="topkA", density=1.0) as a, \
            SparseAllreduceState(models[1], algorithm="topkA", density=1.0) as b:
        models[0].register_comm_hook(a, sparse_allreduce_hook)
        models[1].register_comm_hook(b, sparse_allreduce_hook)
        for step in range(3):
            for net in (*plain, *models):
                net.zero_grad()
            for pair in (plain, models):
                pair[1](pair[0](batch(step)).repeat(1, 2)[:, :8]).square().sum().backward()
            for model, expected in zip(models, plain):
                same(gradients(model), gradients(expected), "step %d" % step)


@case
def a_group_of_some_ranks():
    """The last two; the first of them is rank 0 of the group. With three ranks or more."""
    world = dist.get_world_size()
    group = dist.new_group([world - 2, world - 1])
    if RANK < world - 2:
        return
    plain, sparse = (parallel(Net(), process_group=group) for _ in range(2))
    with SparseAllreduceState(sparse, algorithm="topkA", density=1.0) as state:
        sparse.register_comm_hook(state, sparse_allreduce_hook)
        for step in range(3):
            same(backward(sparse, step), backward(plain, step), "step %d" % step)
        assert state.state_dict()["rank"] == RANK - (world - 2)


@case
def a_rank_that_is_late_is_heard_of_in_the_next_step():
    model = parallel(Net())
    state = SparseAllreduceState(model, density=0.1, timeout_seconds=1)
    model.register_comm_hook(state, sparse_allreduce_hook)
    backward(model, 0)
    backward(model, 1)
    all_finite = state._all_finite

    def late(gradients):
        answer = all_finite(gradients)
        time.sleep(4 if RANK == dist.get_world_size() - 1 else 0)
        return answer

    state._all_finite = late
    backward(model, 2)
    state._all_finite = all_finite
    refused(SparseAllreduceError, "in time", lambda: backward(model, 3))
    refused(SparseAllreduceError, "in time", state.state_dict)


@gpu_case
def nobody_waits_for_a_state_that_was_not_closed():
    """Seen in the end: the job ends."""
    model = parallel(Net())
    state = SparseAllreduceState(model, density=0.1)
    model.register_comm_hook(state, sparse_allreduce_hook)
    backward(model, 0)


# ---- all of them ---------------------------------------------------------------------------------
def main():
    faulthandler.dump_traceback_later(OPTIONS.limit, exit=True)  # where it hangs, of each rank
    if CUDA:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl" if CUDA else "gloo", device_id=DEVICE if CUDA else None)
    torch.set_num_threads(1)
    chosen = [c for c in CASES if any(name in c.__name__ for name in OPTIONS.names)]
    if not OPTIONS.names:
        chosen = ON_GPUS if CUDA else CASES
    assert chosen, "no case is named so"
    for function in chosen:
        start = time.monotonic()
        try:
            function()
        except BaseException:
            print("rank %d: %s failed" % (RANK, function.__name__), file=sys.stderr, flush=True)
            raise
        dist.barrier()
        if RANK == dist.get_world_size() - 1:
            print("ok %s %.1f s" % (function.__name__, time.monotonic() - start), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
