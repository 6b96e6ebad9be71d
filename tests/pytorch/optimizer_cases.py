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
import importlib.util
import inspect
import io
import os
import pickle
import shutil
import sys
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../04_sparse_allreduce/pytorch"))
from sparse_update_optimizer import SparseAllreduceError, SparseUpdateOptimizer  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--cuda", action="store_true")
parser.add_argument("--library")
parser.add_argument("--limit", type=int, default=110, help="seconds for a case")
parser.add_argument("names", nargs="*", default=[""])
OPTIONS = parser.parse_args()
CUDA = OPTIONS.cuda
RANK = int(os.environ["RANK"])
DEVICE = torch.device("cpu")
if CUDA:
    DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
CASES, OPEN = [], []


def case(function):
    CASES.append(function)


def pattern(function):
    """A case that gets a model and its optimizer."""
    case(functools.wraps(function)(lambda: function(*pair())))


# ---- a model, its data, optimizers ---------------------------------------------------------------
class Net(nn.Module):
    def __init__(self, width=24, dtype=torch.float32):
        super().__init__()
        # rank 0's weights are to become everybody's
        torch.manual_seed(1 + RANK)
        self.first, self.second, self.last = nn.Linear(8, width), nn.Linear(width, 24), nn.Linear(24, 5)
        self.to(DEVICE, dtype)

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


def batch(step, dtype=torch.float32):
    """Another one on each rank and in each step."""
    generator = torch.Generator().manual_seed(1000 * step + RANK)
    return torch.randn(6, 8, generator=generator).to(DEVICE, dtype)


def adamw(net):
    return torch.optim.AdamW(net.parameters(), lr=0.01)


def sgd(net, lr=0.01, **options):
    return torch.optim.SGD(net.parameters(), lr=lr, **options)


def momentum(net):
    return sgd(net, momentum=0.9)


def groups(net):
    others = [*net.second.parameters(), *net.first.parameters()]
    return torch.optim.AdamW([{"params": net.last.parameters(), "lr": 0.02},
                              {"params": others, "weight_decay": 0.3}], lr=0.01)


def sparse(optim, density=0.1, **options):
    """The wrapper; it is closed after its case or pattern."""
    OPEN.append(SparseUpdateOptimizer(optim, density, library=OPTIONS.library, **options))
    return OPEN[-1]


def pair(make=adamw, dtype=torch.float32, **options):
    net = Net(dtype=dtype)
    return net, sparse(make(net), **options)


def close_all():
    for optimizer in OPEN:
        optimizer.close()
    OPEN.clear()


def backward(net, step, scale=1.0):
    loss = net(batch(step, next(net.parameters()).dtype)).square().sum()
    (loss * scale).backward()
    return loss


def one_step(net, optimizer, step):
    loss = backward(net, step)
    optimizer.step()
    net.zero_grad()
    return loss.item()


# ---- the same rule in plain torch ----------------------------------------------------------------
def of_all_ranks(tensor, group=None):
    everybody = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everybody, tensor, group=group)
    return everybody


class Plain:
    """Top-k of what the optimizer changed and the residual, added in the order of ranks."""

    def __init__(self, optim, density=0.1, ahead=None):
        self.optim = optim
        density = density or 0.02 / dist.get_world_size()
        self.ahead = ahead if ahead is not None else min(12 * density, 0.25)
        self.params = [p for g in optim.param_groups for p in g["params"]]
        for p in self.params:
            dist.broadcast(p.data, 0)
        self.shared = self.flat()
        self.residual = torch.zeros_like(self.shared)
        # they are powers of two apart, in the cases that use this
        highest = max(g["lr"] for g in optim.param_groups)
        self.unit = torch.cat([torch.full_like(p, g["lr"] / highest).flatten() for g in optim.param_groups for p in g["params"]])
        self.k = max(1, int(self.shared.numel() * density))

    def flat(self):
        return nn.utils.parameters_to_vector(self.params).detach()

    def begin(self):
        # rounded once
        return torch.sub(self.shared, self.residual, alpha=self.ahead)

    def step(self):
        self.optim.step()
        acc = self.residual + (self.begin() - self.flat())
        chosen = torch.sort((acc / self.unit).abs(), descending=True, stable=True).indices[:self.k]
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


