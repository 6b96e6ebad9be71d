# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training that exchanges what the optimizer changed, by the sparse allreduce of ../lib.
README.md has the five lines that use it. The constructor, step(), load_state_dict(), take_weights() and
close() are collective: all ranks make these calls in the same order.

Each rank runs its own optimizer on its own gradients. What that changed is added to this rank's
residual. Its largest entries are sent and leave it. Their average over the ranks is subtracted from
the shared weights. A rank computes its gradients at the shared weights minus a share of its residual
(`ahead`). Otherwise it would not see what it has not sent yet, and would go too far in the same
direction. The parameters of the model keep their memory, layout and type: values are copied.
Errors of the library are SparseAllreduceError with one sentence.
"""

import contextlib
import copy
import ctypes
import inspect
import itertools
import math
import numbers
import os
import re
import types
import warnings

import torch
import torch.distributed as dist


class SparseAllreduceError(RuntimeError):
    """What went wrong, in one sentence, of the library or of this file."""


# ---- the library ---------------------------------------------------------------------------------
class Config(ctypes.Structure):
    """sparse_allreduce_config_t, field by field; sparse_allreduce.h explains them."""
    _fields_ = [("size", ctypes.c_size_t), ("algorithm", ctypes.c_int), ("preset", ctypes.c_int),
                ("density", ctypes.c_double), ("warmup_steps", ctypes.c_long),
                ("throttle", ctypes.c_long), ("gradient_type", ctypes.c_int),
                ("gtopk_exact_residual", ctypes.c_int), ("balance", ctypes.c_int),
                ("nonfinite", ctypes.c_int), ("exchange", ctypes.c_int), ("result", ctypes.c_int),
                ("timeout_seconds", ctypes.c_double)]


PRESET_BERT, RESULT_ENTRIES = 2, 1  # enumerators of sparse_allreduce.h


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


class _Memory:
    """Device memory of the library, for torch.as_tensor."""

    def __init__(self, address, count):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (count,), "typestr": "<f4", "version": 3}


def nccl_home():
    """The NCCL_HOME that the library has to be made with: the folder of the NCCL that PyTorch has loaded."""
    with open("/proc/self/maps") as maps:
        found = re.search(r"(/.*?)(/lib(64)?(/[^/]*-linux-gnu)?)?/libnccl\.so", maps.read())
    if found is None:
        raise SparseAllreduceError("PyTorch has loaded no libnccl.so")
    return found[1]


def _load(path, cuda):
    """The library at `path`, or next to this file (make install), or in the build folder of the repository."""
    here = os.path.dirname(os.path.abspath(__file__))
    built = os.path.join(here, "../../build/%s-pthread/libsparse_allreduce.so" % ("gpu" if cuda else "cpu"))
    names = [os.path.join(here, "libsparse_allreduce%s.so" % ("" if cuda else "_cpu")), os.path.normpath(built)]
    path = path or next((name for name in names if os.path.exists(name)), None)
    if path is None:
        raise SparseAllreduceError("there is no %s: build it with `make%s`, or pass library=<its path>" %
                                   (built, "" if cuda else " CPU=1"))
    # PyTorch may have made its CUDA and NCCL visible to every library. The stand-in has its own functions.
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | (0 if cuda else os.RTLD_DEEPBIND))
        library.sparse_allreduce_state_bytes.restype = ctypes.c_size_t
        for name in ("sparse_allreduce_name", "sparse_allreduce_last_error", "ncclGetErrorString"):
            getattr(library, name).restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise SparseAllreduceError("%s cannot be used: %s" % (path, error)) from None
    if hasattr(library, "cpu_launch") == cuda:
        raise SparseAllreduceError("%s is for %s, the parameters are on %s" % (
            path, *(("the CPU stand-in", "a GPU") if cuda else ("GPUs", "the CPU"))))
    version = ctypes.c_int()  # of the NCCL that is loaded, PyTorch's
    library.ncclGetVersion(ctypes.byref(version))
    if cuda and library.sparse_allreduce_nccl_version() != version.value:
        raise SparseAllreduceError("%s was built with another NCCL than PyTorch has loaded: "
                                   "build it with make NCCL_HOME=%s" % (path, nccl_home()))
    return library


# ---- one vector in the library -------------------------------------------------------------------
class _Exchange:
    """A handle of the library, with a communicator of its own: PyTorch's calls do not mix with its steps."""

    def __init__(self, library, config, identity, rank, ranks, count, cuda):
        self._library, self._cuda = library, cuda
        self._communicator, self.handle, address = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        if not cuda:
            library.cudaSetDevice(rank)  # of the stand-in, where every rank has one
        self._check_nccl(library.ncclCommInitRank(ctypes.byref(self._communicator), ranks, identity, rank))
        self._check(library.sparse_allreduce_create(self._communicator, ctypes.c_size_t(count), ctypes.byref(config),
                                                    ctypes.byref(self.handle)))
        self._check(library.sparse_allreduce_residual(self.handle, ctypes.byref(address)))
        self.residual = self._tensor(address, count) if address else None  # a dense exchange has none
        self._buffer = None
        if not cuda:  # the stand-in's dense allreduce takes only its device memory; the process keeps it
            library.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(4 * count))
            self._buffer = self._tensor(address, count)

    def _tensor(self, address, count):
        if self._cuda:
            return torch.as_tensor(_Memory(address.value, count), device="cuda")
        return torch.frombuffer((ctypes.c_float * count).from_address(address.value), dtype=torch.float32)

    def buffer(self, like):
        return torch.empty_like(like) if self._buffer is None else self._buffer

    def average(self, changed, weights):
        """Subtracts the average. The host waits once; then what was sent has left the residual, and errors are known."""
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream if self._cuda else None)
        address, error = ctypes.c_void_p(weights.data_ptr()), ctypes.c_int()
        self._check(self._library.sparse_allreduce_run(self.handle, ctypes.c_void_p(changed.data_ptr()), None, stream))
        self._check(self._library.sparse_allreduce_add(self.handle, ctypes.c_float(-1), address, stream))
        self._check(self._library.sparse_allreduce_residual(self.handle, ctypes.byref(ctypes.c_void_p())))
        self._check(self._library.sparse_allreduce_get_async_error(self.handle, ctypes.byref(error)))
        self._check(error.value)
        if self.residual is None and not weights.isfinite().all():
            raise SparseAllreduceError("a value is not finite after a dense exchange")

    def state(self):
        state = torch.empty(self._library.sparse_allreduce_state_bytes(self.handle), dtype=torch.uint8)
        self._check(self._library.sparse_allreduce_save(self.handle, ctypes.c_void_p(state.data_ptr())))
        return state

    def load(self, state):
        state = state.cpu()  # torch.load(map_location="cuda") moves it
        self._check(self._library.sparse_allreduce_load(self.handle, ctypes.c_void_p(state.data_ptr())))

    def close(self):
        if self.handle is not None:
            self._check(self._library.sparse_allreduce_destroy(self.handle))
            self._check_nccl(self._library.ncclCommDestroy(self._communicator))
            self.handle = None

    def _check(self, code):
        if code != 0:
            raise SparseAllreduceError(self._library.sparse_allreduce_last_error().decode())

    def _check_nccl(self, code):
        if code != 0:
            raise SparseAllreduceError("NCCL: " + self._library.ncclGetErrorString(code).decode())


