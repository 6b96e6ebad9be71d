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
import itertools
import math
import os
import re
import types
import warnings
from collections import OrderedDict

import torch
import torch.distributed as dist


class SparseAllreduceError(RuntimeError):
    """What went wrong, in one sentence, of the library or of this file."""


# ---- the library ---------------------------------------------------------------------------------
class Config(ctypes.Structure):
    """sparse_allreduce_config_t, field by field; sparse_allreduce.h explains them."""
    _fields_ = [("size", ctypes.c_size_t), ("algorithm", ctypes.c_int), ("preset", ctypes.c_int), ("density", ctypes.c_double),
                ("warmup_steps", ctypes.c_long), ("throttle", ctypes.c_long), ("gradient_type", ctypes.c_int),
                ("gtopk_exact_residual", ctypes.c_int), ("balance", ctypes.c_int), ("nonfinite", ctypes.c_int),
                ("exchange", ctypes.c_int), ("result", ctypes.c_int), ("timeout_seconds", ctypes.c_double)]


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


# enumerators of sparse_allreduce.h
PRESET_BERT, RESULT_ENTRIES = 2, 1


def nccl_home():
    """The NCCL_HOME that the library has to be made with: the folder of the NCCL that PyTorch has loaded."""
    with open("/proc/self/maps") as maps:
        found = re.search(r"(/.*?)(/lib(64)?(/[^/]*-linux-gnu)?)?/libnccl\.so", maps.read())
    if found is None:
        raise SparseAllreduceError("PyTorch has loaded no libnccl.so")
    return found[1]


def _load(path, cuda):
    """The library at `path`, or next to this file (make install), or in the build folder of the repository."""
    here, kind = os.path.dirname(os.path.abspath(__file__)), "gpu" if cuda else "cpu"
    installed = here + ("/libsparse_allreduce.so" if cuda else "/libsparse_allreduce_cpu.so")
    built = os.path.normpath(f"{here}/../../build/{kind}-pthread/libsparse_allreduce.so")
    path = path or next(filter(os.path.exists, (installed, built)), None)
    if path is None:
        raise SparseAllreduceError(f"there is no {built}: build it with `{'make' if cuda else 'make CPU=1'}`, or pass "
                                   "library=<its path>")
    # PyTorch may have made its CUDA and NCCL visible to every library. The stand-in has its own functions.
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | (0 if cuda else os.RTLD_DEEPBIND))
        library.sparse_allreduce_state_bytes.restype = ctypes.c_size_t
        for name in ("sparse_allreduce_name", "sparse_allreduce_last_error", "ncclGetErrorString"):
            getattr(library, name).restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise SparseAllreduceError(f"{path} cannot be used: {error}") from None
    if hasattr(library, "cpu_launch") == cuda:
        raise SparseAllreduceError(path + (" is for the CPU stand-in, the parameters are on a GPU" if cuda else
                                           " is for GPUs, the parameters are on the CPU"))
    # of the NCCL that is loaded, PyTorch's
    version = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(version))
    if cuda and library.sparse_allreduce_nccl_version() != version.value:
        raise SparseAllreduceError(f"{path} was built with another NCCL than PyTorch has loaded: "
                                   f"build it with make NCCL_HOME={nccl_home()}")
    return library


def _call(library, name, *arguments):
    """A call of the library, or of the NCCL that it uses. Numbers are addresses, counts and ranks."""
    code = getattr(library, name)(*(ctypes.c_void_p(a) if isinstance(a, int) else a for a in arguments))
    if code != 0:
        error = library.ncclGetErrorString(code) if name.startswith("nccl") else library.sparse_allreduce_last_error()
        raise SparseAllreduceError(error.decode())