def same(got, expected, what):
    """Bit for bit, NaN is equal to NaN."""
    differ = got.nan_to_num(123) != expected.nan_to_num(123)
    assert not differ.any(), "%s: %d differ, the first is %.9g, expected %.9g" % (
        what, differ.sum(), got[differ][0], expected[differ][0])


def flat(net):
    return nn.utils.parameters_to_vector(net.parameters()).detach().float()


def shared_by_all(net, optimizer, what, group=None):
    own = flat(net)
    with optimizer.shared_weights():
        for weights in of_all_ranks(flat(net), group):
            same(weights, flat(net), what + ": weights of another rank")
    same(flat(net), own, what + ": weights after shared_weights()")


def change(net, function):
    """Loads other values, as from a file."""
    net.load_state_dict({name: function(value) for name, value in net.state_dict().items()})


def refused(words, call, kind=SparseAllreduceError):
    try:
        call()
    except kind as error:
        assert words in str(error) and "\n" not in str(error), "%r: %s" % (words, error)
    else:
        raise AssertionError("%r was not refused" % words)


def compare(make, steps=6, train=one_step, exchange=0, **options):
    """The wrapper and Plain, step by step."""
    plain = Net()
    ours, optimizer = pair(make, exchange=exchange, **options)
    reference = Plain(make(plain), **options)
    for step in range(steps):
        for net, o in ((ours, optimizer), (plain, reference)):
            train(net, o, step)
        what = "%s, %r, step %d" % (make.__name__, options, step)
        same(flat(ours), flat(plain), what)
        shared_by_all(ours, optimizer, what)
    close_all()


# ---- cases ---------------------------------------------------------------------------------------
@case
def every_step_is_that_of_the_rule():
    for make in (adamw, momentum, groups):
        for options in ({}, {"ahead": 0.3}, {"density": None}, {"ahead": 0, "exchange": 1}, {"ahead": 0, "density": 1}):
            compare(make, **options)


@case
def accumulated_clipped_scheduled():
    schedules = {}

    def train(net, optimizer, step):
        if step == 0:
            inner = optimizer.optim if isinstance(optimizer, Plain) else optimizer
            schedules[optimizer] = torch.optim.lr_scheduler.LambdaLR(inner, lambda n: 1 / (n + 1))
        backward(net, 2 * step)
        backward(net, 2 * step + 1)
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        net.zero_grad()
        schedules[optimizer].step()

    compare(adamw, train=train)


@case
def a_scaler_that_skips_on_one_rank():
    """Its scale is a power of two, so gradients have the same bits with it and without."""
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=1024.0)

    def train(net, optimizer, step):
        if isinstance(optimizer, Plain):
            if step != 2:
                one_step(net, optimizer, step)
            return
        scaler.scale(net(batch(step)).square().sum() * (float("inf") if (step, RANK) == (2, 0) else 1)).backward()
        if step == 3:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    compare(adamw, steps=5, train=train)


@case
def saved_and_loaded_in_the_middle():
    for options in ({}, {"algorithm": "oktopk"}, {"algorithm": "topkAopt"}):
        (net, optimizer), (other, restarted), file = pair(groups, **options), pair(groups, **options), io.BytesIO()
        steps_on(net, optimizer, count=5)
        with optimizer.shared_weights() if options else contextlib.nullcontext():
            torch.save(optimizer.state_dict(), file)
        file.seek(0)
        restarted.load_state_dict(torch.load(file, weights_only=True))
        for both in ((net, optimizer), (other, restarted)):
            steps_on(*both, first=5, count=4)
        same(flat(other), flat(net), "%r" % options)


