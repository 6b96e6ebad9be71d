# SPDX-License-Identifier: Apache-2.0
"""Which way of exchanging what ranks learn comes to the lowest loss? Ranks are emulated, one after the other, on one GPU.

    comparison.py JOBS LOG SECONDS [TINY]

JOBS has a run in each line: a family of FAMILIES, then settings that differ from it: `dense lr=6e-4 warm=50 seed=2`. `best`
before it takes those of its family's settings in LOG that come to the lowest loss on the text to choose with, once all lines above
it are done that it could choose from. A run that has ended appends one line of JSON to LOG, and prints it. What LOG has is not run again. So several of these programs,
one for each GPU, share JOBS and LOG, and a queue that was ended goes on where LOG is. No run begins that would not end within
SECONDS. A run that fails is in LOG, too, and ends its program with exit code 3: begin another. With TINY (any word) the model
is small, for the CPU. summary.py makes a table of LOG.

A run's `choose` is its loss on the text to choose settings with, `report` on the text that is only reported. `words` is the
share of the words of the dense AllReduce that a rank sends.
"""

import contextlib
import fcntl
import glob
import json
import math
import os
import sys
import sysconfig
import time
import traceback
import zlib

import torch
from torch import nn
from torch.nn import functional

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
TINY = len(sys.argv) > 4
LAYERS, WIDTH, CONTEXT, TEXTS = (2, 64, 64, 16) if TINY else (12, 768, 512, 64)  # TEXTS: of all ranks in a step
torch.backends.cuda.matmul.allow_tf32 = True
torch._dynamo.config.recompile_limit = 100

COMMON = {"lr": 6e-4, "b1": 0.9, "b2": 0.95, "warm": 200, "clip": 0.0, "ranks": 4, "steps": 1000, "seed": 1}
UPDATE = {"way": "update", "every": 1, "density": 1.0, "ahead": 0.0, "decay": 1.0, "chunk": 0, "outer": 1.0, "nesterov": 0.0,
          "late": 0, "own": 0.0}  # late: the exchange arrives one step late; own: a rank knows its own part at once
OURS = {**UPDATE, "b1": 0.5, "b2": 0.99, "lr": 1.5e-3}
FAMILIES = {
    "dense": {"way": "dense"},
    "bfloat16": {"way": "dense", "bits": 16},
    "ours50": {**OURS, "density": 0.005, "ahead": 0.06},
    "ours500": {**OURS, "density": 0.0005, "ahead": 0.006, "b1": 0.0, "lr": 2.4e-3},
    "control": OURS,  # ours with density 1
    "powersgd4": {"way": "powersgd", "rank": 4},
    "powersgd16": {"way": "powersgd", "rank": 16},
    "diloco": {**UPDATE, "every": 16, "outer": 0.7, "nesterov": 0.9},
    "sparseloco": {**UPDATE, "every": 16, "density": 0.02, "decay": 0.95, "chunk": 4096},
    "every16": {**UPDATE, "every": 16, "density": 0.005, "decay": 0.95},  # ours after 16 local steps
    "late": {**OURS, "density": 0.005, "ahead": 0.06, "late": 1},
    "demo": {"way": "demo", "keep": 20, "b1": 0.999},  # coefficients of each block of 64 x 64
}


# ---- the text ------------------------------------------------------------------------------------
def text():
    """All Python sources that PyTorch brings along. A hash of its name decides which text a file belongs to."""
    library, packages = sysconfig.get_paths()["stdlib"], os.path.dirname(os.path.dirname(torch.__file__))
    texts = {"learn": bytearray(), "choose": bytearray(), "report": bytearray()}
    for root, folders in ((library, [""]), (packages, ["torch", "sympy", "numpy", "networkx"])):
        for folder in folders:
            for file in sorted(glob.glob(os.path.join(root, folder, "**/*.py"), recursive=True)):
                name = os.path.relpath(file, root)
                if "-packages" not in name and os.path.isfile(file):
                    which = {0: "choose", 1: "report"}.get(zlib.crc32(name.encode()) % 40, "learn")
                    with open(file, "rb") as content:
                        texts[which] += content.read()
            if TINY:
                break
        if TINY:
            break
    about = {which: "%d bytes, crc32 %08x" % (len(content), zlib.crc32(content)) for which, content in texts.items()}
    return {which: torch.frombuffer(content, dtype=torch.uint8).to(DEVICE) for which, content in texts.items()}, about


