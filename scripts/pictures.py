# SPDX-License-Identifier: Apache-2.0
"""The pictures of scripts/results.py, as SVG. PICTURES, at the end, has their names, functions and files; a function takes
the rows of the files and what is to be said of an older kernel, and returns a Picture, without points where there is nothing to draw."""
import html
import math
import re
from collections import namedtuple
from functools import partial
from statistics import mean

# title: the message; what: how it was measured, in front of the machine; curves: by name, the kind and the words of the legend, the
# last in front; points: panel, name of a curve, x, y
Picture = namedtuple("Picture", "title what curves points")
# x, y: the titles of the axes; low: the lowest y, which is logarithmic where that is not 0, as x always is; line: a y, and what it is
Panel = namedtuple("Panel", "heading x y low line", defaults=[0, None])

# The colors are those of Okabe and Ito, which people with any kind of color blindness can tell apart; dashes and marks
# differ as well, for print without color.
KINDS = {
    "base": ("#A0A0A0", "", 5, ""),  # what is compared with
    "subject": ("#0072B2", "", 3, "●"),
    2: ("#D55E00", "6 4", 1.6, "■"),
    3: ("#009E73", "8 3 2 3", 1.6, "▲"),
    4: ("#CC79A7", "8 3 2 3 2 3", 1.6, "▼"),
    5: ("#E69F00", "2 3", 1.6, "◆"),
    6: ("#56B4E9", "12 3", 1.6, "□"),
    7: ("#000000", "", 1.6, "○"),
    "low": ("#606060", "2 3", 1, ""),  # bounds
    "high": ("#606060", "8 4", 1, ""),
}
CHANGED = "2026-11-24"  # when kernels were changed last: curves that were measured before say "older kernel"


def value(text):
    """None where it is no finite number that is not negative."""
    known = re.fullmatch(r"\d+(\.\d*)?([eE][-+]?\d+)?", text) and float(text) < 1e300
    return float(text) if known else None


def size(count):
    unit = next((unit for unit in (1 << 30, 1 << 20, 1 << 10) if count >= unit), 1)
    return f"{count / unit:.6g} " + {1 << 30: "GiB", 1 << 20: "MiB", 1 << 10: "KiB", 1: "B"}[unit]


def distinct(values):
    return list(dict.fromkeys(values))


def rate_of(row):
    return "wire" if "wire" in row else "busbw"


def limit_of(rows):
    """What the links can do at best: the largest limit that a program measured."""
    return max((value(row.get("limit", "")) or 0 for row in rows), default=0)