def _configuration(library, fields):
    config = Config()
    library.sparse_allreduce_config_init(ctypes.byref(config), ctypes.c_size_t(ctypes.sizeof(Config)), PRESET_BERT)
    names = {name.decode(): i for i, name in enumerate(map(library.sparse_allreduce_name, range(99))) if name}
    # this one has no residual
    del names["dense"]
    own = "size", "warmup_steps", "gradient_type", "nonfinite", "result"
    known = [name for name, _ in Config._fields_ if name not in own]
    for name, value in fields.items():
        if name not in known:
            raise TypeError(f"no field {name!r}; allowed: {', '.join(known)}")
        try:
            setattr(config, name, names[value] if name == "algorithm" else value)
        except KeyError:
            raise ValueError(f"algorithm={value!r}; allowed: {', '.join(names)}") from None
        except TypeError:
            raise TypeError(f"{name}={value!r}; allowed: an int, for timeout_seconds a float") from None
    config.result = RESULT_ENTRIES
    return config


class _Exchange:
    """A vector in the library, with a communicator of its own: PyTorch's calls do not mix with its steps."""

    def __init__(self, path, fields, device, count, rank):
        self._device, self._cuda, self._count, self._rank = device, device.type == "cuda", count, rank
        if self._cuda:
            # for all calls of the library and of torch.distributed
            torch.cuda.set_device(device)
        self._library = _load(path, self._cuda)
        self._config = _configuration(self._library, fields)
        # of the communicator; that of rank 0 counts
        self.identity = _UniqueId()
        if rank == 0:
            _call(self._library, "ncclGetUniqueId", ctypes.byref(self.identity))

    def open(self, ranks, identity):
        """Collective."""
        self._communicator, self.handle, address = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        if not self._cuda:
            # of the stand-in, where every rank has one
            self._library.cudaSetDevice(self._rank)
        _call(self._library, "ncclCommInitRank", ctypes.byref(self._communicator), ranks,
              _UniqueId.from_buffer_copy(identity), self._rank)
        _call(self._library, "sparse_allreduce_create", self._communicator, self._count, ctypes.byref(self._config),
              ctypes.byref(self.handle))
        self._run("residual", ctypes.byref(address))
        if self._cuda:
            memory = {"data": (address.value, False), "shape": (self._count,), "typestr": "<f4", "version": 3}
            self.residual = torch.as_tensor(types.SimpleNamespace(__cuda_array_interface__=memory), device=self._device)
        else:
            memory = (ctypes.c_float * self._count).from_address(address.value)
            self.residual = torch.frombuffer(memory, dtype=torch.float32)

    def _run(self, name, *arguments):
        _call(self._library, "sparse_allreduce_" + name, self.handle, *arguments)

    def average(self, changed, weights):
        """Subtracts the average. The host waits once; then what was sent has left the residual, and errors are known."""
        stream, error = torch.cuda.current_stream().cuda_stream if self._cuda else 0, ctypes.c_int()
        self._run("run", changed.data_ptr(), None, stream)
        self._run("add", ctypes.c_float(-1), weights.data_ptr(), stream)
        self._run("residual", ctypes.byref(ctypes.c_void_p()))
        self._run("get_async_error", ctypes.byref(error))
        if error.value != 0:
            raise SparseAllreduceError(self._library.sparse_allreduce_last_error().decode())

    def state(self):
        state = torch.empty(self._library.sparse_allreduce_state_bytes(self.handle), dtype=torch.uint8)
        self._run("save", state.data_ptr())
        return state

    def load(self, state):
        self._run("load", state.data_ptr())

    def close(self):
        if self.handle is not None:
            self._run("destroy")
            _call(self._library, "ncclCommDestroy", self._communicator)
            self.handle = None


# ---- helpers of the optimizer --------------------------------------------------------------------
@contextlib.contextmanager
def _own_setting():
    """Whatever default device, grad mode or inference mode the caller has."""
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
        yield