# ---- the model -----------------------------------------------------------------------------------
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        shape = x.shape
        q, k, v = (part.view(*shape[:2], -1, 64).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(shape))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.byte, self.place = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)
        for name, p in self.named_parameters():
            if p.dim() > 1:  # what is added to the residual stream starts smaller, as in GPT-2
                nn.init.normal_(p, std=0.02 / ((2 * LAYERS)**0.5 if "out." in name or "down." in name else 1))

    def forward(self, x, target):
        x = self.byte(x) + self.place(torch.arange(CONTEXT, device=x.device))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), target.flatten())


class Machine:
    """A model whose weights and gradients are two vectors, and a CUDA graph of its forward and backward pass."""

    def __init__(self, texts):
        self.texts = texts
        with DEVICE:
            self.net = Net()
        parameters = [*self.net.parameters()]
        self.shapes, sizes = [p.shape for p in parameters], [p.numel() for p in parameters]
        self.w, self.g = (torch.zeros(sum(sizes), device=DEVICE) for _ in range(2))
        for p, w, g in zip(parameters, self.parts(self.w), self.parts(self.g)):
            p.data, p.grad = w, g
        self.loss, self.graph = torch.zeros((), device=DEVICE), None
        if CUDA:
            for block in self.net.blocks:
                block.compile(dynamic=False)

    def parts(self, vector):
        return [part.view(shape) for part, shape in zip(vector.split([math.prod(s) for s in self.shapes]), self.shapes)]

    def weights(self, seed):
        torch.manual_seed(seed)
        with DEVICE:
            return torch.cat([p.detach().flatten() for p in Net().parameters()])

    def draw(self, which, texts, seed):
        """Texts from random places, and the same texts one byte later."""
        content = self.texts[which]
        places = torch.randint(len(content) - CONTEXT, (texts, 1), generator=torch.Generator().manual_seed(seed))
        places = places.pin_memory().to(DEVICE, non_blocking=True) if CUDA else places
        block = content[places + torch.arange(CONTEXT + 1, device=DEVICE)].long()
        return block[:, :-1], block[:, 1:]

    def body(self):
        self.g.zero_()
        with torch.autocast(DEVICE.type, torch.bfloat16, cache_enabled=False):
            loss = self.net(self.x, self.y)
        loss.backward()
        self.loss.copy_(loss.detach())

    def gradient(self, texts, seed):
        """Of the mean loss of new texts at the weights w, into g; returns the loss."""
        x, y = self.draw("learn", texts, seed)
        if self.graph is None or self.x.shape != x.shape:
            self.x, self.y, self.graph = x.clone(), y.clone(), self.body
            if CUDA:
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    for _ in range(3):
                        self.body()
                torch.cuda.current_stream().wait_stream(side)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    self.body()
                self.graph = graph.replay
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph()
        return self.loss.clone()

    @torch.no_grad()
    def test(self, which, weights):
        self.w.copy_(weights)
        with torch.compiler.set_stance("force_eager"), torch.autocast(DEVICE.type, torch.bfloat16, cache_enabled=False):
            return torch.stack([self.net(*self.draw(which, 32, seed)) for seed in range(32)]).mean().item()


# ---- passes over all weights, each one kernel when compiled; numbers are tensors, so they compile once ----
def adamw(w, g, m, v, s):
    """s: rate, bias corrections, betas, factor of the gradient."""
    g = g * s[5]
    m.add_((g - m) * (1 - s[3]))
    v.add_((g * g - v) * (1 - s[4]))
    w.sub_(s[0] * ((m / s[1]) / ((v / s[2]).sqrt() + 1e-8) + 0.1 * w))


def begin(w, residual, ahead, out):
    out.copy_(w - ahead * residual)


def gather(w, residual, x, ahead, decay):
    """What a rank's local steps have changed is added to its residual."""
    residual.copy_(decay * residual + (w - ahead * residual) - x)


def send(residual, threshold, total):
    large = residual.abs() > threshold
    total.add_(torch.where(large, residual, 0.0))
    residual.copy_(torch.where(large, 0.0, residual))


