# SPDX-License-Identifier: Apache-2.0
"""Gradients of PyTorch's DistributedDataParallel by the sparse allreduce of ../lib.

    model = DistributedDataParallel(net, device_ids=[gpu], bucket_cap_mb=4096)
    state = SparseAllreduceState(model, algorithm="oktopk", density=0.01)   # collective
    model.register_comm_hook(state, sparse_allreduce_hook)
    ... training as always; model.no_sync(), GradScaler (scaler=...) and checkpoints too ...
    state.close()                                                           # collective

"Collective" means: all ranks of the model's process group make the call, in the same order.

What a step does. DistributedDataParallel calls the hook once for each bucket of gradients. The hook
keeps the buckets until the last one is there. Then it asks all ranks whether all gradients are
finite, and exchanges bucket after bucket, on the stream of the backward pass. So a step is exchanged
as a whole or not at all, and no other work of that stream runs beside an exchange, whose kernels
fill the GPU while they wait for other ranks (README.md here says what follows for other streams).

A bucket has a handle of the library, which owns the residual of its parameters: what was not sent
yet. DistributedDataParallel makes new buckets after the first step; then there are new handles, and
residuals move with their parameters.

All errors of the library and of NCCL are SparseAllreduceError, with the library's sentence.
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
                ("density", ctypes.c_double), ("gradient_type", ctypes.c_int),
                ("warmup_steps", ctypes.c_long),
                ("gaussian_sa_threshold", ctypes.c_int), ("gtopk_exact_residual", ctypes.c_int),
                ("throttle", ctypes.c_int), ("balance", ctypes.c_int), ("nonfinite", ctypes.c_int),
                ("exchange", ctypes.c_int), ("result", ctypes.c_int),
                ("timeout_seconds", ctypes.c_double)]


# The enumerators of sparse_allreduce.h and nccl.h.
PRESETS = {"vgg": 0, "lstm": 1, "bert": 2}
EXCHANGES = {"auto": 0, "sendrecv": 1, "onesided": 2}
BALANCES = {"never": 0, "always": 1, "auto": 2}
DENSE = 0  # the algorithm
NONFINITE_DROP = 1
RESULT_ENTRIES = 1
GRADIENT_TYPES = {torch.float16: 6, torch.float32: 7, torch.bfloat16: 9}
ERRORS_INTERVAL = 64  # steps: looking for errors waits for the device, which nonfinite="drop" is to avoid
OWN_FIELDS = ("size", "gradient_type", "nonfinite", "result")  # set here, not by the caller


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


_pointer = ctypes.c_void_p
_to_pointer = ctypes.POINTER(ctypes.c_void_p)
_to_int = ctypes.POINTER(ctypes.c_int)
_SIGNATURES = {  # name: (result, arguments); what is an ncclResult_t is an int
    "sparse_allreduce_config_init": (None, [ctypes.POINTER(Config), ctypes.c_size_t, ctypes.c_int]),
    "sparse_allreduce_name": (ctypes.c_char_p, [ctypes.c_int]),
    "sparse_allreduce_nccl_version": (ctypes.c_int, []),
    "sparse_allreduce_last_error": (ctypes.c_char_p, []),
    "sparse_allreduce_check": (ctypes.c_int, [ctypes.POINTER(Config), ctypes.c_size_t, ctypes.c_int]),
    "sparse_allreduce_create":
        (ctypes.c_int, [_pointer, ctypes.c_size_t, ctypes.POINTER(Config), _to_pointer]),
    "sparse_allreduce_destroy": (ctypes.c_int, [_pointer]),
    "sparse_allreduce_run": (ctypes.c_int, [_pointer, _pointer, _to_pointer, _pointer]),
    "sparse_allreduce_add": (ctypes.c_int, [_pointer, ctypes.c_float, _pointer, _pointer]),
    "sparse_allreduce_copy_residual": (ctypes.c_int, [_pointer, _pointer]),
    "sparse_allreduce_set_residual": (ctypes.c_int, [_pointer, _pointer]),
    "sparse_allreduce_get_async_error": (ctypes.c_int, [_pointer, _to_int]),
    "ncclGetVersion": (ctypes.c_int, [_to_int]),
    "ncclGetUniqueId": (ctypes.c_int, [ctypes.POINTER(_UniqueId)]),
    "ncclCommInitRank": (ctypes.c_int, [_to_pointer, ctypes.c_int, _UniqueId, ctypes.c_int]),
    "ncclCommDestroy": (ctypes.c_int, [_pointer]),
    "ncclGetErrorString": (ctypes.c_char_p, [ctypes.c_int]),
    "cudaSetDevice": (ctypes.c_int, [ctypes.c_int]),
    "cudaMalloc": (ctypes.c_int, [_to_pointer, ctypes.c_size_t]),
    "cudaFree": (ctypes.c_int, [_pointer]),
    "cudaStreamSynchronize": (ctypes.c_int, [_pointer]),
    "cudaGetErrorString": (ctypes.c_char_p, [ctypes.c_int]),
}


def _find_library(cuda):
    """Beside this file, where `make install` puts both, or in the build folder of the repository."""
    here = os.path.dirname(os.path.abspath(__file__))
    names = [os.path.join(here, "libsparse_allreduce%s.so" % ("" if cuda else "_cpu")),
             os.path.join(here, "../../build/%s-pthread/libsparse_allreduce.so" % ("gpu" if cuda else "cpu"))]
    for name in names:
        if os.path.exists(name):
            return name
    raise SparseAllreduceError("no %s; allowed: `make%s` makes it, or library=<its path>" %
                               (os.path.normpath(names[1]), "" if cuda else " CPU=1"))


def _loaded_nccl():
    with open("/proc/self/maps") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if "/libnccl.so" in line}
    return sorted(paths)


def nccl_home():
    """The NCCL_HOME that the library has to be made with: the folder of the NCCL that PyTorch has loaded."""
    for path in _loaded_nccl():
        return re.sub(r"/lib(64)?(/[^/]*-linux-gnu)?/libnccl[^/]*$", "", path)
    raise SparseAllreduceError("PyTorch has loaded no libnccl.so")


def _version_text(code):
    return "%d.%d.%d" % (code // 10000, code // 100 % 100, code % 100)


def _load(path, cuda):
    """The library at `path`, with NCCL's functions: those that the library itself calls."""
    nccl = _loaded_nccl()
    # PyTorch may have put the functions of CUDA and NCCL in everybody's reach. The stand-in has its own.
    mode = os.RTLD_NOW | (0 if cuda else os.RTLD_DEEPBIND)
    try:
        library = ctypes.CDLL(path, mode=mode)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise SparseAllreduceError("%s cannot be used: %s" % (path, error)) from None
    if hasattr(library, "cpu_launch") == cuda:
        raise SparseAllreduceError(
            "%s is for %s, the model's parameters are on %s" %
            (path, *(("the CPU stand-in", "a GPU") if cuda else ("GPUs", "the CPU"))))
    if cuda:
        _refuse_other_nccl(path, library, nccl)
    return library


