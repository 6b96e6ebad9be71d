# SPDX-License-Identifier: Apache-2.0
"""The pictures of scripts/results.py, as SVG. PICTURES, at the end, has their names, functions and files: a function
takes the rows of the files and returns a Picture, without points where there is nothing to draw."""
import html
import math
import re
from collections import namedtuple
from functools import partial

# title: the message, in which {} are the least and the largest speedup of the last curve; what: how it was measured;
# curves: by name, the kind and the words of the legend, the last in front; points: panel, name of a curve, x, y
Picture = namedtuple("Picture", "title what curves points")
# x, y: the titles of the axes, which are logarithmic; line: a y, and what it is
Panel = namedtuple("Panel", "heading x y line", defaults=[None])

# The colors are those of Okabe and Ito, which people with any kind of color blindness can tell apart; dashes and marks
# differ as well, for print without color.
KINDS = {
    # what is compared with
    "base": ("#A0A0A0", "", 5, ""),
    "subject": ("#0072B2", "", 3, "●"),
    2: ("#D55E00", "6 4", 1.6, "■"),
    3: ("#009E73", "8 3 2 3", 1.6, "▲"),
    4: ("#CC79A7", "8 3 2 3 2 3", 1.6, "▼"),
    5: ("#E69F00", "2 3", 1.6, "◆"),
    6: ("#56B4E9", "12 3", 1.6, "□"),
    7: ("#000000", "", 1.6, "○"),
    # bounds
    "low": ("#606060", "2 3", 1, ""),
    "high": ("#606060", "8 4", 1, ""),
}
FASTER = "speedup (above 1: faster)"


def value(text):
    """None where it is no finite number that is not negative: no time, because a result was wrong."""
    known = re.fullmatch(r"\d+(\.\d*)?([eE][-+]?\d+)?", text) and float(text) < 1e300
    return float(text) if known else None


def size(count):
    power = next(power for power in (3, 2, 1, 0) if count >= 1024**power or not power)
    return f"{count / 1024**power:.6g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def distinct(values):
    return list(dict.fromkeys(values))