def _together(group, function):
    """What the function returns on each rank. A rank that fails alone, or calls it at another place, would leave the
    others waiting, so all fail."""
    result = error = None
    try:
        result = function()
    except Exception as exception:
        error = exception
    everybody, place = [None] * dist.get_world_size(group), function.__qualname__
    dist.all_gather_object(everybody, (error and str(error), result, place), group=group)
    for rank, (sentence, _, theirs) in enumerate(everybody):
        if sentence is not None:
            raise error or SparseAllreduceError(f"rank {rank}: {sentence}")
        if theirs != place:
            raise SparseAllreduceError(f"rank {rank} is in {theirs}, this one in {place}: all ranks need the same calls")
    return [result for _, result, _ in everybody]


def _parameters(optim):
    return [p for g in optim.param_groups for p in g["params"]]


def _kinds(optim):
    return [(id(p), p.dtype, p.device, p.shape) for p in _parameters(optim)]


def _momenta(optim):
    return [float((g.get("betas") or [g.get("momentum")])[0] or 0) for g in optim.param_groups]


def _units(optim):
    """For each parameter the learning rate of its group, as a share of the highest, rounded to a power of two; 1 where
    there is none."""
    rates = [float(g.get("initial_lr", g.get("lr")) or 0) for g in optim.param_groups]
    units = [2.0**round(math.log2(rate / max(rates))) if rate > 0 else 1.0 for rate in rates]
    return [unit for g, unit in zip(optim.param_groups, units) for _ in g["params"]]


def _digest(vector):
    return vector.view(torch.int32).sum(dtype=torch.int64).item()


def _check_arguments(optim, **shares):
    kind = type(optim).__name__
    if not isinstance(optim, torch.optim.Optimizer) or isinstance(optim, SparseUpdateOptimizer):
        raise TypeError(f"the first argument is a {kind}; allowed: an optimizer such as AdamW")
    if isinstance(optim, torch.optim.LBFGS):
        raise TypeError(f"{kind} calls its closure several times in a step, which is not supported")
    own = _parameters(optim)
    if sum(p.numel() for p in own) == 0:
        raise ValueError("the optimizer has no parameters, or only empty ones")
    for p in own:
        if (hasattr(p, "to_local") or p.device.type not in ("cpu", "cuda") or p.device != own[0].device
                or p.dtype not in (torch.float32, torch.float16, torch.bfloat16)):
            raise ValueError(f"a {type(p).__name__} is {p.dtype} on {p.device}; allowed: float32, float16, bfloat16, "
                             "not sharded, all on one GPU or the CPU")
    # None: the default
    for name, value in shares.items():
        if value is not None and not (isinstance(value, (int, float)) and 0 <= value <= 1):
            raise ValueError(f"{name}={value!r}; allowed: a float, 0 to 1")