def _refuse_other_nccl(path, library, nccl):
    """A process with two NCCLs would use the one with what the other has made."""
    home = nccl_home()
    if len(nccl) != 1 or _loaded_nccl() != nccl:
        raise SparseAllreduceError(
            "PyTorch has loaded %s, and with %s there are %s; allowed: make NCCL_HOME=%s" %
            (" and ".join(nccl) or "no libnccl.so", path, " and ".join(_loaded_nccl()), home))
    running = ctypes.c_int()
    library.ncclGetVersion(running)
    compiled = library.sparse_allreduce_nccl_version()
    if compiled != running.value:
        raise SparseAllreduceError(
            "%s was made with NCCL %s, PyTorch has loaded %s; allowed: make NCCL_HOME=%s" %
            (path, _version_text(compiled), _version_text(running.value), home))


# ---- the state -----------------------------------------------------------------------------------
class _Bucket:
    """A handle, and the parameters whose residual it owns, in their order."""

    def __init__(self, layout, handle):
        self.layout, self.handle = layout, handle  # layout: (dtype, ((name, elements), ...))
        self.count = sum(elements for _, elements in layout[1])


class SparseAllreduceState:
    """What sparse_allreduce_hook keeps from step to step. Collective: as the model's constructor.

    model            a DistributedDataParallel; its parameters are on one GPU, or on the CPU, where the
                     stand-in of this suite takes the place of GPUs
    preset           "vgg", "lstm" or "bert": where the fields of the configuration begin
    scaler           the GradScaler of the training, if there is one: gradients are divided by its scale
                     before they are exchanged, and averages multiplied, so residuals know no scale
    nonfinite        "skip": where a gradient of any rank is not finite, the step is not exchanged,
                     residuals stay as they are, and all gradients become NaN on all ranks, so that a
                     GradScaler skips its step. The host waits for the device once a step.
                     "drop": such an element counts as 0, and nobody waits; not with a scaler
    library          path of libsparse_allreduce.so; default: see _find_library
    fields           any field of sparse_allreduce_config_t by its name: algorithm="oktopk",
                     density=0.01, exchange="sendrecv", warmup_steps=100 ...
    """

    def __init__(self, model, preset="vgg", scaler=None, nonfinite="skip", library=None, **fields):
        self.steps = 0  # that were exchanged
        self.skipped = 0  # that were not
        self._group = model.process_group
        self._rank, self._ranks = dist.get_rank(self._group), dist.get_world_size(self._group)
        self._scaler = scaler
        self._skip = nonfinite == "skip"
        trained = [(name, p) for name, p in model.module.named_parameters() if p.requires_grad]
        self._names = {id(p): name for name, p in trained}
        self._sizes = {name: p.numel() for name, p in trained}
        self._waiting = []  # what the hook was given in this backward pass
        self._buckets = []
        self._kept = None  # residuals by name that wait for handles, on the CPU
        self._communicator = None
        try:
            self._device = self._only_device(model)
            self._cuda = self._device.type == "cuda"
            if nonfinite not in ("skip", "drop") or (scaler is not None and not self._skip):
                raise ValueError("nonfinite=%r; allowed: \"skip\", and without a scaler \"drop\"" % nonfinite)
            self._library = _load(library or _find_library(self._cuda), self._cuda)
            self._config = self._configuration(preset, fields)
            if model.find_unused_parameters and fields.get("algorithm") != "dense":
                raise ValueError("find_unused_parameters=True; allowed: False: where no rank uses a parameter in a "
                                 "step, DistributedDataParallel drops what arrives late for it")
            error = None
        except (SparseAllreduceError, ValueError, TypeError) as exception:
            error = exception
        self._agree(error)
        with self._on_device():
            self._make_communicator()

    @staticmethod
    def _only_device(model):
        devices = {p.device for p in model.parameters()}
        if len(devices) != 1 or {d.type for d in devices} - {"cuda", "cpu"}:
            raise SparseAllreduceError("the model's parameters are on %s; allowed: one GPU, or the CPU" %
                                       ", ".join(sorted(map(str, devices))))
        return devices.pop()

    def _configuration(self, preset, fields):
        algorithms = {}
        while (name := self._library.sparse_allreduce_name(len(algorithms))) is not None:
            algorithms[name.decode()] = len(algorithms)
        choices = {"algorithm": algorithms, "exchange": EXCHANGES, "balance": BALANCES}
        if preset not in PRESETS:
            raise ValueError("preset=%r; allowed: %s" % (preset, ", ".join(PRESETS)))
        config = Config()
        self._library.sparse_allreduce_config_init(config, ctypes.sizeof(Config), PRESETS[preset])
        known = [name for name, _ in Config._fields_ if name not in OWN_FIELDS]
        for name, value in fields.items():
            if name not in known:
                raise TypeError("no field %r; allowed: %s" % (name, ", ".join(known)))
            if name in choices:
                if value not in choices[name]:
                    raise ValueError("%s=%r; allowed: %s" % (name, value, ", ".join(choices[name])))
                value = choices[name][value]
            setattr(config, name, value)
        config.nonfinite, config.result = NONFINITE_DROP, RESULT_ENTRIES
        config.gradient_type = GRADIENT_TYPES[torch.float32]
        most = 2**32 - 2  # the buckets are not known yet: with the largest only the rest can be wrong
        self._check(self._library.sparse_allreduce_check(config, most, self._ranks))
        return config

    def _agree(self, error):
        """A rank that fails alone would leave the others waiting."""
        sentences = [None] * self._ranks
        dist.all_gather_object(sentences, error and str(error), group=self._group)
        for rank, sentence in enumerate(sentences):
            if sentence is not None:
                raise error or SparseAllreduceError("rank %d: %s" % (rank, sentence))

    def _make_communicator(self):
        """Of the library's own: its steps are no steps of PyTorch's."""
        identity, communicator = _UniqueId(), ctypes.c_void_p()
        code = self._library.ncclGetUniqueId(identity) if self._rank == 0 else 0
        told = [(code, bytes(identity))]
        dist.broadcast_object_list(told, src=dist.get_global_rank(self._group, 0), group=self._group)
        self._check_nccl("ncclGetUniqueId", told[0][0])
        identity = _UniqueId.from_buffer_copy(told[0][1])
        code = self._library.ncclCommInitRank(communicator, self._ranks, identity, self._rank)
        self._check_nccl("ncclCommInitRank", code)
        self._communicator = communicator

    # ---- calls of the library --------------------------------------------------------------------
    def _check(self, code):
        if code != 0:
            raise SparseAllreduceError(self._library.sparse_allreduce_last_error().decode())

    def _check_nccl(self, call, code):
        if code != 0:
            raise SparseAllreduceError("%s: %s" % (call, self._library.ncclGetErrorString(code).decode()))

    def _check_cuda(self, code):
        if code != 0:
            raise SparseAllreduceError(self._library.cudaGetErrorString(code).decode())

    def _on_device(self):
        """CUDA's current device is the thread's, and the backward pass has threads of its own."""
        if not self._cuda:
            self._check_cuda(self._library.cudaSetDevice(self._rank))  # of the stand-in, where every rank has one
            return contextlib.nullcontext()
        return torch.cuda.device(self._device)

    def _stream(self):
        return torch.cuda.current_stream(self._device).cuda_stream if self._cuda else None

    @contextlib.contextmanager
    def _device_memory(self, tensor):
        """Its address on the device. The stand-in makes a difference between memories, and PyTorch's
        operators for CPUs know nothing of its streams: so there it is a copy, and the host waits."""
        if self._cuda:
            yield tensor.data_ptr()
            return
        copy, size = ctypes.c_void_p(), tensor.numel() * tensor.element_size()
        self._check_cuda(self._library.cudaMalloc(copy, size))
        ctypes.memmove(copy, tensor.data_ptr(), size)
        yield copy
        self._check_cuda(self._library.cudaStreamSynchronize(None))
        ctypes.memmove(tensor.data_ptr(), copy, size)
        self._check_cuda(self._library.cudaFree(copy))

    def _wait_for_device(self):
        """Other streams too: a collective that somebody has begun there must not run beside a step."""
        if self._cuda:
            torch.cuda.synchronize(self._device)

    # ---- a step ----------------------------------------------------------------------------------
    def _take(self, bucket):
        if self._communicator is None:
            raise SparseAllreduceError("the state of sparse_allreduce_hook is closed")
        if bucket.index() == 0:
            self._waiting = []  # a backward pass may have ended early, by an exception
        future = torch.futures.Future(devices=[self._device] if self._cuda else None)
        ready = torch.cuda.current_stream(self._device).record_event() if self._cuda else None
        self._waiting.append((bucket.buffer(), self._layout(bucket), future, ready))
        if bucket.is_last():
            self._exchange()
        return future

    def _layout(self, bucket):
        parameters = tuple((self._names.get(id(p)), p.numel()) for p in bucket.parameters())
        if any(name is None for name, _ in parameters):
            raise SparseAllreduceError("a parameter is not of the model that this state was made for")
        return (bucket.buffer().dtype, parameters)

    def _exchange(self):
        waiting, self._waiting = self._waiting, []
        buffers = [buffer for buffer, _, _, _ in waiting]
        with self._on_device():
            if self._cuda:
                for _, _, _, ready in waiting:
                    torch.cuda.current_stream().wait_event(ready)
            scale = 1.0 if self._scaler is None else self._scaler.get_scale()
            gradients = [self._gradient(buffer, scale) for buffer in buffers]
            if self._skip and not self._all_finite(gradients):
                for buffer in buffers:
                    buffer.fill_(float("nan"))
                self.skipped += 1
            else:
                if self._skip or self.steps % ERRORS_INTERVAL == 0:
                    self._raise_late_errors()
                self._make_handles([layout for _, layout, _, _ in waiting])
                for bucket, buffer, gradient in zip(self._buckets, buffers, gradients):
                    self._step(bucket, buffer, gradient, scale)
                self.steps += 1
            for buffer, _, future, _ in waiting:
                future.set_result(buffer)

    def _handle_type(self, dtype):
        """With a scaler float32: its scale is there since float16 has no room for gradients without."""
        return dtype if self._scaler is None else torch.float32

    def _gradient(self, buffer, scale):
        gradient = buffer.to(self._handle_type(buffer.dtype))
        return gradient if scale == 1.0 else gradient.mul_(1.0 / scale)

    def _all_finite(self, gradients):
        """Of all ranks. The largest magnitude is NaN where an element is."""
        largest = [torch.linalg.vector_norm(g, float("inf")).float() for g in gradients]
        finite = torch.isfinite(torch.stack(largest)).all().to(torch.int32)
        dist.all_reduce(finite, op=dist.ReduceOp.MIN, group=self._group)
        self._wait_for_device()
        return bool(finite.item())

    def _step(self, bucket, buffer, gradient, scale):
        """buffer = scale * average: zeros, to which the entries of the result are added."""
        library, stream = self._library, self._stream()
        with self._device_memory(gradient) as address:
            self._check(library.sparse_allreduce_run(bucket.handle, address, None, stream))
        if buffer.dtype == torch.float32:
            average = buffer.zero_()
        else:
            average = torch.zeros(buffer.shape, dtype=torch.float32, device=buffer.device)
        with self._device_memory(average) as address:
            self._check(library.sparse_allreduce_add(bucket.handle, scale, address, stream))
        if average is not buffer:
            buffer.copy_(average)
            # Gradients of many steps may have gathered. The average is the same on all ranks, so all leave.
            if buffer.dtype == torch.float16 and not bool(torch.isfinite(buffer).all()):
                raise SparseAllreduceError("an average is larger than float16 holds; allowed: gradients of "
                                           "bfloat16 or float32")

    def _raise_late_errors(self):
        """Of the steps so far, which were enqueued only."""
        error = ctypes.c_int()
        for bucket in self._buckets:
            self._check(self._library.sparse_allreduce_get_async_error(bucket.handle, error))
            self._check(error.value)

    # ---- handles ---------------------------------------------------------------------------------
    def _make_handles(self, layouts):
        """Where the buckets are not those of the last step. The ranks' buckets are always the same."""
        if self._kept is None and layouts == [bucket.layout for bucket in self._buckets]:
            return
        self._wait_for_device()
        residuals = self._residuals()
        self._destroy_handles()
        for layout in layouts:
            config = Config.from_buffer_copy(self._config)
            dtype, parameters = layout
            if dtype not in GRADIENT_TYPES:
                raise SparseAllreduceError("gradients are %s; allowed: %s" %
                                           (dtype, ", ".join(map(str, GRADIENT_TYPES))))
            config.gradient_type = GRADIENT_TYPES[self._handle_type(dtype)]
            config.warmup_steps = max(0, config.warmup_steps - self.steps)
            bucket = _Bucket(layout, ctypes.c_void_p())
            self._check(self._library.sparse_allreduce_create(self._communicator, bucket.count, config,
                                                              bucket.handle))
            self._buckets.append(bucket)
            if residuals:
                fused = torch.cat([residuals[name] for name, _ in parameters])
                self._check(self._library.sparse_allreduce_set_residual(bucket.handle, fused.data_ptr()))
        self._kept = None

    def _residuals(self):
        """By name of the parameter, float32, on the CPU. {}: there are none."""
        if self._kept is not None:
            return self._kept
        if self._config.algorithm == DENSE:
            return {}
        residuals = {}
        for bucket in self._buckets:
            fused = torch.empty(bucket.count, dtype=torch.float32)
            self._check(self._library.sparse_allreduce_copy_residual(bucket.handle, fused.data_ptr()))
            names, sizes = zip(*bucket.layout[1])
            residuals.update(zip(names, (part.clone() for part in fused.split(sizes))))
        return residuals

    def _destroy_handles(self):
        while self._buckets:
            self._check(self._library.sparse_allreduce_destroy(self._buckets.pop().handle))

    # ---- checkpoints, end ------------------------------------------------------------------------
    def state_dict(self):
        """The residuals of this rank, which every rank has to save for itself; waits for the last step.
        After load_state_dict() residuals have the same bits; thresholds are found anew, exactly."""
        with self._on_device():
            self._raise_late_errors()
            return {"rank": self._rank, "ranks": self._ranks, "steps": self.steps,
                    "residuals": self._residuals()}

    def load_state_dict(self, saved):
        """On all ranks, before the same step: that one makes new handles."""
        if (saved["rank"], saved["ranks"]) != (self._rank, self._ranks):
            raise ValueError("the state of rank %d of %d; allowed: that of rank %d of %d" %
                             (saved["rank"], saved["ranks"], self._rank, self._ranks))
        sizes = {name: residual.numel() for name, residual in saved["residuals"].items()}
        if sizes and sizes != self._sizes:
            raise ValueError("the state of a model with other parameters")
        self.steps = saved["steps"]
        self._kept = {name: residual.clone() for name, residual in saved["residuals"].items()}

    def close(self):
        """Collective: frees handles and communicator. A process that ends without it does not wait for
        others, and nothing is freed by the garbage collector, which runs when it likes."""
        if self._communicator is None:
            return
        with self._on_device():
            self._wait_for_device()
            self._raise_late_errors()
            self._destroy_handles()
            self._check_nccl("ncclCommDestroy", self._library.ncclCommDestroy(self._communicator))
        self._communicator = None

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:  # else other ranks may be elsewhere
            self.close()


def sparse_allreduce_hook(state, bucket):
    """For model.register_comm_hook(state, sparse_allreduce_hook)."""
    return state._take(bucket)


if __name__ == "__main__":
    print(nccl_home())  # for make