# ---- helpers of the optimizer --------------------------------------------------------------------
@contextlib.contextmanager
def _own_setting():
    """Whatever default device, grad mode or inference mode the caller has."""
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
        yield


def _agree(group, error, value=None):
    """The values of all ranks. A rank that fails alone would leave the others waiting, so all fail."""
    reports = [None] * dist.get_world_size(group)
    dist.all_gather_object(reports, (error and str(error), value), group=group)
    for rank, (sentence, _) in enumerate(reports):
        if sentence is not None:
            raise error or SparseAllreduceError("rank %d: %s" % (rank, sentence))
    return [theirs for _, theirs in reports]


def _parameters(optim):
    return [p for g in optim.param_groups for p in g["params"]]


def _units(optim):
    """For each parameter the learning rate of its group, as a share of the highest, rounded to a power of two."""
    rates = [float(g.get("initial_lr", g.get("lr", 1))) for g in optim.param_groups]
    units = [2.0**round(math.log2(rate / max(rates))) if rate > 0 else 1.0 for rate in rates]
    return [unit for g, unit in zip(optim.param_groups, units) for _ in g["params"]]


def _momenta(optim):
    return [float(g["betas"][0] if "betas" in g else g.get("momentum", 0)) for g in optim.param_groups]


def _check_arguments(optim, every, **shares):
    if not isinstance(optim, torch.optim.Optimizer) or isinstance(optim, SparseUpdateOptimizer):
        raise TypeError("the first argument is a %s; allowed: an optimizer such as AdamW" % type(optim).__name__)
    closure = inspect.signature(optim.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise TypeError("%s calls its closure several times in a step, which is not supported" % type(optim).__name__)
    own = _parameters(optim)
    if sum(p.numel() for p in own) == 0:
        raise ValueError("the optimizer has no parameters, or only empty ones")
    for p in own:
        if hasattr(p, "to_local") or p.device.type not in ("cpu", "cuda"):
            raise ValueError("a parameter is sharded, or on %s: not supported" % p.device)
        if p.dtype not in (torch.float32, torch.float16, torch.bfloat16) or p.device != own[0].device:
            raise ValueError("a parameter is %s on %s; allowed: float32, float16, bfloat16, all on %s" %
                             (p.dtype, p.device, own[0].device))
    if not isinstance(every, int) or every < 1:
        raise ValueError("every=%r; allowed: 1 or more" % every)
    for name, value in shares.items():  # None: the default
        if value is not None and not (isinstance(value, numbers.Real) and 0 <= value <= 1):
            raise ValueError("%s=%r; allowed: 0 to 1" % (name, value))


def _configuration(library, fields):
    config, size = Config(), ctypes.c_size_t(ctypes.sizeof(Config))
    library.sparse_allreduce_config_init(ctypes.byref(config), size, PRESET_BERT)
    names = [name.decode() for name in map(library.sparse_allreduce_name, range(99)) if name]
    known = [name for name, _ in Config._fields_ if name not in ("size", "gradient_type", "nonfinite", "result")]
    for name, value in fields.items():
        if name not in known:
            raise TypeError("no field %r; allowed: %s" % (name, ", ".join(known)))
        if name == "algorithm" and value not in names:
            raise ValueError("algorithm=%r; allowed: %s" % (value, ", ".join(names)))
        try:
            setattr(config, name, names.index(value) if name == "algorithm" else value)
        except TypeError:
            raise TypeError("%s=%r; allowed: a number" % (name, value)) from None
    config.result = RESULT_ENTRIES
    return config


# ---- the optimizer -------------------------------------------------------------------------------
class SparseUpdateOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer of this rank, as torch.distributed.optim.PostLocalSGDOptimizer does.

    optim        any optimizer whose parameters are on one GPU, or on the CPU, where the stand-in of this suite
                 takes the place of GPUs. For its steps, those of 16 bits have 32
    density      share of the elements that a rank sends; None: 0.02 / ranks, which makes 1/50 of the words of
                 a dense allreduce; 1: all, by a dense allreduce
    every        local steps before an exchange. With more than one the optimizer's usual momentum learns best
    ahead        the share of its residual by which a rank's weights are ahead of the shared ones; None: 12
                 times the density, a quarter at most (an entry waits for 1/density steps to be sent); with
                 local steps 0
    decay        factor of the residual in each exchange; None: 1, with local steps 0.95
    group        of torch.distributed, any backend
    library      path of libsparse_allreduce.so
    fields       any field of sparse_allreduce_config_t by its name: algorithm="oktopk", timeout_seconds=5 ...
    """
    _step_supports_amp_scaling = True  # a GradScaler leaves it to step() to unscale and to skip

    @_own_setting()
    def __init__(self, optim, density=None, every=1, ahead=None, decay=None, group=None, library=None, **fields):
        self._rank, self._ranks, self._group = dist.get_rank(group), dist.get_world_size(group), group
        if self._rank < 0:
            raise ValueError("this process is not in the group")
        identity, error, arguments = _UniqueId(), None, []
        try:
            _check_arguments(optim, every, density=density, ahead=ahead, decay=decay)
            density = 0.02 / self._ranks if density is None else density
            ahead = ahead if ahead is not None else min(12 * density, 0.25) if every == 1 else 0.0
            decay = decay if decay is not None else 1.0 if every == 1 else 0.95
            own = _parameters(optim)
            cuda, count = own[0].is_cuda, sum(p.numel() for p in own)
            fields = {"algorithm": "dense" if density == 1 else "topkA", "density": density, **fields}
            loaded = _load(library, cuda)
            config = _configuration(loaded, fields)
            settings = [("every", every), ("ahead", ahead), ("decay", decay), *sorted(fields.items())]
            arguments = ["%s=%r" % setting for setting in settings]
            arguments += ["an " + type(optim).__name__, *("a parameter %s %s" % (p.dtype, [*p.shape]) for p in own)]
            if loaded.sparse_allreduce_check(ctypes.byref(config), ctypes.c_size_t(count), self._ranks) != 0:
                raise SparseAllreduceError(loaded.sparse_allreduce_last_error().decode())
            if self._rank == 0 and loaded.ncclGetUniqueId(ctypes.byref(identity)) != 0:
                raise SparseAllreduceError("NCCL has failed; NCCL_DEBUG=WARN says why")
            if cuda:
                torch.cuda.set_device(own[0].device)  # for all calls of the library and of torch.distributed
        except Exception as exception:
            error = exception
        everybody = _agree(group, error, (arguments, bytes(identity)))
        for other, (theirs, _) in enumerate(everybody):
            for got, first in itertools.zip_longest(theirs, everybody[0][0], fillvalue="no further parameter"):
                if got != first:
                    raise SparseAllreduceError("rank %d has %s, rank 0 has %s: all ranks need the same" %
                                               (other, got, first))
        self.optim, self.every, self._ahead, self._decay, self._own = optim, every, ahead, decay, own
        self._units = _units(optim)
        self._made = [self._rank, self._ranks, *self._units]  # a state fits only an optimizer that was made the same
        self._kinds = [(p.dtype, p.device, p.shape) for p in own]
        identity = _UniqueId.from_buffer_copy(everybody[0][1])
        self._exchange = _Exchange(loaded, config, identity, self._rank, self._ranks, count, cuda)
        # Lightning and Fabric make copies of this object: what changes is in objects that these share.
        self._now = types.SimpleNamespace(local=0, kept=None, marks=None, momenta=_momenta(optim), equal=self._ranks > 1,
                                          source="model")  # of the weights, if the model is loaded before the next step
        for kind in ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post"):
            setattr(self, "_optimizer_%s_hooks" % kind, getattr(optim, "_optimizer_%s_hooks" % kind))
        super().__setstate__({})  # makes the hooks of step(), which are called before and after all of it
        self._copies = {p: p.float() for p in own if p.dtype != torch.float32}  # their weights, with 32 bits
        if self._copies and optim.state:
            self._load_local(optim.state_dict())  # so its state has 32 bits, too
        self._shared = self._vector(self._values())
        self._begin_again()

    # ---- the weights: of the model, and as one vector --------------------------------------------
    def _values(self):
        """This rank's weights, with 32 bits."""
        return [self._copies.get(p, p.detach()) for p in self._own]

    def _parts(self, vector):
        return [part.view(p.shape) for p, part in zip(self._own, vector.split([p.numel() for p in self._own]))]

    def _in_units(self, values):
        """Vectors have weights in units of their groups' rates, so a group with a small rate is sent as often as others."""
        return torch._foreach_div(values, self._units) if min(self._units) < 1 else values

    def _vector(self, values):
        return torch.cat([value.flatten().float() for value in self._in_units(values)])

    def _weights(self, vector):
        parts = self._parts(vector)
        return torch._foreach_mul(parts, self._units) if min(self._units) < 1 else parts

    def _put(self, values):
        torch._foreach_copy_(self._values(), values)
        self._round()

    def _round(self):
        for p, value in self._copies.items():
            p.copy_(value)
        self._now.marks = self._marks()

    def _marks(self):
        return [(p._version, p.data_ptr()) for p in self._own]

    def _last(self, out):
        """This rank's weights as the last exchange left them."""
        if self._exchange.residual is None:
            return out.copy_(self._shared)
        return torch.sub(self._shared, self._exchange.residual, alpha=self._ahead, out=out)

    def _touched(self):
        """The parameters that somebody else has written to, or given other memory."""
        return [i for i, (mark, old) in enumerate(zip(self._marks(), self._now.marks)) if mark != old]

    def _warn_if_replaced(self, vector, consequence):
        """By 1 % or more, for most of the weights. The vector has what they were before."""
        touched, parts = self._touched(), self._weights(vector)
        far = sum((self._own[i] - parts[i]).square().sum() for i in touched)
        size = sum(parts[i].square().sum() for i in touched)
        if 2 * sum(parts[i].numel() for i in touched) > vector.numel() and far > 1e-4 * size:
            warnings.warn("most weights of the model were replaced: " + consequence)

    def _begin_again(self):
        """All ranks begin with the weights of rank 0. Nothing waits to be sent."""
        dist.broadcast(self._shared, group_src=0, group=self._group)
        if self._exchange.residual is not None:
            self._exchange.residual.zero_()
        self._now.local = 0
        self._put(self._weights(self._shared))

    @_own_setting()
    def take_weights(self):
        """Begins again with the weights that rank 0's model has now, for example because it has loaded a file. The
        first step after the constructor, or after load_state_dict() of a plain optimizer's state, does that, too."""
        self._ready()
        self._now.source = None
        self._shared.copy_(self._vector(self._own))
        self._begin_again()

    @contextlib.contextmanager
    def shared_weights(self):
        """Gives the model the shared weights, those of the last exchange, to test it or to save it."""
        self._ready()
        with _own_setting():
            self._now.kept = [value.clone() for value in self._values()]
            self._put(self._weights(self._shared))
        try:
            yield
            with _own_setting():
                self._warn_if_replaced(self._shared, "what it gets inside shared_weights() is lost")
        finally:
            with _own_setting():
                self._put(self._now.kept)
            self._now.kept = None

    # ---- a step ----------------------------------------------------------------------------------
    def _open(self):
        if self._exchange.handle is None:
            raise SparseAllreduceError("the optimizer is closed")

    def _ready(self):
        self._open()
        if self._now.kept is not None:
            raise SparseAllreduceError("the model has the shared weights: leave shared_weights() first")

    def step(self, closure=None):
        self._ready()
        try:
            with torch.enable_grad():
                loss = None if closure is None else closure()
            if not self._local_step():
                return loss
        except Exception:
            self._fail()
            raise
        self._after_local_step()
        return loss

    @_own_setting()
    def _local_step(self):
        """False if a GradScaler found infinity on some rank. Then no rank makes this step."""
        scale = None
        if hasattr(self, "found_inf"):
            scale, found = self.grad_scale, torch.as_tensor(self.found_inf, device=self._shared.device).float().clone()
            dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self._group)
            if found.item() != 0:
                return False
        self._take_source()
        self._check_model()
        with self._32_bits():
            if scale is not None:  # otherwise the user has called scaler.unscale_()
                for p in self._own:
                    if p.grad is not None:
                        p.grad.div_(scale)
            self.optim.step()
        return True

    def _take_source(self):
        if self._now.source == "model":
            self.take_weights()
        elif self._now.source == "state" and self._now.local == 0:
            self._put(self._weights(self._last(self._exchange.buffer(self._shared))))
        self._now.source = None

    def _check_model(self):
        """What others did since the last step."""
        own = _parameters(self.optim)
        if [*map(id, own)] != [*map(id, self._own)] or [(p.dtype, p.device, p.shape) for p in own] != self._kinds:
            raise SparseAllreduceError("parameters were added, removed or converted: do that before you wrap the optimizer")
        touched = [self._own[i] for i in self._touched()]
        for p in touched:
            if p in self._copies:  # what is no rounded copy has been written by somebody else
                value = self._copies[p]
                value.copy_(torch.where(value.to(p.dtype) == p, value, p.float()))
        if touched and self._now.local == 0:
            before = self._last(self._exchange.buffer(self._shared))
            self._warn_if_replaced(before, "this counts as a change, and other ranks get the largest part of it first; "
                                   "if you have loaded a file, call take_weights()")
        if all(p.grad is None for p in own):
            warnings.warn("no parameter of this optimizer has a gradient: does the model have others by now?")
        if any(now > then for now, then in zip(_momenta(self.optim), self._now.momenta)):
            warnings.warn("something has raised the first beta, or the momentum: sparse training needs less of it "
                          "(OneCycleLR: cycle_momentum=False)")

    @contextlib.contextmanager
    def _32_bits(self):
        """For the wrapped optimizer, parameters, gradients and state of 16 bits have 32."""
        kept = [(p, p.data, p.grad) for p in self._copies]
        for p, _, grad in kept:
            p.grad = None
            p.data = self._copies[p]
            p.grad = None if grad is None else grad.float()
        try:
            yield
        finally:
            for p, data, grad in kept:
                p.grad, self._copies[p] = None, p.data
                p.data = data
                p.grad = grad

    @_own_setting()
    def _after_local_step(self):
        self._now.local += 1
        if self._now.local < self.every:
            self._round()
            return
        self._now.local = 0
        changed = self._last(self._exchange.buffer(self._shared))
        torch._foreach_sub_(self._parts(changed), self._in_units(self._values()))
        if self._decay < 1 and self._exchange.residual is not None:
            self._exchange.residual.mul_(self._decay)
        self._send(changed)
        self._put(self._weights(self._last(changed)))

    def _send(self, changed):
        if self._now.equal:  # until something has changed
            digest = changed.view(torch.int32).sum(dtype=torch.int64)
            digests = torch.stack([digest, -digest, (changed.abs() > 0).any().long()])
            dist.all_reduce(digests, op=dist.ReduceOp.MAX, group=self._group)
            highest, lowest, self._now.equal = digests[0], -digests[1], not digests[2]
            if digests[2] and highest == lowest:
                warnings.warn("all ranks have the same gradients: is there DistributedDataParallel around the model, "
                              "or does each rank have the same data? Both are wrong here")
        self._exchange.average(changed, self._shared)

    @_own_setting()
    def _fail(self):
        """The others hear of it in their next exchange, by a value that is not finite."""
        changed = self._exchange.buffer(self._shared).zero_()
        changed[0] = float("nan")
        with contextlib.suppress(Exception):
            self._take_source()
            self._send(changed)

    # ---- what an optimizer has -------------------------------------------------------------------
    param_groups = property(lambda self: self.optim.param_groups)
    state = property(lambda self: self.optim.state)
    defaults = property(lambda self: self.optim.defaults)

    def __getattr__(self, name):  # such as train() and eval() of some optimizers
        if name == "optim":
            raise AttributeError("the constructor has failed")
        return getattr(self.optim, name)

    def __reduce__(self):
        raise SparseAllreduceError("this optimizer cannot be copied or pickled: it has a communicator; use state_dict()")

    def zero_grad(self, set_to_none=True):
        self.optim.zero_grad(set_to_none)

    def add_param_group(self, param_group):
        raise SparseAllreduceError("groups of parameters cannot be added after SparseUpdateOptimizer is made")

    @_own_setting()
    def state_dict(self):
        """A copy: that of the wrapped optimizer and, as "sparse", what this rank has besides."""
        self._open()
        return {**copy.deepcopy(self.optim.state_dict()), "sparse": {
            "made": self._made, "library": self._exchange.state(), "local": self._now.local,
            "shared": [part.clone() for part in self._weights(self._shared)],
            "weights": [value.clone() for value in self._now.kept or self._values()]}}

    @_own_setting()
    def load_state_dict(self, state_dict):
        """If each rank loads its own, the next steps have the same bits as after the save. Otherwise all ranks begin with
        the shared weights that rank 0 loads, or, if the state is of a plain optimizer, with the weights of its model."""
        self._ready()
        mine, error, exact = None, None, False
        try:
            if not isinstance(state_dict, dict) or "param_groups" not in state_dict:
                raise ValueError("this is not the state_dict of an optimizer")
            mine = state_dict.get("sparse")
            if mine is not None and [part.shape for part in mine["shared"]] != [p.shape for p in self._own]:
                raise ValueError("this state is of parameters with other shapes than those of the model")
            self._load_local({name: value for name, value in state_dict.items() if name != "sparse"})
            exact = mine is not None and [*mine["made"]] == self._made
        except Exception as exception:
            error = exception
        exact = all(_agree(self._group, error, exact))
        try:
            if exact:
                self._exchange.load(mine["library"])
        except Exception as exception:
            error = exception
        _agree(self._group, error)
        self._now.source = "model" if mine is None else "state"
        if mine is None:
            return
        self._shared.copy_(self._vector([part.to(self._shared.device) for part in mine["shared"]]))
        if exact:
            self._now.local = mine["local"]
            self._put([value.to(self._shared.device) for value in mine["weights"]])
        else:
            warnings.warn("a rank loads a state that it has not saved: the residuals of all are empty now")
            self._begin_again()

    def _load_local(self, state_dict):
        with self._32_bits():
            self.optim.load_state_dict(copy.deepcopy(state_dict))  # which would keep its tensors and change them
        self._now.momenta = _momenta(self.optim)

    def close(self):
        """Frees handle and communicator. A process that ends without it does not wait for others."""
        self._exchange.close()


if __name__ == "__main__":
    print(nccl_home())  # for make