@case
def a_parameter_without_gradient_on_one_rank():
    def train(net, optimizer, step):
        backward(net, step)
        for p in net.second.parameters() if RANK == 0 else ():
            p.grad = None
        optimizer.step()
        net.zero_grad()

    compare(adamw, train=train)


@case
def all_paths_keep_the_weights_of_all_ranks_equal_and_learn():
    for algorithm in ("oktopk", "gtopk", "topkSA", "gaussiank"):
        net, optimizer = pair(algorithm=algorithm)
        losses = [one_step(net, optimizer, step % 5) for step in range(30)]
        shared_by_all(net, optimizer, algorithm)
        assert sum(losses[-5:]) < 0.8 * sum(losses[:5]), "%s: %r" % (algorithm, losses)


@case
def weights_of_16_bits_have_a_copy_of_32():
    """A step alone would be rounded away. What somebody else writes, for example a clamp, counts; other weights keep theirs."""
    net = nn.Linear(4, 4, dtype=torch.bfloat16, device=DEVICE)
    nn.init.constant_(net.weight, 1)
    net.weight.data[0] = 0.5
    optimizer = sparse(sgd(net, lr=1e-4), density=1)
    for step in range(102):
        (net if step % 2 else optimizer).zero_grad()
        net.weight.sum().backward()
        optimizer.step()
        with torch.no_grad():
            net.weight[0].clamp_(min=0.5)
    shared_by_all(net, optimizer, "16 bits")
    with optimizer.shared_weights():
        assert net.weight.dtype == torch.bfloat16
        assert (net.weight[0] - 0.5).abs().max() < 0.003 and (net.weight[1] - 0.99).abs().max() < 0.003


@case
def a_group_of_ranks():
    if dist.get_world_size() == 1:
        return
    group = dist.new_group([dist.get_world_size() - 2, dist.get_world_size() - 1])
    if RANK < dist.get_world_size() - 2:
        return
    steps_on(*pair(group=group), group=group)


@case
def what_cannot_be_is_refused_on_all_ranks():
    for error, words, options in (
            (TypeError, "no field 'densty'; allowed: algorithm", {"densty": 1}),
            (TypeError, "throttle=4.5; allowed: an int", {"throttle": 4.5}),
            (TypeError, "exchange='topkA'; allowed: an int", {"exchange": "topkA"}),
            (TypeError, "no field 'warmup_steps'", {"warmup_steps": 1}),
            (ValueError, "algorithm='dense'; allowed: topkA", {"algorithm": "dense"}),
            (ValueError, "ahead=5; allowed: a float, 0 to 1", {"ahead": 5}),
            (ValueError, "density='much'; allowed: a float, 0 to 1", {"density": "much"}),
            (SparseAllreduceError, "density", {"density": 0})):
        refused(words, lambda: pair(**options), error)
    for error, words, make in (
            (TypeError, "is a generator; allowed: an optimizer", lambda net: net.parameters()),
            (ValueError, "only empty ones", lambda net: torch.optim.SGD([torch.ones(0)], lr=1)),
            (ValueError, "torch.float64 on", lambda net: sgd(net.double())),
            (ValueError, "on meta; allowed: float32", lambda net: sgd(net.to("meta"))),
            (TypeError, "LBFGS calls its closure several times", lambda net: torch.optim.LBFGS(net.parameters()))):
        refused(words, lambda: pair(make), error)
    if dist.get_world_size() == 1:
        return
    other = int(RANK == 1)
    for words, make, options in (
            ("rank 1 has a parameter torch.float32 [25, 8], rank 0 has a parameter torch.float32 [24, 8]",
             lambda _: sgd(Net(width=24 + other)), {}),
            ("rank 1 has density=0.2, rank 0 has density=0.1", adamw, {"density": 0.1 + other / 10}),
            ("rank 1 has ahead=0.1, rank 0 has ahead=0.2", adamw, {"ahead": 0.2 - other / 10}),
            ("rank 1 has an AdamW, rank 0 has an SGD", adamw if other else sgd, {}),
            ("rank 1 has no further parameter, rank 0 has a parameter torch.float32 [5]",
             lambda net: sgd(nn.ParameterList([*net.parameters()][:6 - other])), {})):
        refused(words, lambda: pair(make, **options))
    error, words = (ValueError, "ahead=2") if other else (SparseAllreduceError, "rank 1: ahead=2; allowed: a float, 0 to 1")
    refused(words, lambda: pair(ahead=2 * other), error)


