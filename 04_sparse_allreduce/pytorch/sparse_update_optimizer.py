# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training that exchanges what the optimizer changed, by the sparse allreduce of ../lib.
README.md has the five lines that use it. The constructor, step(), load_state_dict() and close() are
collective: all ranks make these calls in the same order.

Each rank runs its own optimizer on its own gradients. What that changed is added to this rank's
residual; the largest entries of it are sent and leave it; their average over the ranks is subtracted
from the shared weights. A rank computes its gradients at the shared weights less a share of its
residual (`ahead`): a rank that sees nothing of what it has not sent yet goes on in the same direction,
and too far. All errors are SparseAllreduceError with one sentence.
"""

import contextlib
import ctypes
import os
import re

import torch
import torch.distributed as dist


class SparseAllreduceError(RuntimeError):
    """What went wrong, in a sentence of the library's, or of this file's."""


# ---- the library ---------------------------------------------------------------------------------
class Config(ctypes.Structure):
    """sparse_allreduce_config_t, field by field; sparse_allreduce.h says what each of them means."""
    _fields_ = [("size", ctypes.c_size_t), ("algorithm", ctypes.c_int), ("preset", ctypes.c_int),
                ("density", ctypes.c_double), ("warmup_steps", ctypes.c_long),
                ("gradient_type", ctypes.c_int), ("gaussian_sa_threshold", ctypes.c_int),
                ("gtopk_exact_residual", ctypes.c_int), ("throttle", ctypes.c_int), ("balance", ctypes.c_int),
                ("nonfinite", ctypes.c_int), ("exchange", ctypes.c_int), ("result", ctypes.c_int),
                ("timeout_seconds", ctypes.c_double)]


PRESET_BERT, RESULT_ENTRIES = 2, 1  # enumerators of sparse_allreduce.h


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


# The functions that return something else than an ncclResult_t or a cudaError_t.
_RESULTS = {"sparse_allreduce_config_init": None, "sparse_allreduce_state_bytes": ctypes.c_size_t,
            "sparse_allreduce_name": ctypes.c_char_p, "sparse_allreduce_last_error": ctypes.c_char_p,
            "ncclGetErrorString": ctypes.c_char_p}


def _loaded_nccl():
    with open("/proc/self/maps") as maps:
        return sorted({line.split(None, 5)[5].strip() for line in maps if "/libnccl.so" in line})


def nccl_home():
    """The NCCL_HOME that the library has to be made with: the folder of the NCCL that PyTorch has loaded."""
    for path in _loaded_nccl():
        return re.sub(r"/lib(64)?(/[^/]*-linux-gnu)?/libnccl[^/]*$", "", path)
    raise SparseAllreduceError("PyTorch has loaded no libnccl.so")


def _load(path, cuda):
    """The library at `path`, or beside this file (make install), or in the build folder of the repository."""
    here = os.path.dirname(os.path.abspath(__file__))
    built = os.path.normpath(os.path.join(here, "../../build/%s-pthread/libsparse_allreduce.so" % ("gpu" if cuda else "cpu")))
    names = [os.path.join(here, "libsparse_allreduce%s.so" % ("" if cuda else "_cpu")), built]
    path = path or next((name for name in names if os.path.exists(name)), None)
    if path is None:
        raise SparseAllreduceError("no %s; allowed: `make%s` makes it, or library=<its path>" %
                                   (built, "" if cuda else " CPU=1"))
    nccl = _loaded_nccl()
    # PyTorch may have put the functions of CUDA and NCCL in everybody's reach. The stand-in has its own.
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | (0 if cuda else os.RTLD_DEEPBIND))
        for name, result in _RESULTS.items():
            getattr(library, name).restype = result
    except (OSError, AttributeError) as error:
        raise SparseAllreduceError("%s cannot be used: %s" % (path, error)) from None
    if hasattr(library, "cpu_launch") == cuda:
        raise SparseAllreduceError("%s is for %s, the parameters are on %s" % (
            path, *(("the CPU stand-in", "a GPU") if cuda else ("GPUs", "the CPU"))))
    if cuda:  # a process with two NCCLs would use the one with what the other has made
        version = ctypes.c_int()  # torch.cuda.nccl.version() is that of PyTorch's headers
        library.ncclGetVersion(ctypes.byref(version))
        if _loaded_nccl() != nccl or library.sparse_allreduce_nccl_version() != version.value:
            raise SparseAllreduceError("%s was made with another NCCL than PyTorch has loaded; allowed: make NCCL_HOME=%s" %
                                       (path, nccl_home()))
    return library


class _Memory:
    """Device memory of the library, for torch.as_tensor."""

    def __init__(self, address, count):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (count,), "typestr": "<f4", "version": 3}


# ---- the optimizer -------------------------------------------------------------------------------
class SparseUpdateOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer of this rank, as torch.distributed.optim.PostLocalSGDOptimizer does.

    optim        any optimizer without a state, whose parameters are on one GPU, or on the CPU, where the
                 stand-in of this suite takes the place of GPUs. Those of 16 bits get a float32 copy here
    density      of the entries that a rank sends; 1: all, by a dense allreduce
    every        local steps before an exchange
    ahead        the share of its residual by which a rank's weights are ahead of the shared ones; None: 12
                 times the density, a quarter at most. (An entry waits for 1/density steps to be sent.)
    group        of torch.distributed, any backend
    library      path of libsparse_allreduce.so
    fields       any field of sparse_allreduce_config_t by its name: algorithm="topkA", timeout_seconds=5 ...
    """
    _step_supports_amp_scaling = True  # a GradScaler leaves it to step() to unscale and to skip

    def __init__(self, optim, density=0.01, every=1, ahead=None, group=None, library=None, **fields):
        self.optim, self.every, self._group = optim, every, group
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._first = 0 if group is None else dist.get_global_rank(group, 0)
        self._local, self._handle = 0, None  # local steps since the last exchange; nothing is made yet
        own = [p for g in optim.param_groups for p in g["params"]]
        self._device, self._cuda = own[0].device, own[0].is_cuda
        if self._cuda:
            torch.cuda.set_device(self._device)  # for all calls of the library and of torch.distributed
        fields = dict({"algorithm": "dense" if density == 1 else "oktopk", "density": density}, **fields)
        error = None
        try:
            self._check_arguments(own)
            self._library = _load(library, self._cuda)
            config = self._configuration(fields)
        except (SparseAllreduceError, ValueError, TypeError) as exception:
            error = exception
        self._agree(error, error or [(tuple(p.shape), str(p.dtype)) for p in own])
        if not self._cuda:
            self._library.cudaSetDevice(self._rank)  # of the stand-in, where every rank has one
        self._ahead = 0 if fields["algorithm"] == "dense" else min(12 * density, 0.25) if ahead is None else ahead
        self._make_handle(config, sum(p.numel() for p in own))
        self._make_vectors(own)

    def _check_arguments(self, own):
        devices, types = {p.device for p in own}, {p.dtype for p in own}
        if len(devices) != 1 or {d.type for d in devices} - {"cuda", "cpu"}:
            raise ValueError("parameters are on %s; allowed: one GPU, or the CPU" % ", ".join(sorted(map(str, devices))))
        if types - {torch.float32, torch.float16, torch.bfloat16}:
            raise ValueError("parameters are of %s; allowed: float32, float16, bfloat16" % ", ".join(sorted(map(str, types))))
        if self.optim.state:
            raise ValueError("the optimizer has made steps; allowed: a new one, and load_state_dict() after this")
        if self.every < 1:
            raise ValueError("every=%r; allowed: 1 or more" % self.every)

    def _configuration(self, fields):
        names, config = [], Config()
        while (name := self._library.sparse_allreduce_name(len(names))) is not None:
            names.append(name.decode())
        self._library.sparse_allreduce_config_init(ctypes.byref(config), ctypes.c_size_t(ctypes.sizeof(Config)), PRESET_BERT)
        known = [name for name, _ in Config._fields_ if name not in ("size", "gradient_type", "nonfinite", "result")]
        for name, value in fields.items():
            if name not in known:
                raise TypeError("no field %r; allowed: %s" % (name, ", ".join(known)))
            if name == "algorithm" and value not in names:
                raise ValueError("algorithm=%r; allowed: %s" % (value, ", ".join(names)))
            setattr(config, name, names.index(value) if name == "algorithm" else value)
        config.result = RESULT_ENTRIES
        return config

    def _agree(self, error, mine):
        """A rank that fails alone would leave the others waiting."""
        reports = [None] * self._ranks
        dist.all_gather_object(reports, (error and str(error), mine), group=self._group)
        for rank, (sentence, theirs) in enumerate(reports):
            if sentence is not None:
                raise error or SparseAllreduceError("rank %d: %s" % (rank, sentence))
            if theirs != reports[0][1]:
                raise SparseAllreduceError("parameters of rank %d have other shapes or types than those of rank 0; "
                                           "allowed: the same model on all ranks" % rank)

    def _make_handle(self, config, count):
        """On a communicator of the library's own: its steps are no steps of PyTorch's."""
        identity, self._communicator, handle = _UniqueId(), ctypes.c_void_p(), ctypes.c_void_p()
        code = self._library.ncclGetUniqueId(ctypes.byref(identity)) if self._rank == 0 else 0
        told = [(code, bytes(identity))]
        dist.broadcast_object_list(told, src=self._first, group=self._group)
        self._check_nccl(told[0][0])
        identity = _UniqueId.from_buffer_copy(told[0][1])
        self._check_nccl(self._library.ncclCommInitRank(ctypes.byref(self._communicator), self._ranks, identity, self._rank))
        self._check(self._library.sparse_allreduce_create(self._communicator, ctypes.c_size_t(count), ctypes.byref(config),
                                                          ctypes.byref(handle)))
        self._handle = handle

    def _make_vectors(self, own):
        """All weights are one vector, which the parameters are parts of. Rank 0's are everybody's at first."""
        count = sum(p.numel() for p in own)
        self._shared, self._update = self._vector(count), self._vector(count)
        self._weights = torch.cat([p.detach().flatten().float() for p in own])
        dist.broadcast(self._weights, src=self._first, group=self._group)
        self._shared.copy_(self._weights)
        self._rounded, copies, at = [], {}, 0  # pairs of a float32 copy and the parameter of 16 bits
        for p in own:
            part = self._weights[at:at + p.numel()].view_as(p)
            at += p.numel()
            if p.dtype == torch.float32:
                p.data = part
            else:
                copies[p] = torch.nn.Parameter(part)
                self._rounded.append((copies[p], p))
        for g in self.optim.param_groups:
            g["params"] = [copies.get(p, p) for p in g["params"]]
        self._round()

    def _vector(self, count):
        if self._cuda:
            return torch.empty(count, device=self._device)
        address = ctypes.c_void_p()  # device memory of the stand-in, which the process keeps
        self._library.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(4 * count))
        return self._tensor(address, count)

    def _tensor(self, address, count):
        if self._cuda:
            return torch.as_tensor(_Memory(address.value, count), device=self._device)
        return torch.frombuffer((ctypes.c_float * count).from_address(address.value), dtype=torch.float32)

    # ---- calls of the library --------------------------------------------------------------------
    def _check(self, code):
        if code != 0:
            raise SparseAllreduceError(self._library.sparse_allreduce_last_error().decode())

    def _check_nccl(self, code):
        if code != 0:
            raise SparseAllreduceError("NCCL: " + self._library.ncclGetErrorString(code).decode())

    def _raise_late_errors(self):
        """Of the last exchange, which was enqueued only."""
        if self._handle is None:
            raise SparseAllreduceError("the optimizer is closed")
        error = ctypes.c_int()
        self._check(self._library.sparse_allreduce_get_async_error(self._handle, ctypes.byref(error)))
        self._check(error.value)

    # ---- a step ----------------------------------------------------------------------------------
    @torch.no_grad()
    def step(self, closure=None):
        self._raise_late_errors()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._skipped():
            return loss
        for copy, p in self._rounded:
            copy.grad = None if p.grad is None else p.grad.float()
        self.optim.step()
        self._local += 1
        if self._local == self.every:
            self._local = 0
            self._exchange()
        self._round()
        return loss

    def _skipped(self):
        """A GradScaler has found infinity on some rank: then no rank makes the step. Else gradients lose its scale."""
        found, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found is None:
            return False
        found = found.clone()
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self._group)
        if found.item():
            return True
        for g in self.optim.param_groups:
            for p in g["params"]:
                if p.grad is not None and scale is not None:
                    p.grad.mul_(1 / scale)
        return False

    def _exchange(self):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream if self._cuda else None)
        update, shared = ctypes.c_void_p(self._update.data_ptr()), ctypes.c_void_p(self._shared.data_ptr())
        self._begin(self._update)
        self._update.sub_(self._weights)
        self._check(self._library.sparse_allreduce_run(self._handle, update, None, stream))
        self._check(self._library.sparse_allreduce_add(self._handle, ctypes.c_float(-1), shared, stream))
        if not self._cuda:  # PyTorch's operators for CPUs know nothing of streams
            self._library.cudaStreamSynchronize(None)
        self._begin(self._weights)

    def _begin(self, to):
        """to = the weights of this rank after an exchange."""
        if self._ahead == 0:
            to.copy_(self._shared)
            return
        address = ctypes.c_void_p()
        self._check(self._library.sparse_allreduce_residual(self._handle, ctypes.byref(address)))
        torch.sub(self._shared, self._tensor(address, to.numel()), alpha=self._ahead, out=to)

    def _round(self):
        for copy, p in self._rounded:
            p.data.copy_(copy.data)

    @contextlib.contextmanager
    def shared_weights(self):
        """The model has the shared weights, those of the last exchange: to test it, or to save it."""
        kept = self._weights.clone()
        self._weights.copy_(self._shared)
        self._round()
        try:
            yield
        finally:
            self._weights.copy_(kept)
            self._round()

    # ---- what an optimizer has -------------------------------------------------------------------
    param_groups = property(lambda self: self.optim.param_groups)
    state = property(lambda self: self.optim.state)
    defaults = property(lambda self: self.optim.defaults)

    def zero_grad(self, set_to_none=True):
        self.optim.zero_grad(set_to_none)
        for _, p in self._rounded:
            p.grad = None

    def add_param_group(self, param_group):
        raise SparseAllreduceError("a new group of parameters; allowed: before SparseUpdateOptimizer is made")

    def state_dict(self):
        """Of this rank: each has to save its own. Weights are in it; steps after a load have the same bits."""
        self._raise_late_errors()
        state = torch.empty(self._library.sparse_allreduce_state_bytes(self._handle), dtype=torch.uint8)
        self._check(self._library.sparse_allreduce_save(self._handle, ctypes.c_void_p(state.data_ptr())))
        return {"optim": self.optim.state_dict(), "library": state, "shared": self._shared.cpu().clone(),
                "weights": self._weights.cpu().clone(), "local": self._local}

    def load_state_dict(self, saved):
        self._raise_late_errors()
        state = saved["library"].cpu()  # torch.load(map_location="cuda") moves it
        self._check(self._library.sparse_allreduce_load(self._handle, ctypes.c_void_p(state.data_ptr())))
        self.optim.load_state_dict(saved["optim"])
        self._shared.copy_(saved["shared"])
        self._weights.copy_(saved["weights"])
        self._local = saved["local"]
        self._round()

    def close(self):
        """Frees handle and communicator. A process that ends without it does not wait for others."""
        if self._handle is None:
            return
        self._raise_late_errors()
        self._check(self._library.sparse_allreduce_destroy(self._handle))
        self._check_nccl(self._library.ncclCommDestroy(self._communicator))
        self._handle = None


if __name__ == "__main__":
    print(nccl_home())  # for make