# ---- drawing -----------------------------------------------------------------------------------------------
def label(x, y, text, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{html.escape(text)}</text>\n'


def path(places, color="#D0D0D0", width=0.8, dashes="2 3"):
    steps = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    style = f'fill="none" stroke="{color}" stroke-width="{width}" stroke-dasharray="{dashes}"'
    return f'<polyline points="{steps}" {style}/>\n'


def curve(kind, places):
    color, dashes, width, mark = KINDS[kind]
    marks = (label(x, y + 4, mark, more=f'font-size="11" fill="{color}"') for x, y in places if mark)
    return path(places, color, width, dashes) + "".join(marks)


def scale(least, most, start, end):
    """Where a value is drawn, on an axis from start to end with a little room on both sides."""
    low, high = math.log(least / 1.15), math.log(most * 1.15)
    return lambda number: start + (end - start) * (math.log(number) - low) / (high - low)


def draw_panel(picture, panel, left, right, top, bottom):
    points = [point[1:] for point in picture.points if point[0] == panel]
    xs = sorted({x for _, x, _ in points})
    ys = [y for other, _, _, y in picture.points if other.y == panel.y] + [panel.line[0] for _ in points if panel.line]
    least, most = min(ys), max(ys)
    across, up = scale(xs[0], xs[-1], left, right), scale(least, most, bottom, top)
    text = label((left + right) / 2, top - 10, panel.heading) + label((left + right) / 2, bottom + 38, panel.x)
    text += label(0, 0, panel.y, more=f'transform="translate({left - 44:.1f} {(top + bottom) / 2:.1f}) rotate(-90)"')
    for y in (part * 10.0**e for e in range(-3, 9) for part in ((1, 2, 3, 5) if most < 300 * least else (1,))):
        if least <= y <= most:
            text += path([(left, up(y)), (right, up(y))]) + label(left - 6, up(y) + 4, f"{y:g}", "end")
    free = left
    for x in (x for x in xs if across(x) >= free):  # a mark needs some room
        free = across(x) + 35
        text += path([(across(x), top), (across(x), bottom)])
        text += label(across(x), bottom + 18, size(x) if panel.x.startswith("bytes") else f"{x:.3g}")
    text += path([(left, top), (left, bottom), (right, bottom)], "#404040", 1, "")
    if panel.line:
        y, words = up(panel.line[0]), panel.line[1]
        text += path([(left, y), (right, y)], "#000000", 1.2, "12 6") + label(left + 8, y + 16, words, "start")
    for name, (kind, _) in picture.curves.items():
        text += curve(kind, sorted((across(x), up(y)) for other, x, y in points if other == name))
    return text


def svg(picture, machine):
    """The title and the picture."""
    # one rank's bandwidth is 0
    picture = picture._replace(points=[point for point in picture.points if point[3]])
    last = list(picture.curves)[-1]
    speedups = [y for panel, name, _, y in picture.points if name == last and panel.y == FASTER]
    title = picture.title.format(f"{min(speedups):.2f}x to {max(speedups):.2f}x" if speedups else "(not measured)")
    panels, names = distinct(panel for panel, *_ in picture.points), {name for _, name, *_ in picture.points}
    legend = [entry for name, entry in picture.curves.items() if name in names]
    top = 104 + 18 * -(-len(legend) // 3)
    text = label(400, 24, title, more='font-size="16"')
    text += label(400, 44, picture.what, more='font-size="12"') + label(400, 60, machine, more='font-size="12"')
    for number, (kind, words) in enumerate(legend):
        x, y = 40 + number % 3 * 255, 86 + number // 3 * 18
        text += curve(kind, [(x, y - 4), (x + 36, y - 4)]) + label(x + 46, y, words, "start")
    width = 795 / len(panels)
    for number, panel in enumerate(panels):
        text += draw_panel(picture, panel, number * width + 60, (number + 1) * width - 20, top + 8, top + 218)
    box = f'viewBox="0 0 800 {top + 264}" font-family="sans-serif" font-size="13"'
    ground = '<rect width="100%" height="100%" fill="white"/>'
    return title, f'<svg xmlns="http://www.w3.org/2000/svg" {box}>\n{ground}\n{text}</svg>\n'


# ---- what is in them ---------------------------------------------------------------------------------------
SPARSE = {
    "dense": ("base", "dense"), "gtopk": (5, "gtopk"), "topkSA": (4, "topkSA"), "gaussiank": (3, "gaussiank"),
    "topkAopt": (6, "topkAopt"), "topkA": (2, "topkA"), "oktopk entries": (7, "oktopk, without a dense result"),
    "paper_words_low": ("low", "oktopk, paper's lower bound"),
    "paper_words_high": ("high", "oktopk, paper's upper bound"), "oktopk": ("subject", "oktopk"),
}


def by_size(rows, title, base, headings, curves):
    """A panel for each pattern in headings: speedup over the fastest of `base`. Without patterns the rate, too."""
    limit, points = max((value(row.get("limit", "")) or 0 for row in rows), default=0), []
    rows = {(row.get("pattern", ""), int(row["bytes"]), row["variant"]): row
            for row in reversed(rows) if value(row["us"]) and row["variant"] in curves}
    for heading, pattern, count, variant in ((headings[key[0]], *key) for key in reversed(rows) if key[0] in headings):
        row = rows[pattern, count, variant]
        times = [value(rows[pattern, count, name]["us"]) for name in base if (pattern, count, name) in rows]
        if times:
            panel = Panel(heading, "bytes per rank", FASTER, (1, ""))
            points.append((panel, variant, count, min(times) / value(row["us"])))
        if not pattern:
            line = (limit, f"copy engines: {limit:.0f} GB/s") if limit else None
            panel = Panel("against the link", "bytes per rank", "bus bandwidth, GB/s", line)
            points.append((panel, variant, count, value(row["busbw"])))
    return Picture(title, "medians of the repetitions; one process per GPU, CUDA graphs", curves, points)


def sparse_speedup(rows):
    rows = {(int(row["count"]), value(row["density"]), row["variant"]): value(row["ratio"]) for row in reversed(rows)
            if value(row["us"]) and row["variant"] in SPARSE and row["variant"] != "dense"}
    densities = sorted(count for count, _ in {key[:2] for key in rows})
    # the number of elements with most densities
    most = max(densities, key=densities.count, default=0)
    left = Panel("density 1 %", "elements, millions", FASTER, (1, ""))
    right = Panel(f"{most / 1e6:.3g} million elements", "density, % of the elements", FASTER, (1, ""))
    points = [(left, name, count / 1e6, ratio) for (count, density, name), ratio in rows.items() if density == 0.01]
    points += [(right, name, 100 * density, ratio) for (count, density, name), ratio in rows.items() if count == most]
    return Picture("Sparse AllReduce: oktopk's speedup over the fastest dense AllReduce is {}",
                   "mean of a cycle of steps, selection included; one process per GPU, CUDA graphs", SPARSE, points)


def sparse_volume(rows):
    panel, points = Panel("", "ranks (P)", "words / k"), []
    for row in rows if len({row["ranks"] for row in rows}) > 1 else []:
        bounds = ("paper_words_low", "paper_words_high") if row["variant"] == "oktopk" else ()
        for name, column in ((row["variant"], "words_sent"), *zip(bounds, bounds)):
            points.append((panel, name, int(row["ranks"]), value(row[column]) / value(row["k"])))
    what = ("k: entries that a rank offers; means over ranks and steps "
            "(gtopk: 4 log P on the critical path); 65536 elements, density 1 %")
    return Picture("Words sent per rank and step, divided by k (lower is better)", what, SPARSE, points)


def link_time(rows):
    """Calculated from measured parts: words x 32 bits / link is the exchange, which overlap hides behind compute."""
    def step(row, link):
        exchange, compute = int(row["words"]) * 32e-6 / link, value(row["compute_ms"])
        both = max(compute, exchange) if row["overlap"] == "1" else compute + exchange
        return value(row["kernels_ms"]) + both

    curves = {row["way"]: (kind, row["way"]) for row, kind in zip(rows, ("base", 2, "subject", 3))}
    pays = [sum(step(row, link) > step(rows[2], link) for link in range(1, 1000)) for row in rows[:2]] or "--"
    panel = Panel("", "speed of the link, Gbit/s per rank", "time of a training step, ms")
    links = (1, 2, 4, 10, 20, 40, 100, 200, 400)
    points = [(panel, row["way"], link, step(row, link)) for row in rows for link in links]
    title = "Training step: 1 % is faster than dense float32 up to {} Gbit/s, than bfloat16 up to {}".format(*pays)
    what = "calculated from measured parts; 86 million weights; dense overlaps with all of the computation"
    return Picture(title, what, curves, points)


allreduce = partial(
    by_size,
    title="Direct AllReduce: speedup {} over NCCL's faster call",
    base=("plain", "symmetric"),
    headings={"": "against the faster of plain and symmetric"},
    curves={
        "plain": ("base", "NCCL, plain memory"), "registered": (2, "NCCL, registered (run of 01)"),
        "symmetric": (5, "NCCL, symmetric windows (02)"), "barrier": (3, "barrier (simple/, for teaching)"),
        "lines": (4, "lines (simple/, for teaching)"), "direct": ("subject", "direct, lib/ of 02"),
    },
)
alltoallv = partial(
    by_size,
    title="AlltoAllV: speedup {} over NCCL's send/recv",
    base=("send/recv",),
    headings={"uniform": "uniform: all parts are equal", "skew": "skew: far ranks get more than near ones"},
    curves={
        "send/recv": ("base", "NCCL's send/recv"), "bare push": ("low", "stores alone, not usable"),
        "barrier": (2, "barrier (simple/, for teaching)"), "device counts": (3, "library, device counts"),
        "alltoallv": ("subject", "library"),
    },
)
GRAPHS = ".mpi.graph.csv"
PICTURES = {
    "link_time": (link_time, ["link_time.csv"]),
    "allreduce": (allreduce, [name + GRAPHS for name in ("02_allreduce_sm", "01_allreduce_ub", "03_alltoallv_sm")]),
    "alltoallv": (alltoallv, ["03_alltoallv_sm" + GRAPHS]),
    "sparse_speedup": (sparse_speedup, ["04_sparse_allreduce.mpi.[gd]*.csv"]),
    "sparse_volume": (sparse_volume, ["04_sparse_allreduce.*.ranks*.csv"]),
}