# ---- what people do with an optimizer ------------------------------------------------------------
# Each pattern works, or ends in one sentence on all ranks.
def steps_on(net, optimizer, first=0, count=3, group=None):
    for step in range(first, first + count):
        one_step(net, optimizer, step)
    shared_by_all(net, optimizer, "steps", group)


def warnings_of(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in caught]


def warned(words, call):
    assert any(words in w for w in warnings_of(call)), "no warning: %r" % words


def quietly(call):
    assert not warnings_of(call)


@pattern
def hooks(net, optimizer):
    called = []
    names = ("step_pre", "step_post", "state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post")
    for name in names:
        getattr(optimizer, "register_%s_hook" % name)(lambda o, *_, name=name: called.append((name, o)))
    one_step(net, optimizer, 0)
    optimizer.load_state_dict(optimizer.state_dict())
    assert called == [(name, optimizer if "step" in name else optimizer.optim) for name in names]
    for name in ("param_groups", "defaults", "state"):
        # as Python 3.12 checks protocols
        inspect.getattr_static(optimizer, name)


@pattern
def a_compiled_step(net, optimizer):
    reference, other = pair()
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    for t in range(2):
        backward(net, t)
        step()
        net.zero_grad()
        one_step(reference, other, t)
    same(flat(net), flat(reference), "compiled")


@pattern
def copied_or_pickled(net, optimizer):
    for call in (copy.copy, copy.deepcopy, pickle.dumps):
        refused("cannot be copied or pickled", lambda: call(optimizer))


@pattern
def each_parameter_has_its_own_memory(net, optimizer):
    one_step(net, optimizer, 0)
    assert len({p.untyped_storage().data_ptr() for p in net.parameters()}) == 6


@pattern
def a_state_that_later_steps_do_not_change(net, optimizer):
    steps_on(net, optimizer)
    saved, found = optimizer.state_dict(), []
    for _ in range(3):
        steps_on(net, optimizer, 3)
        found.append(flat(net))
        optimizer.load_state_dict(saved)
    same(found[1], found[0], "after a load in the same process")
    same(found[2], found[0], "after a second load")
    # the model is loaded after its optimizer
    change(net, lambda value: value + 9)
    steps_on(net, optimizer, 3)
    assert (flat(net) - found[0]).abs().max() < 1, "the weights in the optimizer's state are those to begin with"


def goes_on_with(weights, net, optimizer):
    assert optimizer.state[net.first.weight]["step"] == 3
    optimizer.param_groups[0]["lr"] = 0.0
    one_step(net, optimizer, 3)
    same(flat(net), weights, "weights, and nothing from a residual")


@pattern
def a_state_that_another_rank_has_saved(net, optimizer):
    """As Accelerate and torch.distributed.checkpoint give it to all ranks, or after a run with other ranks."""
    steps_on(net, optimizer)
    with optimizer.shared_weights():
        shared = flat(net)
    state = [optimizer.state_dict()]
    dist.broadcast_object_list(state)
    state[0]["sparse"]["made"][1] = 7
    steps_on(net, optimizer, 3)
    warned("with empty residuals", lambda: optimizer.load_state_dict(state[0]))
    same(flat(net), shared, "weights")
    goes_on_with(shared, net, optimizer)