if CUDA:
    adamw, begin, gather, send = (torch.compile(f, dynamic=False) for f in (adamw, begin, gather, send))


def kth(vector, k):
    """The k-th magnitude, estimated from a million elements."""
    stride = max(1, len(vector) >> 20)
    sample = vector[int(torch.randint(stride, (1,)))::stride].abs()
    return torch.topk(sample, max(1, round(k * len(sample) / len(vector))), sorted=False).values.min()


def send_chunks(residual, share, chunk, total):
    """As `send`, but the largest of each chunk."""
    whole = len(residual) // chunk * chunk
    for part, out in ((residual[:whole].view(-1, chunk), total[:whole].view(-1, chunk)),
                      (residual[whole:].view(1, -1), total[whole:].view(1, -1))):
        if part.numel() > 0:
            where = part.abs().topk(max(1, round(share * part.shape[1])), dim=1, sorted=False).indices
            out.scatter_add_(1, where, part.gather(1, where))
            part.scatter_(1, where, 0.0)


# ---- ways ----------------------------------------------------------------------------------------
class Dense:
    """Gradients are averaged, then AdamW."""

    def __init__(self, machine, o):
        self.machine, self.o, n = machine, o, len(machine.w)
        self.w, self.total, self.m, self.v = machine.weights(o["seed"]), *(torch.zeros(n, device=DEVICE) for _ in range(3))
        self.words = 0.0  # of the dense AllReduce, 1 a step

    def each_rank(self, step):
        o = self.o
        for rank in range(o["ranks"]):
            yield rank, self.machine.gradient(TEXTS // o["ranks"], (o["seed"] * 100000 + step) * o["ranks"] + rank)

    def clipped(self, gradient, s):
        if self.o["clip"]:
            s = s.clone()
            s[5] = (self.o["clip"] / (gradient.norm() + 1e-6)).clamp(max=1)
        return s

    def average(self, step):
        self.total.zero_()
        losses = []
        for _, loss in self.each_rank(step):
            losses.append(loss)
            g = self.machine.g / self.o["ranks"]
            self.total.add_(g.bfloat16() if self.o.get("bits") == 16 else g)
        self.words += 0.5 if self.o.get("bits") == 16 else 1
        return losses

    def step(self, step, s):
        self.machine.w.copy_(self.w)
        losses = self.average(step)
        adamw(self.w, self.total, self.m, self.v, self.clipped(self.total, s))
        return torch.stack(losses).mean()


class Matrices:
    """The matrices of a vector, those of the same shape in one stack."""

    def __init__(self, machine):
        places, at = {}, 0
        self.rest = torch.ones(len(machine.w), dtype=torch.bool, device=DEVICE)
        for shape in machine.shapes:
            n = math.prod(shape)
            if len(shape) == 2:
                places.setdefault(tuple(shape), []).append((at, at + n))
                self.rest[at:at + n] = False
            at += n
        self.places = places

    def stacks(self, vector):
        for shape, places in self.places.items():
            yield shape, torch.stack([vector[a:b].view(shape) for a, b in places])

    def put(self, vector, shape, stack):
        for (a, b), matrix in zip(self.places[shape], stack):
            vector[a:b].copy_(matrix.flatten())


def orthogonal(p):
    for i in range(p.shape[-1]):
        column = p[..., i:i + 1]
        column /= column.norm(dim=-2, keepdim=True) + 1e-8
        rest = p[..., i + 1:]
        rest -= column * (column * rest).sum(-2, keepdim=True)
    return p


class PowerSGD(Dense):
    """Gradients of low rank, with error feedback, after 10 dense steps."""

    def __init__(self, machine, o):
        super().__init__(machine, o)
        self.errors, self.matrices = [torch.zeros_like(self.w) for _ in range(o["ranks"])], Matrices(machine)
        self.q = {shape: torch.randn(len(places), shape[1], o["rank"], device=DEVICE)
                  for shape, places in self.matrices.places.items()}
        low = sum(len(places) * o["rank"] * sum(shape) for shape, places in self.matrices.places.items())
        self.share = (low + int(self.matrices.rest.sum())) / len(self.w)

    def average(self, step):
        if step < 10:
            return super().average(step)
        losses = []
        for rank, loss in self.each_rank(step):
            losses.append(loss)
            self.errors[rank].add_(self.machine.g)
        self.total.copy_(sum(self.errors) / len(self.errors))
        for shape in self.matrices.places:
            every = [torch.stack([e[a:b].view(shape) for a, b in self.matrices.places[shape]]) for e in self.errors]
            p = orthogonal(sum(e @ self.q[shape] for e in every) / len(every))
            self.q[shape] = sum(e.mT @ p for e in every) / len(every)
            low = p @ self.q[shape].mT
            self.matrices.put(self.total, shape, low)
            for error, matrix in zip(self.errors, every):
                self.matrices.put(error, shape, matrix - low)
        for error in self.errors:
            error.masked_fill_(self.matrices.rest, 0)
        self.words += self.share
        return losses


class DeMo(Dense):
    """Each rank keeps a momentum of gradients. Its largest cosine coefficients are averaged and leave it; the sign is applied."""

    def __init__(self, machine, o):
        super().__init__(machine, o)
        self.momenta, self.matrices = [torch.zeros_like(self.w) for _ in range(o["ranks"])], Matrices(machine)
        j = torch.arange(64, device=DEVICE, dtype=torch.float64)
        self.cosine = torch.cos(math.pi / 64 * (j + 0.5) * j[:, None]) * math.sqrt(2 / 64)
        self.cosine[0] /= math.sqrt(2)
        self.cosine = self.cosine.float()
        matrices = len(self.w) - int(self.matrices.rest.sum())
        self.share = (matrices * o["keep"] / 4096 * o["ranks"] + int(self.matrices.rest.sum())) / len(self.w)

    def turn(self, x, forth):
        """A stack of matrices to and from blocks of 64 x 64 coefficients."""
        c = self.cosine if forth else self.cosine.T
        return torch.einsum("ij,najbk,lk->naibl", c, x, c)

    def step(self, step, s):
        self.machine.w.copy_(self.w)
        losses, sums = [], {}
        self.total.zero_()
        for rank, loss in self.each_rank(step):
            losses.append(loss)
            momentum = self.momenta[rank].mul_(self.o["b1"]).add_(self.machine.g)
            for shape, stack in self.matrices.stacks(momentum):
                blocks = (-1, shape[0] // 64, 64, shape[1] // 64, 64)
                coefficients = self.turn(stack.view(blocks), True).transpose(2, 3).contiguous()
                flat = coefficients.view(*coefficients.shape[:3], 4096)
                where = flat.abs().topk(self.o["keep"], dim=-1, sorted=False).indices
                chosen = torch.zeros_like(flat).scatter_(-1, where, flat.gather(-1, where)).view_as(coefficients)
                back = self.turn(chosen.transpose(2, 3), False).reshape(stack.shape)
                sums[shape] = sums.get(shape, 0) + back
                self.matrices.put(momentum, shape, stack - back)
            self.total.add_(momentum * self.matrices.rest)
            momentum.masked_fill_(self.matrices.rest, 0)
        for shape, back in sums.items():
            self.matrices.put(self.total, shape, back)
        self.w.sub_(s[0] * (self.total.sign() + 0.1 * self.w))
        self.words += self.share
        return torch.stack(losses).mean()


class Update:
    """Each rank makes its own steps of AdamW; then what they changed is exchanged, all of it or its largest part."""

    def __init__(self, machine, o):
        self.machine, self.o, n = machine, o, len(machine.w)
        zeros = lambda: [torch.zeros(n, device=DEVICE) for _ in range(o["ranks"])]
        self.w, self.m, self.v, self.residuals = machine.weights(o["seed"]), zeros(), zeros(), zeros()
        self.x = [self.w.clone() for _ in range(o["ranks"])]  # weights of each rank
        self.total, self.velocity, self.words = torch.zeros(n, device=DEVICE), None, 0.0
        self.waiting, self.sent = None, zeros() if o["late"] else None  # what arrives one exchange late
        self.ahead, self.decay = (torch.tensor(o[name], device=DEVICE) for name in ("ahead", "decay"))

    each_rank, clipped = Dense.each_rank, Dense.clipped

    def step(self, step, s):
        losses, o = [], self.o
        self.machine.w.copy_(self.x[0])
        for rank, loss in self.each_rank(step):
            losses.append(loss)
            adamw(self.x[rank], self.machine.g, self.m[rank], self.v[rank], self.clipped(self.machine.g, s))
            if rank + 1 < o["ranks"]:
                self.machine.w.copy_(self.x[rank + 1])
        if (step + 1) % o["every"] == 0 or step + 1 == o["steps"]:
            self.exchange()
        return torch.stack(losses).mean()

    def exchange(self):
        o, n, ranks = self.o, len(self.w), self.o["ranks"]
        self.total.zero_()
        for rank, residual in enumerate(self.residuals):
            if o["late"]:  # its weights were ahead by what it had sent, too
                self.x[rank].add_(self.sent[rank], alpha=o["own"] / ranks)
                before = self.total.clone()
            gather(self.w, residual, self.x[rank], self.ahead, self.decay)
            if o["density"] == 1:
                self.total.add_(residual)
                residual.zero_()
            elif o["chunk"]:
                send_chunks(residual, o["density"], o["chunk"], self.total)
            else:
                send(residual, kth(residual, o["density"] * n), self.total)
            if o["late"]:
                torch.sub(self.total, before, out=self.sent[rank])
        self.words += 1 if o["density"] == 1 else o["density"] * ranks
        arrived = self.total
        if o["late"]:
            arrived, self.waiting = self.waiting, self.total.clone()
        if arrived is not None:
            self.apply(arrived / ranks)
        for rank, (x, residual) in enumerate(zip(self.x, self.residuals)):
            begin(self.w, residual, self.ahead, x)
            if o["late"]:
                x.sub_(self.sent[rank], alpha=o["own"] / ranks)

    def apply(self, change):
        if self.o["nesterov"]:
            self.velocity = change.clone() if self.velocity is None else self.velocity.mul_(self.o["nesterov"]).add_(change)
            change = change.add_(self.velocity, alpha=self.o["nesterov"])
        self.w.sub_(change, alpha=self.o["outer"])


WAYS = {"dense": Dense, "powersgd": PowerSGD, "demo": DeMo, "update": Update}


# ---- a run ---------------------------------------------------------------------------------------
def schedule(o):
    """For each step what adamw calls s."""
    rows = []
    for t in range(o["steps"]):
        rate = o["lr"] * min((t + 1) / o["warm"], 1 - 0.9 * t / o["steps"])
        rows.append([rate, 1 - o["b1"]**(t + 1), 1 - o["b2"]**(t + 1), o["b1"], o["b2"], 1.0, 0, 0])  # 32 bytes
    return torch.tensor(rows, device=DEVICE)


def train(machine, about, family, o):
    start = time.time()
    torch.manual_seed(o["seed"])
    way, rows, losses = WAYS[o["way"]](machine, o), schedule(o), []
    average = way.w.clone()  # of the weights, over about the last 50 steps
    for t in range(o["steps"]):
        losses.append(way.step(t, rows[t]))
        average.lerp_(way.w, 0.02)
    curve = torch.stack(losses).tolist()
    row = {"family": family, **o, "loss": sum(curve[-20:]) / len(curve[-20:]), "words": way.words / o["steps"]}
    for which in ("choose", "report"):
        row[which], row[which + " averaged"] = machine.test(which, way.w), machine.test(which, average)
    row = {name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()}
    row.update(seconds=round(time.time() - start, 1), weights=len(way.w), text=about, version=torch.__version__,
               device=torch.cuda.get_device_name() if CUDA else "CPU", curve=[round(x, 3) for x in curve[::20]])
    return row


# ---- the queue: lines of JOBS whose runs are not in LOG ------------------------------------------
def settings(line):
    """Of a line: whether it begins with `best`, its family, the family's settings, those that the line changes."""
    best, family, *words = line if line[0] == "best" else ("", *line)
    if family not in FAMILIES:
        sys.exit("no family %r; allowed: %s" % (family, ", ".join(FAMILIES)))
    o, changed = {**COMMON, **FAMILIES[family]}, {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in o:
            sys.exit("%s has no %r; allowed: %s" % (family, name, ", ".join(o)))
        changed[name] = type(o[name])(float(value))
    return best, family, o, changed


def is_try(row):
    """Of the runs that differ in settings only; `best` chooses among them."""
    return all(row[name] == COMMON[name] for name in ("seed", "steps", "ranks"))


def best_of(rows):
    """The row whose loss on the text to choose with is lowest; None if no run has come to an end."""
    ended = [row for row in rows if "failed" not in row and math.isfinite(row["choose"])]
    return min(ended, key=lambda row: row["choose"], default=None)


class Queue:
    """What is done stands in LOG, so a queue that was ended goes on. What a process is at, it has locked."""

    def __init__(self, jobs, log, about, end):
        with open(jobs) as file:
            lines = [line.split("#")[0].split() for line in file]
        self.lines = [settings(line) for line in lines if line]
        self.log, self.about, self.end, self.mine = log, about, end, None
        self.queue = open(log + ".queue", "a")

    @contextlib.contextmanager
    def alone(self):
        """No other process looks at LOG or takes a line."""
        fcntl.flock(self.queue, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self.queue, fcntl.LOCK_UN)

    def rows(self):
        """Of LOG, if they are of this text. The last line may be half, of a machine that was lost."""
        rows = []
        with open(self.log, "a+") as file:
            file.seek(0)
            for line in file:
                with contextlib.suppress(ValueError):
                    row = json.loads(line)
                    if isinstance(row, dict) and row.get("text") == self.about:
                        rows.append(row)
        return rows

    def resolve(self, at, rows):
        """The settings of line `at`. None: a run that `best` is to choose from, above it, is not done yet."""
        best, family, o, changed = self.lines[at]
        if best:
            tries = [{**o, **changed} for best, other, o, changed in self.lines[:at] if not best and other == family]
            tries = [o for o in tries if is_try(o)]
            own = [row for row in rows if row["family"] == family and is_try(row)]
            winner = best_of(own)
            if not all(any(same(row, o) for row in own) for o in tries) or winner is None:
                return None
            o = {name: winner[name] for name in o}
        return {**o, **changed}

    def take(self, patience=10):
        """Family and settings of the first line that can run now, and that would end in time; else None."""
        while True:
            with self.alone():
                rows = self.rows()
                for at, (_, family, _, _) in enumerate(self.lines):
                    o = self.resolve(at, rows)
                    if o is None and patience > 0:
                        break  # what it waits for may end in a moment, on another GPU
                    if (o is not None and not any(row["family"] == family and same(row, o) for row in rows)
                            and time.time() + expected(rows, family, o) < self.end and self.lock(family, o)):
                        return family, o
                else:
                    return None
            patience -= 1
            time.sleep(1)

    def lock(self, family, o):
        """False: another process is at this run. The lock of a process that dies is free again."""
        name = "%s.%08x" % (self.log, zlib.crc32(repr((family, o)).encode()))
        self.mine = open(name, "a")
        try:
            fcntl.flock(self.mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def done(self, row):
        """Appends it to LOG, and prints it."""
        line = json.dumps(row)
        with self.alone():
            with open(self.log, "a") as file:
                file.write(line + "\n")
            self.mine.close()
        print(line, flush=True)


def same(row, o):
    return all(row[name] == value for name, value in o.items())


def expected(rows, family, o):
    """How many seconds a run takes: as the longest of its family with as many ranks, or of any, in LOG. A tenth is its test."""
    ended = [row for row in rows if "failed" not in row]
    ended = [row for row in ended if (row["family"], row["ranks"]) == (family, o["ranks"])] or ended
    return max((row["seconds"] * (0.1 + 0.9 * o["steps"] / row["steps"]) for row in ended), default=0.07 * o["steps"])


def main():
    jobs, log, end = sys.argv[1], sys.argv[2], time.time() + float(sys.argv[3])
    if TINY:
        COMMON["steps"] = 40
    texts, about = text()
    queue = Queue(jobs, log, about, end)
    machine = Machine(texts)
    machine.gradient(TEXTS // COMMON["ranks"], 0)  # compiles
    print("begun after %.0f s, %.0f s are left" % (time.time() - end + float(sys.argv[3]), end - time.time()), flush=True)
    while (line := queue.take()) is not None:
        family, o = line
        try:
            queue.done(train(machine, about, family, o))
        except Exception as error:
            traceback.print_exc()
            queue.done({"family": family, **o, "text": about, "failed": repr(error)})
            sys.exit(3)  # the device may be of no use to this process
        if CUDA:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
