# SPDX-License-Identifier: Apache-2.0
"""Which entries should a rank send if parameter groups have different rates? Fine-tuning on the CPU.

    groups.py [SEEDS]      four ranks, one after the other in this process; each run appends a line to groups.jsonl

A small transformer learns Python's sources, then C++ headers that PyTorch brings along: its head with rate 4e-3, all
else with a tenth or a hundredth of that. AdamW, betas (0.5, 0.99), topkA's rule at 0.5 %, ahead 0.06. `select`:
  all        the largest of all changes, as they are
  relative   changes are compared after division by their group's rate
  group      the largest of each group, 0.5 % of each
  dense      gradients are averaged; betas (0.9, 0.95)
"""

import glob
import json
import os
import sys
import sysconfig

import torch
from torch import nn
from torch.nn import functional

CONTEXT, RANKS, TEXTS, WIDTH, DENSITY, AHEAD, HEAD = 32, 4, 4, 32, 0.005, 0.06, 4e-3
torch.set_num_threads(1)


def text(pattern, megabytes):
    content = bytearray()
    for name in sorted(glob.glob(pattern, recursive=True)):
        if len(content) < megabytes << 20:
            with open(name, "rb") as file:
                content += file.read()
    everything = torch.frombuffer(content, dtype=torch.uint8)
    return everything[:len(everything) * 9 // 10], everything[len(everything) * 9 // 10:]


def draw(content, texts, seed):
    places = torch.randint(len(content) - CONTEXT, (texts, 1), generator=torch.Generator().manual_seed(seed))
    block = content[places + torch.arange(CONTEXT + 1)].long()
    return block[:, :-1], block[:, 1:]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.byte, self.place = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, 0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head, self.mask = nn.Linear(WIDTH, 256), nn.Transformer.generate_square_subsequent_mask(CONTEXT)

    def forward(self, x, target):
        x = self.byte(x) + self.place(torch.arange(CONTEXT))
        scores = self.head(self.blocks(x, self.mask, is_causal=True))
        return functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def groups_of(net, share):
    head = [*net.head.parameters()]
    body = [p for p in net.parameters() if all(p is not q for q in head)]
    return [{"params": head, "lr": HEAD}, {"params": body, "lr": HEAD * share}]


def train(net, learn, held_out, seed, steps, share, select):
    groups = groups_of(net, share)
    params = [p for g in groups for p in g["params"]]
    sizes = [sum(p.numel() for p in g["params"]) for g in groups]
    unit = torch.cat([torch.full((n,), g["lr"] / HEAD) for n, g in zip(sizes, groups)])
    flat = lambda: torch.cat([p.detach().flatten() for p in params])

    def put(vector):
        for p, part in zip(params, vector.split([p.numel() for p in params])):
            p.data.copy_(part.view_as(p))

    def largest(acc):
        """Which entries a rank sends."""
        if select == "group":
            parts = zip(acc.abs().split(sizes), (0, sizes[0]), sizes)
            return torch.cat([part.topk(max(1, int(n * DENSITY))).indices + first for part, first, n in parts])
        return (acc / unit if select == "relative" else acc).abs().topk(int(len(acc) * DENSITY)).indices

    betas = (0.9, 0.95) if select == "dense" else (0.5, 0.99)
    optims = [torch.optim.AdamW([dict(g) for g in groups], betas=betas, weight_decay=0.1) for _ in range(RANKS)]
    rates = [[g["lr"] for g in groups] for _ in optims]
    shared, residuals, moved = flat(), torch.zeros(RANKS, sum(sizes)), torch.zeros(sum(sizes), dtype=torch.bool)
    for step in range(steps):
        total = torch.zeros_like(shared)
        for rank, optim in enumerate(optims):
            for g, rate in zip(optim.param_groups, rates[rank]):
                g["lr"] = rate * min((step + 1) / 30, 1 - 0.9 * step / steps)
            before = shared - AHEAD * residuals[rank] * (select != "dense")
            put(before)
            if select != "dense" or rank == 0:
                net.zero_grad()
            loss = net(*draw(learn, TEXTS, (seed * 10000 + step) * RANKS + rank))
            (loss / RANKS if select == "dense" else loss).backward()
            if select != "dense":
                optim.step()
                residuals[rank] += before - flat()
                chosen = largest(residuals[rank])
                total[chosen] += residuals[rank][chosen]
                residuals[rank][chosen] = 0
        if select == "dense":
            optims[0].step()
            total = (shared - flat()) * RANKS
        shared = shared - total / RANKS
        moved |= total != 0
    put(shared)
    with torch.no_grad():
        tested = torch.stack([net(*draw(held_out, 16, i)) for i in range(64)]).mean().item()
    return tested, [round(part.float().mean().item(), 4) for part in moved.split(sizes)]


def main():
    python = text(os.path.join(sysconfig.get_paths()["stdlib"], "*.py"), 4)
    headers = text(os.path.join(os.path.dirname(torch.__file__), "include/ATen/**/*.h"), 4)
    for seed in range(1, 1 + int(sys.argv[1] if len(sys.argv) > 1 else 3)):
        torch.manual_seed(seed)
        net = Net()
        train(net, *python, seed, 600, 1.0, "dense")
        learnt = {name: value.clone() for name, value in net.state_dict().items()}
        for share in (0.1, 0.01):
            for select in ("dense", "all", "relative", "group"):
                net.load_state_dict(learnt)
                tested, moved = train(net, *headers, seed + 100, 400, share, select)
                row = {"seed": seed, "share": share, "select": select, "held": round(tested, 4), "moved": moved}
                print(row, flush=True)
                with open("groups.jsonl", "a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