@pattern
def states_of_different_steps(net, optimizer):
    saved = optimizer.state_dict()
    steps_on(net, optimizer)
    if dist.get_world_size() > 1:
        warned("with empty residuals", lambda: optimizer.load_state_dict(optimizer.state_dict() if RANK else saved))
        steps_on(net, optimizer, 3)


@pattern
def the_state_of_a_plain_optimizer(net, optimizer):
    """As get_state_dict of torch.distributed.checkpoint makes it, or a dense run. The model has its weights already."""
    steps_on(net, optimizer)
    plain = adamw(Net())
    # and the other way round
    plain.load_state_dict(optimizer.state_dict())
    change(net, lambda value: value + RANK)
    first = of_all_ranks(flat(net))[0]
    quietly(lambda: optimizer.load_state_dict(plain.state_dict()))
    goes_on_with(first, net, optimizer)


@pattern
def distributed_checkpoint(net, optimizer):
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    steps_on(net, optimizer)
    with optimizer.shared_weights():
        model, state = copy.deepcopy(get_state_dict(net, optimizer))
        shared = flat(net)
    other, restarted = pair()
    set_state_dict(other, restarted, model_state_dict=model, optim_state_dict=state)
    assert torch.equal(restarted.state[other.last.bias]["exp_avg"], optimizer.state[net.last.bias]["exp_avg"])
    # as the next step does
    restarted.take_weights()
    same(flat(other), shared, "weights")


@pattern
def a_state_that_is_none(net, optimizer):
    saved = optimizer.state_dict()
    short = {**saved, "sparse": {**saved["sparse"], "shared": [torch.zeros(3)]}}
    for words, state in (("not the state_dict of an optimizer", {"optim": 1}), ("not the state_dict of an optimizer", None),
                         ("this state is of parameters with other shapes", short)):
        refused(words, lambda: optimizer.load_state_dict(state), ValueError)
    # of one rank, and damaged on one
    if dist.get_world_size() > 1:
        saved["sparse"]["library"][-1] ^= int(RANK == 0)
        refused(("" if RANK == 0 else "rank 0: ") + "the state is damaged", lambda: optimizer.load_state_dict(saved))
    steps_on(net, optimizer)


@pattern
def a_file_is_loaded_into_the_model(net, optimizer):
    optimizer.optim.param_groups[0]["lr"] = 0
    change(net, lambda value: torch.full_like(value, 7 + RANK))
    # the first one takes what the model has
    one_step(net, optimizer, 0)
    same(flat(net), torch.full_like(flat(net), 7), "loaded before the first step")
    steps_on(net, optimizer)
    net.load_state_dict(Net().state_dict())
    warned("if you have loaded a file, call take_weights()", optimizer.step)
    net.load_state_dict(Net().state_dict())
    warned("call take_weights() first", optimizer.state_dict)
    warned("call take_weights() first", lambda: shared_by_all(net, optimizer, "loaded"))
    optimizer.take_weights()
    same(flat(net), of_all_ranks(flat(Net()))[0], "rank 0's weights")


@pattern
def a_file_is_loaded_inside_shared_weights(net, optimizer):
    def load():
        with optimizer.shared_weights():
            change(net, lambda value: value * 2)

    warned("what it gets inside shared_weights() is lost", load)
    steps_on(net, optimizer)


@pattern
def weights_are_swapped_and_swapped_back(net, optimizer):
    """For an average of the weights, for example; that and usual steps give no warning."""
    quietly(lambda: steps_on(net, optimizer))
    change(net, lambda value: value / 2)
    change(net, lambda value: value * 2)
    quietly(lambda: steps_on(net, optimizer, 3))


@pattern
def the_model_gets_other_parameters(net, optimizer):
    one_step(net, optimizer, 0)
    net.load_state_dict(copy.deepcopy(net.state_dict()), assign=True)
    net(batch(0)).sum().backward()
    warned("no parameter of this optimizer has a gradient", optimizer.step)


