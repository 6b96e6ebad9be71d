# SPDX-License-Identifier: Apache-2.0
"""A transformer learns to predict the next byte of Python's own library sources, in several ways, from the
same weights and on the same text:

    torchrun --standalone --nproc-per-node 2 train_text.py [--ways ddp,sparse]

A way is ddp (PyTorch's DistributedDataParallel) or sparse (SparseUpdateOptimizer), then arguments of it and of
AdamW that differ from the default: ddp+rate=1e-3, sparse+density=0.0005+rate=2.4e-3+momentum=0. Without GPUs the
model is small, and the library's CPU stand-in exchanges. The last line of a good run is:

    All ranks had the same weights in the end
"""

import argparse
import contextlib
import glob
import json
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

from sparse_update_optimizer import SparseUpdateOptimizer

CUDA = torch.cuda.is_available()
# bytes that a prediction sees; texts of all ranks in a step
CONTEXT, BATCH = (512, 64) if CUDA else (64, 8)


def options():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    ways = "ddp,sparse,sparse+density=0.0005+rate=2.4e-3+momentum=0"
    parser.add_argument("--ways", default=ways, help="separated by commas")
    parser.add_argument("--steps", type=int, default=300 if CUDA else 10)
    parser.add_argument("--layers", type=int, default=12 if CUDA else 2)
    parser.add_argument("--width", type=int, default=768 if CUDA else 64)
    return parser.parse_args()


# ---- the text ------------------------------------------------------------------------------------
def text(megabytes=16):
    """Bytes to learn from, and bytes that are held out: the last twentieth."""
    content = bytearray()
    for name in sorted(glob.glob(os.path.join(sysconfig.get_paths()["stdlib"], "**/*.py"), recursive=True)):
        if "-packages" not in name and len(content) < megabytes << 20:
            with open(name, "rb") as file:
                content += file.read()
    everything = torch.frombuffer(content, dtype=torch.uint8).to(DEVICE)
    cut = len(everything) * 19 // 20
    return everything[:cut], everything[cut:]


def draw(content, batch, seed):
    """Texts from random places, and the same texts one byte later."""
    places = torch.randint(len(content) - CONTEXT, (batch, 1), generator=torch.Generator().manual_seed(seed))
    block = content[(places + torch.arange(CONTEXT + 1)).to(DEVICE)].long()
    return block[:, :-1], block[:, 1:]


# ---- the model -----------------------------------------------------------------------------------
class Transformer(nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        self.byte, self.place = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        block = nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head, self.mask = nn.Linear(width, 256), nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        for name, p in self.named_parameters():
            # what is added to the residual stream starts smaller, as in GPT-2
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02 / ((2 * layers)**0.5 if "out_proj" in name or "linear2" in name else 1))

    def forward(self, x, target):
        x = self.byte(x) + self.place(torch.arange(CONTEXT, device=x.device))
        scores = self.head(self.blocks(x, self.mask, is_causal=True))
        return functional.cross_entropy(scores.float().flatten(0, 1), target.flatten())


# ---- training ------------------------------------------------------------------------------------
def train(way, o, learn, held_out):
    torch.manual_seed(1)
    with DEVICE:
        net = Transformer(o.layers, o.width)
    kind, *words = way.split("+")
    ddp, ranks = {"ddp": True, "sparse": False}[kind], dist.get_world_size()
    model = DistributedDataParallel(net) if ddp else net
    numbers = {"rate": 6e-4, "momentum": 0.9} if ddp else {"rate": 1e-3, "momentum": 0.5}
    numbers.update((name, json.loads(value)) for name, value in (word.split("=") for word in words))
    betas = float(numbers.pop("momentum")), 0.95 if ddp else 0.99
    optimizer = torch.optim.AdamW(net.parameters(), lr=numbers.pop("rate"), betas=betas, weight_decay=0.1)
    if not ddp:
        optimizer = SparseUpdateOptimizer(optimizer, **numbers)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) / 30, 1 - 0.9 * n / o.steps))
    losses, times = [], [time.monotonic()]
    for step in range(o.steps):
        x, y = draw(learn, BATCH // ranks, (100000 + step) * ranks + RANK)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.detach())
        if CUDA:
            torch.cuda.synchronize()
        times.append(time.monotonic())
    with contextlib.nullcontext() if ddp else optimizer.shared_weights():
        with torch.no_grad(), torch.autocast(DEVICE.type, torch.bfloat16):
            tests = torch.stack([net(*draw(held_out, 32, seed)) for seed in range(16)]).mean()
        mine = torch.cat([p.detach().flatten() for p in net.parameters()])
    if not ddp:
        optimizer.close()
    losses, theirs = torch.stack(losses), [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_reduce(losses)
    dist.all_gather(theirs, mine)
    same = all(torch.equal(weights.view(torch.int32), mine.view(torch.int32)) for weights in theirs)
    return (losses / ranks).tolist(), tests.item(), [1000 * (b - a) for a, b in zip(times, times[1:])], same


def main():
    o = options()
    (learn, held_out), good = text(), True
    say = (lambda line: print(line, flush=True)) if RANK == 0 else lambda line: None
    say("%-24s %10s %8s %10s %12s" % ("way", "first loss", "loss", "held out", "step, ms"))
    for way in o.ways.split(","):
        losses, tested, times, same = train(way, o, learn, held_out)
        good = good and same
        say("%-24s %10.4f %8.4f %10.4f %12.2f" %
            (way, losses[0], statistics.mean(losses[-20:]), tested, statistics.median(times)))
    say("All ranks had the same weights in the end" if good else "Weights differ between ranks")
    return 0 if good else 1


if __name__ == "__main__":
    DEVICE = torch.device("cpu")
    if CUDA:
        DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl" if CUDA else "gloo", device_id=DEVICE if CUDA else None)
    RANK = dist.get_rank()
    result = main()
    dist.destroy_process_group()
    sys.exit(result)
