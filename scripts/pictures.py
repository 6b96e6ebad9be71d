# SPDX-License-Identifier: Apache-2.0
"""The pictures of scripts/results.py, as SVG. PICTURES, at the end, has their names, functions and files; a function takes
the rows of the files and the limit of the links, and returns a Picture, without points where there is nothing to draw."""
import html
import math
import re
from collections import namedtuple
from functools import partial

# title, what: two lines above the panels; kinds: of curves, by name, the last in front; columns: panels beside each
# other; label, labels: of x, and how many at most; points: panel, name of a curve, x, y, and if known y's quartiles and extremes
Picture = namedtuple("Picture", "title what kinds columns label labels points")
# low, high, log: the axis of y; that of x is always logarithmic. line: nothing, or a y and what it is
Panel = namedtuple("Panel", "title low high log line")

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
    "bound": ("#000000", "6 4", 1, ""),
}


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


# ---- drawing -------------------------------------------------------------------------------------
def label(x, y, text, anchor="middle", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{html.escape(text)}</text>\n'


def path(places, color, width=1.0, dashes=""):
    steps = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{steps}" fill="none" stroke="{color}" stroke-width="{width}" stroke-dasharray="{dashes}"/>\n'


def curve(kind, places):
    """Places: x, y, and y of quartiles and extremes."""
    color, dashes, width, mark = KINDS[kind]
    text = path([place[:2] for place in places], color, width, dashes)
    for x, y, *spread in places if mark else []:
        text += path([(x, at) for at in spread[:2]], color) if spread else ""
        text += "".join(f'<circle cx="{x:.1f}" cy="{at:.1f}" r="1.5" fill="{color}"/>\n' for at in spread[2:])
        text += label(x, y + 4, mark, more=f'font-size="11" fill="{color}"')
    return text


def draw_panel(picture, panel, curves, left, right, top, bottom):
    places = sorted({x for points in curves.values() for x, *_ in points})
    first, last, marks = places[0] / 1.3, places[-1] * 1.3, places[:1]
    for x in places:  # not too near to each other
        marks += [x] if x >= marks[-1] * max(1.01, (places[-1] / places[0]) ** (1 / picture.labels)) else []

    def across(x):
        return left + (right - left) * math.log(x / first) / math.log(last / first)

    def up(y):
        part = math.log(y / panel.low) / math.log(panel.high / panel.low) if panel.log else (y - panel.low) / (panel.high - panel.low)
        return bottom - (bottom - top) * part

    text = label((left + right) / 2, top - 12, panel.title)
    step = next(step * 10**e for e in range(-3, 9) for step in (1, 2, 5) if (panel.high - panel.low) / (step * 10**e) <= 7)
    for y in [10**e for e in range(-3, 9)] if panel.log else [step * i for i in range(1 + int(panel.high / step))]:
        if panel.low <= y <= panel.high:
            text += path([(left, up(y)), (right, up(y))], "#D0D0D0", 0.8, "2 3") + label(left - 6, up(y) + 4, f"{y:g}", "end")
    for x in marks:
        text += path([(across(x), top), (across(x), bottom)], "#D0D0D0", 0.8, "2 3") + label(across(x), bottom + 18, picture.label(x))
    text += path([(left, top), (left, bottom), (right, bottom)], "#404040")
    if panel.line:
        y = up(panel.line[0])
        text += path([(left, y), (right, y)], "#000000", 1.2, "12 6") + label(left + 8, y - 5, panel.line[1], "start")
    for name in (name for name in picture.kinds if name in curves):
        points = [[across(x), *map(up, ys)] for x, *ys in sorted(curves[name]) if ys[0] >= panel.low]
        text += curve(picture.kinds[name], points)
    return text


def svg(picture):
    panels = {}
    for panel, name, *point in picture.points:
        panels.setdefault(panel, {}).setdefault(name, []).append(point)
    names = [name for name in picture.kinds if name in {name for _, name, *_ in picture.points}]
    columns, top = picture.columns, 74 + 18 * -(-len(names) // 4)
    text = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {top + 230 * -(-len(panels) // columns)}" font-family="sans-serif" ' \
           'font-size="13">\n<rect width="100%" height="100%" fill="white"/>\n'
    text += label(400, 24, picture.title, more='font-size="15"') + label(400, 44, picture.what, more='font-size="12"')
    for number, name in enumerate(names):
        x, y = 40 + number % 4 * 190, 66 + number // 4 * 18
        text += curve(picture.kinds[name], [(x, y - 4), (x + 36, y - 4)]) + label(x + 46, y, name, "start")
    for number, panel in enumerate(panels):
        left, y = number % columns * 790 / columns, top + number // columns * 230
        text += draw_panel(picture, panel, panels[panel], left + 45, left + 790 / columns - 8, y + 20, y + 195)
    return text + "</svg>\n"


# ---- what is in them -----------------------------------------------------------------------------
def spread(row, column):
    """A column that goes with 1/us, with its quartiles and extremes."""
    quartiles = [row.get("us_q3", row["us"]), row.get("us_q1", row["us"])]  # older files have none
    return [value(row[column]) * value(row["us"]) / value(us) for us in (row["us"], *quartiles, row["us_max"], row["us_min"])]


def by_size(rows, limit, title, what, kinds):
    """Panels, one for each pattern: speedup over the first of the kinds; then the rate."""
    rows, points = [row for row in rows if value(row["us"]) and row["variant"] in kinds], []
    for column in ("ratio", rate_of(rows[0])) if rows else ():
        name = {"ratio": "speedup", "busbw": "bus bandwidth, GB/s", "wire": "GB/s"}[column]
        line = (limit, f"limit: {limit:.0f} GB/s") if limit and column != "ratio" else None
        top = 1.15 * limit if line else 1.1 * max(value(row[column]) for row in rows)
        points += [(Panel(f"{row.get('pattern', '')} {name}", 0, top, False, line), row["variant"], int(row["bytes"]), *spread(row, column))
                   for row in rows]
    return Picture(title, what, kinds, max(2, len({row.get("pattern") for row in rows})), size, 2, points)


def sparse_speedup(rows, _):
    kinds = {"topkAopt": 6, "gtopk": 5, "topkSA": 4, "gaussiank": 3, "topkA": 2, "oktopk entries": 7, "oktopk": "subject"}
    rows = [row for row in rows if value(row["us"]) and row["path"] in kinds and int(row["count"]) > 1 << 20]
    rows = {(int(row["count"]), row["path"], row["density"]): row for row in rows}  # measured twice: the later time
    top = 1.1 * max((value(row["ratio"]) for row in rows.values()), default=0)
    points = [(Panel(f"{count / 1e6:.4g} million elements", 0, top, False, (1, "dense")), name, float(density), *spread(rows[count, name, density], "ratio"))
              for count, name, density in sorted(rows)]
    return Picture("Sparse AllReduce: speedup over dense AllReduce", "against the density in %: the part of the elements that is to be selected",
                   kinds, 3, lambda density: f"{100 * density:g}", 6, points)


def sparse_volume(rows, _):
    kinds, points = {"paper: lower bound": "bound", "paper: upper bound": "bound", "sent": "subject"}, []
    for row in rows if len({row["ranks"] for row in rows}) > 1 else []:
        panel, ranks, k = Panel(row["path"], 0.8, 300, True, None), int(row["ranks"]), value(row["k"])
        for name, column in zip(kinds, ("paper_words_low", "paper_words_high", "words_sent")):
            points.append((panel, name, ranks, value(row[column]) / k))
    what = "words sent / k, against the number of ranks, and the paper's closed forms; all axes are the same"
    return Picture("Words that a rank sends per element to be selected", what, kinds, 3, str, 6, points)


def training(rows, _):
    kinds, points, seeds = {"dense": "base", "topkA": 2, "oktopk-no-residual": 3, "oktopk": "subject"}, [], {}
    loss, accuracy = Panel("loss of the images to learn from", 0.01, 3, True, None), Panel("accuracy on 360 other images, %", 50, 95, False, None)
    for row in rows:
        seeds.setdefault((row["trained"], int(row["epoch"])), []).append(row)
    for (name, epoch), some in seeds.items():
        points += [(panel, name, epoch, sum(factor * value(row[column]) for row in some) / len(some))
                   for panel, factor, column in ((loss, 1, "loss"), (accuracy, 100, "accuracy"))]
    return Picture("Sending 1 % of the gradient trains as well as sending all of it, if the rest is kept", "against the epoch, means of 10 "
                   "seeds, 4 ranks", kinds, 2, str, 6, points)


def link_time(rows, _):
    """Calculated from measured parts: words x 32 bits / link is the exchange, which overlap hides behind compute."""
    def step(row, link):
        exchange, compute = int(row["words"]) * 32e-6 / link, value(row["compute_ms"])
        return value(row["kernels_ms"]) + (max(compute, exchange) if row["overlap"] == "1" else compute + exchange)

    dense = [row for row in rows if row["overlap"] == "1"]
    equal = [(int(dense[0]["words"]) - int(row["words"])) * 32e-6 / (value(row["compute_ms"]) + value(row["kernels_ms"]))
             for row in rows if row not in dense]
    crossing = f"as fast as {rows[0]['way'] if rows else ''}: {', '.join(f'{link:.0f}' for link in equal)} Gbit/s"
    kinds, panel = dict(zip([*(row["way"] for row in rows), crossing], ("base", 2, "subject", 3, 7))), Panel("ms a step", 20, 4000, True, None)
    links = sorted({1, 2, 4, 10, 20, 40, 100, 200, 400, *equal})
    points = [(panel, row["way"], link, step(row, link)) for row in rows for link in links]
    points += [(panel, crossing, link, step(dense[0], link)) for link in equal]
    return Picture("Time of a training step: sending all weights, or 1 % or 0.1 % of their changes", "against the speed of the link in "
                   "Gbit/s: calculated from measured parts; 86 million weights, 2 ranks", kinds, 1, lambda link: f"{link:.3g}", 7, points)


PICTURES = {
    "link_time": (link_time, ["link_time.csv"]),
    "allreduce": (partial(by_size, title="AllReduce: speedup over plain, and bus bandwidth",
                          what="plain, registered and symmetric are NCCL's AllReduce by the memory of its buffers",
                          kinds={"plain": "base", "registered": 2, "barrier": 3, "lines": 4, "symmetric": 5, "direct": "subject"}),
                  ["02_allreduce_sm.mpi.graph.csv", "01_allreduce_ub.mpi.graph.csv"]),
    "alltoallv": (partial(by_size, title="AlltoAllV by pattern", what="above: speedup over send/recv; below: wire bandwidth",
                          kinds={"send/recv": "base", "bare push": 4, "device counts": 3, "barrier": 2, "alltoallv": "subject"}),
                  ["03_alltoallv_sm.mpi.graph.csv"]),
    "sparse_speedup": (sparse_speedup, ["04_sparse_allreduce.mpi.[gd]*.csv"]),
    "sparse_volume": (sparse_volume, ["04_sparse_allreduce.*.ranks*.csv"]),
    "training": (training, ["04_training.density0.01.ranks4.csv"]),
}