@pattern
def parameters_get_other_memory(net, optimizer):
    reference, other = pair()
    steps_on(reference, other)
    for step in range(3):
        for p in net.parameters():
            p.data = p.data.clone()
        one_step(net, optimizer, step)
    same(flat(net), flat(reference), "with memory of its own")


@pattern
def parameters_are_converted_replaced_or_added(net, optimizer):
    parameters = optimizer.param_groups[0]["params"]
    for wrong, right in ((net.bfloat16, net.float),
                         (lambda: optimizer.add_param_group({"params": torch.ones(3)}), optimizer.param_groups.pop),
                         (lambda: parameters.append(nn.Parameter(torch.ones(3))), parameters.pop),
                         (lambda: parameters.append(nn.Parameter(parameters.pop().detach().clone())), None)):
        wrong()
        quietly(lambda: refused("parameters were added, removed or converted", optimizer.step))
        if right:
            right()
            one_step(net, optimizer, 1)


@pattern
def a_memory_format(net, optimizer):
    conv = nn.Conv2d(3, 4, 3).to(DEVICE, memory_format=torch.channels_last)
    wrapped, before = sparse(sgd(conv, lr=1), density=1), conv.weight.detach().clone()
    conv(torch.ones(1, 3, 4, 4, device=DEVICE)).sum().backward()
    wrapped.step()
    assert conv.weight.stride() == (27, 1, 9, 3) and torch.allclose(conv.weight, before - conv.weight.grad)


@pattern
def gradients_are_clipped_through_param_groups(net, optimizer):
    other, wrapped = pair(functools.partial(sgd, lr=1), torch.bfloat16, density=1)
    before = flat(other)
    backward(other, 0, scale=1000.0)
    grads = [p.grad for p in other.parameters()]
    assert nn.utils.clip_grad_norm_([p for g in wrapped.param_groups for p in g["params"]], 0.1) > 10
    wrapped.step()
    assert (flat(other) - before).norm() < 0.2
    # somebody may have made them parts of one tensor
    assert all(p.grad is grad for p, grad in zip(other.parameters(), grads))


@pattern
def a_scaler_with_parameters_of_16_bits(net, optimizer):
    # PyTorch's scaler has no bfloat16 on GPUs
    half = torch.float16
    (scaled, optimizer), (other, wrapped) = (pair(sgd, half) for _ in range(2))
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=4.0)
    for step in range(3):
        scaler.scale(scaled(batch(step, half)).square().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        one_step(other, wrapped, step)
        same(flat(scaled), flat(other), "step %d" % step)


@pattern
def a_scaler_and_a_rank_without_gradients(net, optimizer):
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=2.0)
    loss = net(batch(0)).square().sum() if RANK else batch(0).requires_grad_().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    shared_by_all(net, optimizer, "without gradients")


@pattern
def an_optimizer_with_a_state_of_16_bits(net, optimizer):
    _, other = pair(lambda net: torch.optim.Adagrad(net.parameters()), torch.bfloat16)
    for _ in range(2):
        assert {value["sum"].dtype for value in other.state.values()} == {torch.float32}
        other.load_state_dict(other.state_dict())


@pattern
def a_scheduler_that_raises_the_momentum(net, optimizer):
    for raises in (False, True):
        wrapped = sparse(torch.optim.AdamW(net.parameters(), betas=(0.5, 0.99)))
        schedule = torch.optim.lr_scheduler.OneCycleLR(wrapped, 0.01, total_steps=9, cycle_momentum=raises)
        if raises:
            warned("has raised the first beta", lambda: steps_on(net, wrapped))
        else:
            quietly(lambda: [(one_step(net, wrapped, 0), schedule.step()) for _ in range(3)])


