# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training that exchanges what the optimizer changed, by the sparse allreduce of ../lib.
README.md has the five lines that use it. The constructor, step(), load_state_dict() and close() are
collective: all ranks make these calls in the same order.

Each rank runs its own optimizer on its own gradients. What that changed is added to this rank's
residual. Its largest entries are sent and leave it. Their average over the ranks is subtracted from
the shared weights. A rank computes its gradients at the shared weights minus a share of its residual
(`ahead`). Otherwise it would not see what it has not sent yet, and would go too far in the same
direction. Errors of the library are SparseAllreduceError with one sentence.
"""

import contextlib
import ctypes
import os
import re

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


# ---- the optimizer -------------------------------------------------------------------------------
class SparseUpdateOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer of this rank, as torch.distributed.optim.PostLocalSGDOptimizer does.

    optim        any optimizer whose parameters are on one GPU, or on the CPU, where the stand-in of this suite
                 takes the place of GPUs. Those of 16 bits get a float32 copy here, and may not have a state yet
    density      share of the elements that a rank sends; None: 0.02 / ranks, which makes 1/50 of the words of
                 a dense allreduce; 1: all, by a dense allreduce
    every        local steps before an exchange
    ahead        the share of its residual by which a rank's weights are ahead of the shared ones; None: 12
                 times the density, a quarter at most. (An entry waits for 1/density steps to be sent.)
    group        of torch.distributed, any backend
    library      path of libsparse_allreduce.so
    fields       any field of sparse_allreduce_config_t by its name: algorithm="oktopk", timeout_seconds=5 ...
    """
    _step_supports_amp_scaling = True  # a GradScaler leaves it to step() to unscale and to skip

    def __init__(self, optim, density=None, every=1, ahead=None, group=None, library=None, **fields):
        own = [p for g in optim.param_groups for p in g["params"]]
        self.optim, self.every, self._group, self._cuda = optim, every, group, own[0].is_cuda
        self._local, self._handle = 0, None  # local steps since the last exchange; nothing is made yet
        self._kept = None  # this rank's weights, while the model has the shared ones
        density = 0.02 / dist.get_world_size(group) if density is None else density
        self._ahead = min(12 * density, 0.25) if ahead is None else ahead
        if self._cuda:
            torch.cuda.set_device(own[0].device)  # for all calls of the library and of torch.distributed
        fields = {"algorithm": "dense" if density == 1 else "topkA", "density": density, **fields}
        rank, identity, error = dist.get_rank(group), _UniqueId(), None
        try:
            self._check_arguments(own)
            self._library = _load(library, self._cuda)
            config = self._configuration(fields)
            if rank == 0:
                self._check_nccl(self._library.ncclGetUniqueId(ctypes.byref(identity)))
        except (SparseAllreduceError, ValueError, TypeError) as exception:
            error = exception
        identity = self._agree(error, [every, *((tuple(p.shape), str(p.dtype)) for p in own)], identity)
        self._make_handle(config, rank, identity, sum(p.numel() for p in own))
        self._make_vectors(own)

    def _check_arguments(self, own):
        for p in own:
            if p.dtype not in (torch.float32, torch.float16, torch.bfloat16) or p.device != own[0].device:
                raise ValueError("a parameter is %s on %s; allowed: float32, float16, bfloat16, all on %s" %
                                 (p.dtype, p.device, own[0].device))
        if any(p.dtype != torch.float32 for p in self.optim.state):
            raise ValueError("the optimizer has a state of 16-bit parameters: "
                             "pass a new one, and call load_state_dict() after this")
        if self.every < 1:
            raise ValueError("every=%r; allowed: 1 or more" % self.every)

    def _configuration(self, fields):
        config, size = Config(), ctypes.c_size_t(ctypes.sizeof(Config))
        self._library.sparse_allreduce_config_init(ctypes.byref(config), size, PRESET_BERT)
        names = [name.decode() for name in map(self._library.sparse_allreduce_name, range(99)) if name]
        known = [name for name, _ in Config._fields_ if name not in ("size", "gradient_type", "nonfinite", "result")]
        for name, value in fields.items():
            if name not in known:
                raise TypeError("no field %r; allowed: %s" % (name, ", ".join(known)))
            if name == "algorithm" and value not in names:
                raise ValueError("algorithm=%r; allowed: %s" % (value, ", ".join(names)))
            setattr(config, name, names.index(value) if name == "algorithm" else value)
        config.result = RESULT_ENTRIES
        return config

    def _agree(self, error, model, identity):
        """Returns the identity of rank 0. A rank that fails alone would leave the others waiting."""
        reports = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(reports, (error and str(error), model, bytes(identity)), group=self._group)
        for rank, (sentence, theirs, _) in enumerate(reports):
            if sentence is not None:
                raise error or SparseAllreduceError("rank %d: %s" % (rank, sentence))
            if theirs != reports[0][1]:
                raise SparseAllreduceError("rank %d has another `every`, or parameters of other shapes or types, "
                                           "than rank 0: all ranks need the same" % rank)
        return _UniqueId.from_buffer_copy(reports[0][2])

    def _make_handle(self, config, rank, identity, count):
        """The library gets a communicator of its own, so PyTorch's calls do not mix with its steps."""
        self._communicator, handle, address = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        if not self._cuda:
            self._library.cudaSetDevice(rank)  # of the stand-in, where every rank has one
        ranks = dist.get_world_size(self._group)
        self._check_nccl(self._library.ncclCommInitRank(ctypes.byref(self._communicator), ranks, identity, rank))
        self._check(self._library.sparse_allreduce_create(self._communicator, ctypes.c_size_t(count),
                                                          ctypes.byref(config), ctypes.byref(handle)))
        self._handle = handle
        self._check(self._library.sparse_allreduce_residual(handle, ctypes.byref(address)))
        self._residual = self._tensor(address, count) if address else torch.zeros(())  # a dense exchange has none

    def _tensor(self, address, count):
        if self._cuda:
            return torch.as_tensor(_Memory(address.value, count), device="cuda")
        return torch.frombuffer((ctypes.c_float * count).from_address(address.value), dtype=torch.float32)

    def _make_vectors(self, own):
        """All weights are one vector, and the parameters are parts of it. All ranks begin with those of rank 0."""
        self._weights = torch.cat([p.detach().flatten().float() for p in own])
        dist.broadcast(self._weights, group_src=0, group=self._group)
        self._shared, self._changed = self._weights.clone(), None
        if not self._cuda:  # the stand-in's dense allreduce takes only its device memory; the process keeps it
            address = ctypes.c_void_p()
            self._library.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(4 * self._weights.numel()))
            self._changed = self._tensor(address, self._weights.numel())
        self._copies = {}  # of parameters of 16 bits, the float32 ones that the optimizer has in their place
        for p, part in zip(own, self._weights.split([p.numel() for p in own])):
            if p.dtype == torch.float32:
                p.data = part.view_as(p)
            else:
                self._copies[p] = torch.nn.Parameter(part.view_as(p))
        for g in self.optim.param_groups:
            g["params"] = [self._copies.get(p, p) for p in g["params"]]
        self._round()

    def _round(self):
        for p, copy in self._copies.items():
            p.data.copy_(copy.data)

    def _check(self, code):
        if code != 0:
            raise SparseAllreduceError(self._library.sparse_allreduce_last_error().decode())

    def _check_nccl(self, code):
        if code != 0:
            raise SparseAllreduceError("NCCL: " + self._library.ncclGetErrorString(code).decode())

    # ---- a step ----------------------------------------------------------------------------------
    def _ready(self):
        if self._handle is None:
            raise SparseAllreduceError("the optimizer is closed")
        if self._kept is not None:
            raise SparseAllreduceError("the model has the shared weights: leave shared_weights() first")

    def step(self, closure=None):
        self._ready()
        loss = None if closure is None else closure()
        if self._skipped():
            return loss
        for p, copy in self._copies.items():
            copy.grad = None if p.grad is None else p.grad.float()
        self.optim.step()
        self._local += 1
        if self._local >= self.every:
            self._local = 0
            self._exchange()
        self._round()
        return loss

    def _skipped(self):
        """If a GradScaler found infinity on some rank, no rank makes the step. Else gradients lose its scale."""
        if not hasattr(self, "found_inf"):
            return False
        found = self.found_inf.clone()
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self._group)
        if self.grad_scale is not None:  # otherwise the user has called scaler.unscale_()
            for p in (p for g in self.param_groups for p in g["params"] if p.grad is not None):
                p.grad.div_(self.grad_scale)
        return found.item() != 0

    def _exchange(self):
        """The host waits once. After that, what was sent has left the residual, and errors are known."""
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream if self._cuda else None)
        shared, error = ctypes.c_void_p(self._shared.data_ptr()), ctypes.c_int()
        changed = torch.sub(self._shared, self._residual, alpha=self._ahead, out=self._changed).sub_(self._weights)
        self._check(self._library.sparse_allreduce_run(self._handle, ctypes.c_void_p(changed.data_ptr()), None, stream))
        self._check(self._library.sparse_allreduce_add(self._handle, ctypes.c_float(-1), shared, stream))
        self._check(self._library.sparse_allreduce_residual(self._handle, ctypes.byref(ctypes.c_void_p())))
        self._check(self._library.sparse_allreduce_get_async_error(self._handle, ctypes.byref(error)))
        self._check(error.value)
        torch.sub(self._shared, self._residual, alpha=self._ahead, out=self._weights)

    @contextlib.contextmanager
    def shared_weights(self):
        """Gives the model the shared weights, those of the last exchange, to test it or to save it."""
        self._ready()
        self._kept = self._weights.clone()
        self._weights.copy_(self._shared)
        self._round()
        try:
            yield
        finally:
            self._weights.copy_(self._kept)
            self._kept = None
            self._round()

    # ---- what an optimizer has -------------------------------------------------------------------
    param_groups = property(lambda self: self.optim.param_groups)
    state = property(lambda self: self.optim.state)
    defaults = property(lambda self: self.optim.defaults)

    def zero_grad(self, set_to_none=True):
        self.optim.zero_grad(set_to_none)
        for p in self._copies:
            p.grad = None

    def add_param_group(self, param_group):
        raise SparseAllreduceError("groups of parameters cannot be added after SparseUpdateOptimizer is made")

    def state_dict(self):
        """The state of this rank, with the weights; each rank saves its own. Steps after a load have the same bits."""
        state = torch.empty(self._library.sparse_allreduce_state_bytes(self._handle), dtype=torch.uint8)
        self._check(self._library.sparse_allreduce_save(self._handle, ctypes.c_void_p(state.data_ptr())))
        return {"optim": self.optim.state_dict(), "library": state, "shared": self._shared, "local": self._local,
                "weights": self._weights if self._kept is None else self._kept}

    def load_state_dict(self, saved):
        self._ready()
        self.optim.load_state_dict(saved["optim"])
        state = saved["library"].cpu()  # torch.load(map_location="cuda") moves it
        self._check(self._library.sparse_allreduce_load(self._handle, ctypes.c_void_p(state.data_ptr())))
        self._shared.copy_(saved["shared"])
        self._weights.copy_(saved["weights"])
        self._local = saved["local"]
        self._round()

    def close(self):
        """Frees handle and communicator. A process that ends without it does not wait for others."""
        if self._handle is not None:
            self._check(self._library.sparse_allreduce_destroy(self._handle))
            self._check_nccl(self._library.ncclCommDestroy(self._communicator))
            self._handle = None


if __name__ == "__main__":
    print(nccl_home())  # for make