# ---- the optimizer -------------------------------------------------------------------------------
class SparseUpdateOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer of this rank, as torch.distributed.optim.PostLocalSGDOptimizer does.

    optim        any optimizer whose parameters are on one GPU, or on the CPU, where the stand-in of this suite
                 takes the place of GPUs. For its steps, those of 16 bits have 32
    density      share of the elements that a rank sends; None: 0.02 / ranks, which makes 1/50 of the words of
                 a dense allreduce
    ahead        the share of its residual by which a rank's weights are ahead of the shared ones; None: 12
                 times the density, a quarter at most (an entry waits for 1/density steps to be sent)
    group        of torch.distributed, any backend
    library      path of libsparse_allreduce.so
    fields       any field of sparse_allreduce_config_t by its name: algorithm="oktopk", timeout_seconds=5 ...
    """
    # a GradScaler leaves it to step() to unscale and to skip
    _step_supports_amp_scaling = True

    @_own_setting()
    def __init__(self, optim, density=None, ahead=None, group=None, library=None, **fields):
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        if rank < 0:
            raise ValueError("this process is not in the group")

        def prepare():
            """What can fail on one rank alone. Returns the identity of the communicator, and what all ranks need the same."""
            _check_arguments(optim, density=density, ahead=ahead)
            share = 0.02 / ranks if density is None else density
            self.optim, self._group, self._own = optim, group, _parameters(optim)
            self._ahead = ahead if ahead is not None else min(12 * share, 0.25)
            settings = {"algorithm": "topkA", "density": share, **fields}
            count = sum(p.numel() for p in self._own)
            self._exchange = _Exchange(library, settings, self._own[0].device, count, rank)
            return bytes(self._exchange.identity), [
                f"an {type(optim).__name__}", f"ahead={self._ahead}",
                *(f"{name}={value!r}" for name, value in sorted(settings.items())),
                *(f"a parameter {p.dtype} {[*p.shape]}" for p in self._own)]

        everybody = _together(group, prepare)
        identity, first = everybody[0]
        for other, (_, theirs) in enumerate(everybody):
            for pair in itertools.zip_longest(theirs, first, fillvalue="no further parameter"):
                if pair[0] != pair[1]:
                    raise SparseAllreduceError(f"rank {other} has {pair[0]}, rank 0 has {pair[1]}: all ranks need the same")
        self._exchange.open(ranks, identity)
        self._kinds, self._units = _kinds(optim), _units(optim)
        # a state fits only an optimizer that was made the same
        self._made = [rank, ranks, *self._units]
        # The hooks of step() are called before and after all of it. The others are those of `optim`.
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        self._patch_step_function()
        # Lightning and Fabric make copies of this object: what changes is in objects that these share.
        self._now = types.SimpleNamespace(
            # to be called before the next step
            begin=lambda: None,
            # this rank's weights while the model has the shared ones
            kept=None,
            # of the parameters, when their values were last written here
            marks=None,
            momenta=_momenta(optim),
            # perhaps all ranks have the same gradients
            equal=ranks > 1)
        # their weights, with 32 bits
        self._copies = {p: p.float() for p in self._own if p.dtype != torch.float32}
        if self._copies and optim.state:
            # so its state has 32 bits, too
            self._load_wrapped(optim.state_dict())
        self._shared = self._vector(self._own)
        self.take_weights()
        self._now.begin = self.take_weights

    # ---- the weights: of the model, and as one vector --------------------------------------------
    # Vectors have weights in units of their groups' rates, so a group with a small rate is sent as often as others.
    def _values(self):
        """This rank's weights, with 32 bits."""
        return [self._copies.get(p, p.detach()) for p in self._own]

    def _parts(self, vector):
        return [part.view(p.shape) for p, part in zip(self._own, vector.split([p.numel() for p in self._own]))]

    def _in_units(self, values):
        return torch._foreach_div(values, self._units) if min(self._units) < 1 else values

    def _vector(self, values):
        return torch.cat([value.flatten() for value in self._in_units([value.float() for value in values])])

    def _put(self, vector):
        """Into the model."""
        torch._foreach_copy_(self._values(), self._parts(vector))
        if min(self._units) < 1:
            torch._foreach_mul_(self._values(), self._units)
        for p, value in self._copies.items():
            p.copy_(value)
        self._now.marks = self._marks()

    def _marks(self):
        return [(p._version, p.data_ptr()) for p in self._own]

    def _last(self):
        """This rank's weights as the last exchange left them."""
        return torch.sub(self._shared, self._exchange.residual, alpha=self._ahead)

    def _put_last(self):
        self._put(self._last())

    def _warn_if_replaced(self, last, consequence):
        """By 1 % or more of all. Where nobody has written to the model, nothing is compared."""
        if self._marks() != self._now.marks:
            before = last()
            if (self._vector(self._values()) - before).norm() > 0.01 * before.norm():
                warnings.warn("weights of the model were replaced: " + consequence)

    def _begin_again(self):
        """All ranks begin with the shared weights of rank 0. Nothing waits to be sent."""
        dist.broadcast(self._shared, group_src=0, group=self._group)
        self._exchange.residual.zero_()
        self._now.begin = lambda: None
        self._put(self._shared)

    @_own_setting()
    def take_weights(self):
        """Begins again with the weights that rank 0's model has now, for example because it has loaded a file. The
        first step after the constructor, or after load_state_dict() of a plain optimizer's state, does that, too."""
        self._ready()
        _together(self._group, lambda: None)
        self._shared.copy_(self._vector(self._own))
        self._begin_again()

    @contextlib.contextmanager
    def shared_weights(self):
        """Gives the model the shared weights, those of the last exchange, to test it or to save it."""
        self._ready()
        with _own_setting():
            self._warn_if_replaced(self._last, "shared_weights() has those of the last exchange, made by step() of this "
                                   "optimizer; if you have loaded a file, call take_weights() first")
            self._now.kept = self._vector(self._values())
            self._put(self._shared)
        try:
            yield
            with _own_setting():
                self._warn_if_replaced(lambda: self._shared, "what it gets inside shared_weights() is lost")
        finally:
            with _own_setting():
                self._put(self._now.kept)
            self._now.kept = None

    # ---- a step ----------------------------------------------------------------------------------
    def _ready(self, inside=False):
        if self._exchange.handle is None:
            raise SparseAllreduceError("the optimizer is closed")
        if self._now.kept is not None and not inside:
            raise SparseAllreduceError("the model has the shared weights: leave shared_weights() first")

    # also in a compiled function
    @torch.compiler.disable
    def step(self, closure=None):
        self._ready()
        with _own_setting():
            self._now.begin()
            self._now.begin = lambda: None
        try:
            with torch.enable_grad():
                loss = None if closure is None else closure()
            if not self._local_step():
                return loss
        except Exception:
            with contextlib.suppress(Exception):
                self._after_local_step(failed=True)
            raise
        self._after_local_step()
        return loss

    @_own_setting()
    def _local_step(self):
        """False if a GradScaler found infinity on some rank. Then no rank makes this step."""
        scale = None
        if hasattr(self, "found_inf"):
            scale, found = self.grad_scale, torch.tensor(float(self.found_inf), device=self._shared.device)
            dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self._group)
            if found.item() != 0:
                return False
        self._check_model()
        with self._32_bits():
            # None: the user has called scaler.unscale_()
            if scale is not None:
                for p in self._own:
                    if p.grad is not None:
                        p.grad.div_(scale)
            self.optim.step()
        return True

    def _check_model(self):
        """What others did since the last step."""
        if _kinds(self.optim) != self._kinds:
            raise SparseAllreduceError("parameters were added, removed or converted: do that before you wrap the optimizer")
        # what is no rounded copy has been written by somebody else
        for p, value in self._copies.items():
            value.copy_(torch.where(value.to(p.dtype) == p, value, p.float()))
        self._warn_if_replaced(self._last, "this counts as a change, and other ranks get the largest part of it first; "
                               "if you have loaded a file, call take_weights()")
        if all(p.grad is None for p in self._own):
            warnings.warn("no parameter of this optimizer has a gradient: does the model have others by now?")
        if any(now > then for now, then in zip(_momenta(self.optim), self._now.momenta)):
            warnings.warn("something has raised the first beta, or the momentum: sparse training needs less of it "
                          "(OneCycleLR: cycle_momentum=False)")

    @contextlib.contextmanager
    def _32_bits(self):
        """For the wrapped optimizer, parameters, gradients and state of 16 bits have 32."""
        grads = {p: None if p.grad is None else p.grad.float() for p in self._copies}

        def swap():
            for p, grad in grads.items():
                grads[p], p.grad = p.grad, None
                self._copies[p], p.data = p.data, self._copies[p]
                p.grad = grad

        swap()
        try:
            yield
        finally:
            swap()

    @_own_setting()
    def _after_local_step(self, failed=False):
        """The exchange. A rank that has failed takes part, so that the others hear of it."""
        changed = self._last()
        if failed:
            changed.fill_(math.nan)
        else:
            torch._foreach_sub_(self._parts(changed), self._in_units(self._values()))
        try:
            if self._now.equal:
                digests = _together(self._group, lambda: _digest(changed))
                # none: nothing has changed yet
                self._now.equal = not any(digests)
                if any(digests) and not failed and len(set(digests)) == 1:
                    warnings.warn("all ranks have the same gradients: is there DistributedDataParallel around the model, "
                                  "or does each rank have the same data? Both are wrong here")
            self._exchange.average(changed, self._shared)
        finally:
            # `del`, so that its memory serves the next line. This comes after an error, too: who catches it can go on.
            del changed
            self._put_last()

    # ---- what an optimizer has -------------------------------------------------------------------
    # These three not by __getattr__: from Python 3.12 on Lightning's check of a protocol looks for them without it.
    param_groups = property(lambda self: self.optim.param_groups)
    defaults = property(lambda self: self.optim.defaults)
    state = property(lambda self: self.optim.state)

    # such as train() and eval() of some optimizers
    def __getattr__(self, name):
        return getattr(self.__dict__.get("optim"), name)

    def __reduce__(self):
        raise SparseAllreduceError("this optimizer cannot be copied or pickled: it has a communicator; use state_dict()")

    @_own_setting()
    def state_dict(self):
        """A copy: that of the wrapped optimizer and, as "sparse", what this rank has besides."""
        self._ready(inside=True)
        self._warn_if_replaced(self._last, "state_dict() has those of the last exchange; if you have loaded a file, call "
                               "take_weights() first")
        shared = torch._foreach_mul(self._parts(self._shared), self._units)
        mine = dict(made=self._made, library=self._exchange.state(), shared=shared)
        return {**copy.deepcopy(self.optim.state_dict()), "sparse": mine}

    @_own_setting()
    def load_state_dict(self, state_dict):
        """If each rank loads its own, the next steps have the same bits as after the save. Otherwise all ranks begin with
        the shared weights that rank 0 loads, or, if the state is of a plain optimizer, with the weights of its model."""
        self._ready()

        def shared():
            return self._vector([part.to(self._shared.device) for part in state_dict["sparse"]["shared"]])

        def load():
            """Returns None for the state of a plain optimizer, else if this rank has saved it, and a sum of its weights."""
            if not isinstance(state_dict, dict) or "param_groups" not in state_dict:
                raise ValueError("this is not the state_dict of an optimizer")
            mine = state_dict.get("sparse")
            if mine is not None and [part.shape for part in mine["shared"]] != [p.shape for p in self._own]:
                raise ValueError("this state is of parameters with other shapes than those of the model")
            self._load_wrapped({**state_dict, "sparse": None})
            return None if mine is None else ([*mine["made"]] == self._made, _digest(shared()))

        origins = {*_together(self._group, load)}
        if None in origins:
            self._now.begin = self.take_weights
            return
        own = [made for made, _ in origins] == [True]
        if own:
            _together(self._group, lambda: self._exchange.load(state_dict["sparse"]["library"].cpu()))
        self._shared.copy_(shared())
        if not own:
            warnings.warn("the ranks have not saved these states in one step: all begin with the weights of rank 0's, "
                          "and with empty residuals")
            self._begin_again()
        self._put_last()
        # the model may be loaded after its optimizer
        self._now.begin = self._put_last

    def _load_wrapped(self, state_dict):
        with self._32_bits():
            # a copy, because PyTorch would keep its tensors and change them
            self.optim.load_state_dict(copy.deepcopy(state_dict))

    def close(self):
        """Frees handle and communicator. A process that ends without it does not wait for others."""
        self._exchange.close()


if __name__ == "__main__":
    print(nccl_home())  # for make