@pattern
def a_group_without_rate_and_momentum(net, optimizer):
    optimizer.param_groups[0].update(lr=None, betas=None, momentum=None)
    sparse(optimizer.optim)


@pattern
def a_group_with_a_small_rate(net, optimizer):
    groups = [{"params": net.first.parameters()}, {"params": net.second.parameters(), "lr": 1e-5}]
    inner, before = torch.optim.AdamW(groups, lr=1e-2), copy.deepcopy(net)
    # the rate is 0 when the optimizer is wrapped
    schedule = torch.optim.lr_scheduler.LambdaLR(inner, lambda n: n)
    wrapped = sparse(inner)
    schedule.step()
    steps_on(net, wrapped, count=12)
    with wrapped.shared_weights():
        moved = [(p != q).float().mean() for p, q in zip(net.parameters(), before.parameters())]
    assert moved[2] > moved[0] / 2 > 0.1


@pattern
def a_rank_that_fails_alone(net, optimizer):
    def closure():
        if RANK == 0:
            raise KeyError("data")
        return net(batch(0)).sum()

    if dist.get_world_size() > 1:
        error, words = (KeyError, "data") if RANK == 0 else (SparseAllreduceError, "not finite")
        refused(words, lambda: optimizer.step(closure), error)


@pattern
def a_call_that_one_rank_makes_alone(net, optimizer):
    """As if only rank 0 loads a file: the others are in the first step then."""
    if dist.get_world_size() > 1:
        saved = optimizer.state_dict()
        refused("all ranks need the same calls", optimizer.step if RANK else lambda: optimizer.load_state_dict(saved))


@pattern
def a_closed_optimizer(net, optimizer):
    optimizer.close()
    for call in (optimizer.step, optimizer.state_dict, optimizer.take_weights, optimizer.shared_weights().__enter__,
                 lambda: optimizer.load_state_dict({})):
        refused("the optimizer is closed", call)


@pattern
def the_model_has_the_shared_weights(net, optimizer):
    with optimizer.shared_weights():
        for call in (optimizer.step, optimizer.shared_weights().__enter__):
            refused("leave shared_weights() first", call)


@pattern
def settings_around_it(net, optimizer):
    """Made, used, saved and loaded with each; the next steps have the same bits."""
    steps_on(net, optimizer, count=6)
    for setting in (torch.no_grad, torch.inference_mode, functools.partial(torch.device, "meta"), double):
        other = Net()
        with setting():
            wrapped = sparse(adamw(other))
        for step in range(6):
            backward(other, step)
            with setting() if step % 2 == 0 else contextlib.nullcontext():
                wrapped.step()
                if step == 2:
                    wrapped.load_state_dict(wrapped.state_dict())
            wrapped.zero_grad()
        with setting(), wrapped.shared_weights():
            pass
        same(flat(other), flat(net), "%r" % setting)


@contextlib.contextmanager
def double():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pattern
def a_closure_with_settings_around_it(net, optimizer):
    x = batch(0)

    def closure():
        optimizer.zero_grad()
        assert torch.is_grad_enabled() and torch.ones(1).device.type == "meta"
        loss = net(x).square().sum()
        loss.backward()
        return loss

    with torch.no_grad(), torch.device("meta"):
        assert optimizer.step(closure).item() > 0


@pattern
def the_same_gradients_on_all_ranks(net, optimizer):
    """As with DistributedDataParallel around the model."""
    if dist.get_world_size() > 1:
        # nothing has changed yet
        optimizer.step()
        net(torch.ones(3, 8, device=DEVICE)).square().sum().backward()
        warned("is there DistributedDataParallel around the model", optimizer.step)
        quietly(optimizer.step)


