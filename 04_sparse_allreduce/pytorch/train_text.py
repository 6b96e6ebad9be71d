# SPDX-License-Identifier: Apache-2.0
"""A transformer learns to predict the next byte of Python's own library sources, with
DistributedDataParallel's plain all-reduce and with sparse allreduces, from the same weights and on the
same text.

    torchrun --standalone --nproc-per-node 2 train_text.py [--ways dense,oktopk] [--csv loss.csv]

A way is dense, local (nothing is exchanged: what the exchange costs is the difference), or an algorithm
of the library; -warmup after it: with some dense steps first; -drop: with nonfinite="drop", so that the
host never waits. Without GPUs the model is small, and the library's CPU stand-in exchanges. The last line
of a good run:

    All ranks had the same weights in the end
"""

import argparse
import csv
import glob
import os
import statistics
import sys
import sysconfig
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from sparse_allreduce_torch import SparseAllreduceState, sparse_allreduce_hook

CUDA = torch.cuda.is_available()


def options():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--ways", default="dense,oktopk,oktopk-warmup,oktopk-drop,local", help="separated by commas")
    parser.add_argument("--density", type=float, default=0.01, help="of the gradient that a rank offers")
    parser.add_argument("--preset", default="bert", help="constants of the sparse allreduce")
    parser.add_argument("--exchange", default="auto", help="auto, sendrecv or onesided")
    parser.add_argument("--steps", type=int, default=300 if CUDA else 10)
    parser.add_argument("--timed-steps", type=int, default=60, help="of local and -drop, which are there for times")
    parser.add_argument("--warmup", type=int, default=50, help="dense steps of -warmup")
    parser.add_argument("--layers", type=int, default=12 if CUDA else 2)
    parser.add_argument("--width", type=int, default=768 if CUDA else 64)
    parser.add_argument("--context", type=int, default=512 if CUDA else 64, help="bytes that a prediction sees")
    parser.add_argument("--batch", type=int, default=32 if CUDA else 4, help="texts of a rank in a step")
    parser.add_argument("--rate", type=float, default=6e-4, help="largest learning rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--optimizer", default="adamw", choices=("adamw", "momentum", "sgd"))
    parser.add_argument("--csv", help="loss and times of each step")
    parser.add_argument("--library", help="libsparse_allreduce.so")
    return parser.parse_args()


# ---- the text ------------------------------------------------------------------------------------
def text(megabytes=16):
    """Bytes to learn from, and bytes that are held out: the last twentieth."""
    names = sorted(glob.glob(os.path.join(sysconfig.get_paths()["stdlib"], "**/*.py"), recursive=True))
    names = [name for name in names if "-packages" not in name]
    content = bytearray()
    for name in names:
        with open(name, "rb") as file:
            content += file.read()
        if len(content) >= megabytes << 20:
            break
    everything = torch.frombuffer(content, dtype=torch.uint8)
    cut = len(everything) * 19 // 20
    return everything[:cut].to(DEVICE), everything[cut:].to(DEVICE)