# ---- drawing -------------------------------------------------------------------------------------
def label(x, y, text, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{html.escape(text)}</text>\n'


def path(places, color="#D0D0D0", width=0.8, dashes="2 3"):
    steps = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{steps}" fill="none" stroke="{color}" stroke-width="{width}" stroke-dasharray="{dashes}"/>\n'


def curve(kind, places):
    color, dashes, width, mark = KINDS[kind]
    marks = (label(x, y + 4, mark, more=f'font-size="11" fill="{color}"') for x, y in places if mark)
    return path(places, color, width, dashes) + "".join(marks)


def draw_panel(picture, panel, left, right, top, bottom):
    points, log = [point[1:] for point in picture.points if point[0] == panel], panel.low > 0
    places = sorted({x for _, x, _ in points})
    first, last, marks = places[0] / 1.2, places[-1] * 1.2, places[:1]
    high = (2 if log else 1.1) * max(*(y for other, _, _, y in picture.points if other.y == panel.y), *(panel.line or [panel.low])[:1])
    for x in places:  # not too near to each other
        marks += [x] if math.log(x / marks[-1]) > math.log(last / first) * 35 / (right - left) else []

    def across(x):
        return left + (right - left) * math.log(x / first) / math.log(last / first)

    def up(y):
        return bottom - (bottom - top) * (math.log(y / panel.low) / math.log(high / panel.low) if log else y / high)

    text = label((left + right) / 2, top - 10, panel.heading) + label((left + right) / 2, bottom + 38, panel.x)
    text += label(0, 0, panel.y, more=f'transform="translate({left - 44:.1f} {(top + bottom) / 2:.1f}) rotate(-90)"')
    step = next(step * 10**e for e in range(-3, 9) for step in (1, 2, 5) if high / (step * 10**e) <= 7)
    for y in [part * 10**e for e in range(-3, 9) for part in ((1, 2, 5) if high < 1000 * panel.low else (1,))] if log else [step * i for i in range(8)]:
        if panel.low <= y <= high:
            text += path([(left, up(y)), (right, up(y))]) + label(left - 6, up(y) + 4, f"{y:g}", "end")
    for x in marks:
        text += path([(across(x), top), (across(x), bottom)]) + label(across(x), bottom + 18, size(x) if panel.x.startswith("bytes") else f"{x:.3g}")
    text += path([(left, top), (left, bottom), (right, bottom)], "#404040", 1, "")
    if panel.line:
        y = up(panel.line[0])
        text += path([(left, y), (right, y)], "#000000", 1.2, "12 6") + label(left + 8, y - 5, panel.line[1], "start")
    for name, (kind, _) in picture.curves.items():
        text += curve(kind, sorted((across(x), up(y)) for other, x, y in points if other == name and y >= panel.low))
    return text


def svg(picture, machine):
    """The title, in which {} are the least and the largest speedup of the last curve, and the picture."""
    speedups = [y for panel, name, _, y in picture.points if name == list(picture.curves)[-1] and panel.y == FASTER[0]]
    title = picture.title.format(f"{min(speedups):.2f}x to {max(speedups):.2f}x" if speedups else "(not measured)")
    panels, names = distinct(panel for panel, *_ in picture.points), {name for _, name, *_ in picture.points}
    legend = [entry for name, entry in picture.curves.items() if name in names]
    columns = min(4, int(740 / (60 + 7.5 * max(len(words) for _, words in legend))))
    top = 104 + 18 * -(-len(legend) // columns)
    text = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {top + 264}" font-family="sans-serif" font-size="13">\n' \
           '<rect width="100%" height="100%" fill="white"/>\n' + label(400, 24, title, more='font-size="16"')
    text += label(400, 44, picture.what, more='font-size="12"') + label(400, 60, machine, more='font-size="12"')
    for number, (kind, words) in enumerate(legend):
        x, y = 50 + number % columns * 740 / columns, 86 + number // columns * 18
        text += curve(kind, [(x, y - 4), (x + 36, y - 4)]) + label(x + 46, y, words, "start")
    for number, panel in enumerate(panels):
        left, width = number * 795 / len(panels), 795 / len(panels)
        text += draw_panel(picture, panel, left + 60, left + width - 20, top + 8, top + 218)
    return title, text + "</svg>\n"


# ---- what is in them -----------------------------------------------------------------------------
FASTER = "speedup (above 1: faster)", 0, (1, "")  # y, low and line of a panel
SPARSE = {"dense": ("base", "dense"), "gtopk": (5, "gtopk"), "topkSA": (4, "topkSA"), "gaussiank": (3, "gaussiank"), "topkAopt": (6, "topkAopt"),
          "topkA": (2, "topkA"), "oktopk entries": (7, "oktopk, without a dense result"), "paper_words_low": ("low", "oktopk, the paper's lower bound"),
          "paper_words_high": ("high", "oktopk, the paper's upper bound"), "oktopk-no-residual": (3, "oktopk, no residual"), "oktopk": ("subject", "oktopk")}


def by_size(rows, older, title, base, headings, curves):
    """A panel for each pattern in headings: speedup over the fastest of the variants in base. Without patterns the rate, too."""
    limit, points = limit_of(rows), []
    rows = {(row.get("pattern", ""), int(row["bytes"]), row["variant"]): row for row in reversed(rows) if value(row["us"]) and row["variant"] in curves}
    for (pattern, count, variant), row in ((key, row) for key, row in reversed(rows.items()) if key[0] in headings):
        times = [value(rows[pattern, count, name]["us"]) for name in base if (pattern, count, name) in rows]
        points += [(Panel(headings[pattern], "bytes per rank", *FASTER), variant, count, min(times) / value(row["us"]))] if times else []
        if not pattern:
            panel = Panel("against the link", "bytes per rank", "bus bandwidth, GB/s", 0.1, (limit, f"copy engines: {limit:.0f} GB/s") if limit else None)
            points.append((panel, variant, count, value(row["busbw"])))
    curves = {name: (kind, words.format(older=older)) for name, (kind, words) in curves.items()}
    return Picture(title, "medians of the repetitions; one process per GPU, CUDA graphs", curves, points)


def sparse_speedup(rows, older):
    rows = {(int(row["count"]), value(row["density"]), row["path"]): value(row["ratio"]) for row in reversed(rows)
            if value(row["us"]) and row["path"] in SPARSE and row["path"] != "dense"}
    densities = [key[0] for key in {key[:2] for key in rows}]
    most = max(sorted(densities), key=densities.count, default=0)  # the number of elements with most densities
    left, right = Panel("density 1 %", "elements, millions", *FASTER), Panel(f"{most / 1e6:.3g} million elements", "density, % of the elements", *FASTER)
    points = [(left, name, count / 1e6, ratio) for (count, density, name), ratio in rows.items() if density == 0.01]
    points += [(right, name, 100 * density, ratio) for (count, density, name), ratio in rows.items() if count == most]
    return Picture("Sparse AllReduce: oktopk's speedup over the fastest dense AllReduce is {}", "mean of a cycle of steps, selection included; "
                   "one process per GPU, CUDA graphs" + older, SPARSE, points)


def sparse_volume(rows, _):
    panel, rows = Panel("", "ranks (P)", "words / k, log scale", 0.8), rows if len({row["ranks"] for row in rows}) > 1 else []
    points = [(panel, name, int(row["ranks"]), value(row[column]) / value(row["k"])) for row in rows for name, column in (
        (row["path"], "words_sent"), *((column, column) for column in ("paper_words_low", "paper_words_high") if row["path"] == "oktopk"))]
    return Picture("Words sent per rank and step, divided by k (lower is better)", "k: entries that a rank offers; means over ranks and steps "
                   "(gtopk: 4 log P on the critical path); 65536 elements, density 1 %", SPARSE, points)


def training(rows, _):
    loss, accuracy = Panel("1437 training images", "epoch", "training loss", 0.01), Panel("360 held-out images", "epoch", "accuracy, %")
    points = [(panel, name, epoch, factor * mean(value(row[column]) for row in rows if (row["trained"], int(row["epoch"])) == (name, epoch)))
              for name, epoch in distinct((row["trained"], int(row["epoch"])) for row in rows)
              for panel, factor, column in ((loss, 1, "loss"), (accuracy, 100, "accuracy"))]
    return Picture("A small network, plain SGD, 4 ranks: 1 % against all of the gradient (dense)", "17226 weights; means of 10 seeds", SPARSE, points)


def link_time(rows, _):
    """Calculated from measured parts: words x 32 bits / link is the exchange, which overlap hides behind compute."""
    def step(row, link):
        exchange, compute = int(row["words"]) * 32e-6 / link, value(row["compute_ms"])
        return value(row["kernels_ms"]) + (max(compute, exchange) if row["overlap"] == "1" else compute + exchange)

    curves = {row["way"]: (kind, row["way"]) for row, kind in zip(rows, ("base", 2, "subject", 3))}
    pays = [sum(step(row, link) > step(rows[2], link) for link in range(1, 1000)) for row in rows[:2]] or "--"
    panel = Panel("", "speed of the link, Gbit/s per rank", "time of a training step, ms", 20)
    points = [(panel, row["way"], link, step(row, link)) for row in rows for link in (1, 2, 4, 10, 20, 40, 100, 200, 400)]
    return Picture("Training step: 1 % is faster than dense float32 up to {} Gbit/s, than bfloat16 up to {}".format(*pays), "calculated from "
                   "measured parts; 86 million weights; dense overlaps with all of the computation", curves, points)


PICTURES = {
    "link_time": (link_time, ["link_time.csv"]),
    "allreduce": (partial(by_size, title="Direct AllReduce: speedup {} over NCCL's faster call", base=("plain", "symmetric"),
                          headings={"": "against the faster of plain and symmetric"},
                          curves={"plain": ("base", "NCCL, plain memory"), "registered": (2, "NCCL, registered memory (run of 01)"),
                                  "symmetric": (5, "NCCL, symmetric windows (02)"), "barrier": (3, "barrier (simple/, for teaching)"),
                                  "lines": (4, "lines (simple/, for teaching)"), "direct": ("subject", "direct, lib/ of 02{older}")}),
                  ["02_allreduce_sm.mpi.graph.csv", "01_allreduce_ub.mpi.graph.csv", "03_alltoallv_sm.mpi.graph.csv"]),
    "alltoallv": (partial(by_size, title="AlltoAllV: speedup {} over NCCL's send/recv", base=("send/recv",),
                          headings={"uniform": "uniform: all parts are equal", "skew": "skew: far ranks get more than near ones"},
                          curves={"send/recv": ("base", "NCCL's send/recv"), "bare push": ("low", "stores alone, not usable{older}"),
                                  "barrier": (2, "barrier (simple/, for teaching)"), "device counts": (3, "library, device counts{older}"),
                                  "alltoallv": ("subject", "library{older}")}),
                  ["03_alltoallv_sm.mpi.graph.csv"]),
    "sparse_speedup": (sparse_speedup, ["04_sparse_allreduce.mpi.[gd]*.csv"]),
    "sparse_volume": (sparse_volume, ["04_sparse_allreduce.*.ranks*.csv"]),
    "training": (training, ["04_training.density0.01.ranks4.csv"]),
}