@pattern
def an_optimizer_of_lightning(net, optimizer):
    """Fabric and Lightning make such a copy, with the same attributes and another class."""
    twin = object.__new__(type("Twin", (type(optimizer),), {}))
    assert not hasattr(twin, "optim")
    twin.__dict__ = dict(optimizer.__dict__)
    steps_on(net, optimizer)
    with twin.shared_weights():
        refused("leave shared_weights() first", optimizer.step)
    twin.close()
    refused("the optimizer is closed", optimizer.step)


@case
def a_gradient_that_is_not_finite():
    """Who catches the error can go on."""
    net, optimizer = pair(sgd)
    backward(net, 0, scale=float("nan") if RANK == 0 else 1.0)
    refused("not finite", optimizer.step)
    net.zero_grad()
    steps_on(net, optimizer)


@case
def a_rank_that_is_late_is_heard_of():
    net, optimizer = pair(timeout_seconds=3)
    steps_on(net, optimizer)
    time.sleep(9 if RANK == dist.get_world_size() - 1 else 0)
    if dist.get_world_size() > 1:
        refused("timed out waiting for rank", optimizer.step)
    # such a handle cannot be used any more
    OPEN.clear()


# ---- the recipes of README.md --------------------------------------------------------------------
DATA = torch.utils.data.TensorDataset(torch.randn(48, 8, generator=torch.Generator().manual_seed(7)))


@case
def accelerate():
    if not importlib.util.find_spec("accelerate"):
        return
    from accelerate import Accelerator
    from safetensors.torch import load_file
    accelerator, net = Accelerator(cpu=not CUDA), Net()
    wrapped = sparse(adamw(net))
    # the model is not prepared
    optimizer, loader = accelerator.prepare(wrapped, torch.utils.data.DataLoader(DATA, 4))
    for x, in loader:
        accelerator.backward(net(x).square().sum())
        accelerator.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    folder = os.path.join(tempfile.gettempdir(), "accelerate" + os.environ["MASTER_PORT"])
    with wrapped.shared_weights():
        shared = flat(net)
        accelerator.save_model(net, folder)
        # optimizer.bin is that of rank 0
        accelerator.save_state(folder)
        accelerator.wait_for_everyone()
    if RANK == 0:
        assert load_file(folder + "/model.safetensors").keys() == net.state_dict().keys()
    backward(net, 0)
    optimizer.step()
    accelerator.load_state(folder)
    accelerator.wait_for_everyone()
    shutil.rmtree(folder, ignore_errors=True)
    same(flat(net), shared, "weights in the file of rank 0")
    shared_by_all(net, wrapped, "loaded")


@case
def lightning():
    if not importlib.util.find_spec("lightning"):
        return
    import lightning
    from lightning.pytorch.strategies import SingleDeviceStrategy

    class Module(lightning.LightningModule):
        def training_step(self, batch, _):
            return self.net(batch[0]).square().sum()

        def configure_optimizers(self):
            return sparse(adamw(self.net))

    module = Module()
    module.net = Net()
    sampler = torch.utils.data.DistributedSampler(DATA)
    trainer = lightning.Trainer(strategy=SingleDeviceStrategy(DEVICE), use_distributed_sampler=False, max_epochs=1,
                                barebones=True, gradient_clip_val=1.0)
    trainer.fit(module, torch.utils.data.DataLoader(DATA, 4, sampler=sampler))
    assert trainer.global_step == 12 // dist.get_world_size()
    shared_by_all(module.net.to(DEVICE), OPEN[0], "lightning")


# ---- main ----------------------------------------------------------------------------------------
def main():
    if CUDA:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl" if CUDA else "gloo")
    for function in CASES:
        if not any(name in function.__name__ for name in OPTIONS.names):
            continue
        # where it hangs, of each rank
        faulthandler.dump_traceback_later(OPTIONS.limit, exit=True)
        # the example has the default one
        with torch.cuda.stream(torch.cuda.Stream() if CUDA else None):
            function()
            close_all()
        dist.barrier()
        if RANK == dist.get_world_size() - 1:
            print("ok %s" % function.__name__, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