def draw(content, batch, context, seed):
    """Texts from random places, and the same texts one byte later."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.randint(len(content) - context, (batch, 1), generator=generator)
    block = content[(places + torch.arange(context + 1)).to(DEVICE)].long()
    return block[:, :-1], block[:, 1:]


# ---- the model -----------------------------------------------------------------------------------
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = width // 64
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, layers, width, context):
        super().__init__()
        self.byte, self.place = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)
        for name, p in self.named_parameters():
            if p.dim() > 1:  # what is added to the residual stream begins smaller, as in GPT-2
                nn.init.normal_(p, std=0.02 / ((2 * layers)**0.5 if "out." in name or "down." in name else 1))

    def forward(self, x, target):
        x = self.byte(x) + self.place(torch.arange(x.shape[1], device=x.device))
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits.float().flatten(0, 1), target.flatten())


# ---- training ------------------------------------------------------------------------------------
class Clock:
    """Times on the device, without waiting for it."""

    def __init__(self):
        self.marks = []

    def mark(self):
        if CUDA:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.monotonic())

    def milliseconds(self, stride=1):
        """From each mark to the next one; with stride 2, of pairs of marks."""
        pairs = zip(self.marks[::stride], self.marks[1::stride])
        return [a.elapsed_time(b) if CUDA else 1000 * (b - a) for a, b in pairs]


def train(way, o, learn, held_out):
    torch.manual_seed(o.seed)
    with DEVICE:
        net = Transformer(o.layers, o.width, o.context)
    algorithm, *extras = way.split("-")
    sparse = algorithm not in ("dense", "local")
    # nothing runs beside a sparse exchange, so one bucket is enough; dense ones run beside the backward pass
    model = DistributedDataParallel(net, device_ids=[DEVICE] if CUDA else None,
                                    bucket_cap_mb=4096 if sparse else None, gradient_as_bucket_view=True)
    steps, exchanges, state = Clock(), Clock(), None
    if sparse:
        state = SparseAllreduceState(model, preset=o.preset, algorithm=algorithm, density=o.density,
                                     warmup_steps=o.warmup if "warmup" in extras else 0, exchange=o.exchange,
                                     nonfinite="drop" if "drop" in extras else "skip", library=o.library)

        def timed(state, bucket):
            if bucket.index() == 0:
                exchanges.mark()
            future = sparse_allreduce_hook(state, bucket)
            if bucket.is_last():
                exchanges.mark()
            return future

        model.register_comm_hook(state, timed)
    if o.optimizer == "adamw":
        optimizer = torch.optim.AdamW(net.parameters(), lr=o.rate, betas=(0.9, 0.95), weight_decay=0.1, fused=CUDA)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=o.rate, momentum=0.9 if o.optimizer == "momentum" else 0)
    losses = []
    steps.mark()
    for step in range(min(o.steps, o.timed_steps) if way == "local" or "drop" in extras else o.steps):
        for group in optimizer.param_groups:
            group["lr"] = o.rate * min((step + 1) / 30, 1 - 0.9 * step / o.steps)
        x, y = draw(learn, o.batch, o.context, (o.seed * 100000 + step) * dist.get_world_size() + RANK)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            if way == "local":
                with model.no_sync():
                    loss = model(x, y)
            else:
                loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        steps.mark()
    if CUDA:
        torch.cuda.synchronize()
    if state is not None:
        state.close()
    with torch.no_grad(), torch.autocast(DEVICE.type, torch.bfloat16):
        tests = torch.stack([net(*draw(held_out, o.batch, o.context, seed)) for seed in range(16)]).mean()
    return model, mean_of_ranks(torch.stack(losses)), float(tests), steps.milliseconds(), exchanges.milliseconds(2)


def mean_of_ranks(values):
    dist.all_reduce(values)
    return (values / dist.get_world_size()).tolist()


def same_on_all_ranks(model):
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    first = mine.clone()
    dist.broadcast(first, 0)
    differ = torch.tensor(int(not torch.equal(mine.view(torch.int32), first.view(torch.int32))), device=DEVICE)
    dist.all_reduce(differ)
    return int(differ) == 0


def main():
    o = options()
    learn, held_out = text()
    rows, good = [], True
    say = print if RANK == 0 else lambda *_, **__: None
    with torch.device("meta"):
        count = sum(p.numel() for p in Transformer(o.layers, o.width, o.context).parameters())
    say("%d ranks, %.1f million weights, %d steps of %d bytes, density %g" %
        (dist.get_world_size(), count / 1e6, o.steps, dist.get_world_size() * o.batch * o.context, o.density))
    say("%-16s %8s %10s %12s %14s %12s" % ("way", "loss", "held out", "step, ms", "exchange, ms", "bytes/s"))
    for way in o.ways.split(","):
        model, losses, tested, times, exchanges = train(way, o, learn, held_out)
        if way != "local" and not same_on_all_ranks(model):
            good = False
            print("rank %d: %s: weights differ between ranks" % (RANK, way), file=sys.stderr)
        # sparse steps when everything is warm; times wander over a run, so those of the same age for all ways
        first = o.warmup if "warmup" in way else 0
        window = slice(first + o.timed_steps // 3, first + o.timed_steps)
        step_ms = statistics.median(times[window] or times)
        exchange_ms = "%.3f" % statistics.median(exchanges[window] or exchanges) if exchanges else "-"
        learnt = ("%.4f" % statistics.mean(losses[-20:]), "%.4f" % tested) if len(losses) == o.steps else ("-", "-")
        say("%-16s %8s %10s %12.2f %14s %12.0f" %
            (way, *learnt, step_ms, exchange_ms,
             dist.get_world_size() * o.batch * o.context / step_ms * 1000), flush=True)
        for step, loss in enumerate(losses):
            rows.append((way, dist.get_world_size(), count, o.density, step + 1, "%.5f" % loss, "%.3f" % times[step],
                         "%.3f" % exchanges[step] if exchanges else ""))
    if o.csv and RANK == 0:
        with open(o.csv, "w", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow("way ranks weights density step loss step_ms exchange_ms".split())
            table.writerows(rows)
    if good:
        say("All ranks had the same weights in the end")
    return 0 if good else 1


if __name__ == "__main__":
    DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if CUDA else torch.device("cpu")
    if CUDA:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl" if CUDA else "gloo", device_id=DEVICE if CUDA else None)
    RANK = dist.get_rank()
    result = main()
    dist.destroy_process_group()
    sys.exit(result)
