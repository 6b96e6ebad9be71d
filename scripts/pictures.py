# SPDX-License-Identifier: Apache-2.0
"""The pictures of scripts/results.py, as SVG. PICTURES, at the end, has their names, functions and files; a function takes
the rows of the files and the limit of the links, and returns a Picture, or None where there is nothing to draw."""
import html
import math
import re
from collections import namedtuple

# message: what the picture says; what: what is shown; key: names and kinds of curves
Picture = namedtuple("Picture", "message what key panels columns")
# x: the marks, pairs of a label and a place on a logarithmic axis, which goes from the first to the last; y: low, high, logarithmic;
# curves: name, kind, points; limit: a value of y. A point is x, y and, if known, y's quartiles and extremes.
Panel = namedtuple("Panel", "title x y curves limit")

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
    "band": ("#000000", "", 1, ""),  # between two bounds
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


def path(places, color, width=1.0, dashes="", fill="none"):
    steps = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{steps}" fill="{fill}" stroke="{color}" stroke-width="{width}" stroke-dasharray="{dashes}"/>\n'


def curve(kind, places):
    """Places: x, y, and y of quartiles and extremes."""
    color, dashes, width, mark = KINDS[kind]
    if kind == "band":
        lower, upper = ([(place[0], place[i]) for place in places] for i in (1, 2))
        return path(lower + upper[::-1], "none", fill="#D8D8D8") + path(lower, color) + path(upper, color)
    text = path([place[:2] for place in places], color, width, dashes)
    for x, y, *spread in places if mark else []:
        text += path([(x, at) for at in spread[:2]], color) if spread else ""
        text += "".join(f'<circle cx="{x:.1f}" cy="{at:.1f}" r="1.5" fill="{color}"/>\n' for at in spread[2:])
        text += label(x, y + 4, mark, more=f'font-size="11" fill="{color}"')
    return text


def draw_panel(panel, left, right, top, bottom):
    (low, high, logarithmic), (first, last) = panel.y, (panel.x[0][1] / 1.3, panel.x[-1][1] * 1.3)

    def across(x):
        return left + (right - left) * math.log(x / first) / math.log(last / first)

    def up(y):
        part = math.log(y / low) / math.log(high / low) if logarithmic else (y - low) / (high - low)
        return bottom - (bottom - top) * part

    text = label((left + right) / 2, top - 12, panel.title)
    step = next(step * 10**e for e in range(-3, 9) for step in (1, 2, 5) if (high - low) / (step * 10**e) <= 7)
    marks = [10**e for e in range(-3, 9)] if logarithmic else [step * i for i in range(1 + int(high / step))]
    for y in (y for y in marks if low <= y <= high):
        text += path([(left, up(y)), (right, up(y))], "#D0D0D0", 0.8, "2 3") + label(left - 6, up(y) + 4, f"{y:g}", "end")
    for name, x in panel.x:
        text += path([(across(x), top), (across(x), bottom)], "#D0D0D0", 0.8, "2 3") + label(across(x), bottom + 18, name)
    text += path([(left, top), (left, bottom), (right, bottom)], "#404040")
    if panel.limit:
        text += path([(left, up(panel.limit)), (right, up(panel.limit))], "#000000", 1.2, "12 6")
        text += label(left + 8, up(panel.limit) - 5, f"limit: {panel.limit:.0f} GB/s", "start")
    for _, kind, points in panel.curves:
        text += curve(kind, [[across(x), *map(up, ys)] for x, *ys in points if ys[0] >= low])
    return text


def svg(picture):
    rows, below_key = -(-len(picture.panels) // picture.columns), 74 + 18 * -(-len(picture.key) // 4)
    text = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {below_key + 230 * rows}" font-family="sans-serif" font-size="13">\n'
    text += '<rect width="100%" height="100%" fill="white"/>\n'
    text += label(400, 24, picture.message, more='font-size="15"') + label(400, 44, picture.what, more='font-size="12"')
    for number, (name, kind) in enumerate(picture.key):
        x, y = 40 + number % 4 * 190, 66 + number // 4 * 18
        ys = (y - 10, y) if kind == "band" else (y - 4,)
        text += curve(kind, [(x, *ys), (x + 36, *ys)]) + label(x + 46, y, name, "start")
    for number, panel in enumerate(picture.panels):
        left, top = number % picture.columns * 790 / picture.columns, below_key + number // picture.columns * 230
        text += draw_panel(panel, left + 45, left + 790 / picture.columns - 8, top + 20, top + 195)
    return text + "</svg>\n"


# ---- what is in them -----------------------------------------------------------------------------
def curves(kinds, rows, name_of, point):
    """Of rows, a curve for each of the kinds by name, the last in front."""
    points = {name: sorted(point(row) for row in rows if row[name_of] == name) for name in kinds}
    return [(name, kind, points[name]) for name, kind in kinds.items() if points[name]]


def key(kinds, panels):
    present = {name for panel in panels for name, _, _ in panel.curves}
    return [(name, kind) for name, kind in kinds.items() if name in present]


def spread(row, column):
    """The value of a column that goes with 1/us, its quartiles and extremes."""
    quartiles = [row.get("us_q3", row["us"]), row.get("us_q1", row["us"])]  # older files have none
    return [value(row[column]) * value(row["us"]) / value(us) for us in (row["us"], *quartiles, row["us_max"], row["us_min"])]


def by_size(rows, limit, name, kinds, what, titles):
    """First times as fast as the first of the kinds, then the rate; a panel of each for each pattern."""
    rows = [row for row in rows if value(row["us"]) and row["variant"] in kinds]
    present = [kind for kind in kinds if kind in {row["variant"] for row in rows}]
    if len(present) < 2:
        return None
    base, subject, panels = present[0], present[-1], []
    sizes = sorted({int(row["bytes"]) for row in rows if row["variant"] == subject})
    patterns = distinct(row.get("pattern", "") for row in rows)
    for title, column in zip(titles, ("ratio", rate_of(rows[0]))):
        line = 0 if column == "ratio" else limit
        top = 1.15 * line or 1.1 * max(value(row[column]) for row in rows)
        for pattern in patterns:
            mine = [row for row in rows if row.get("pattern", "") == pattern]
            marks = [(size(at), at) for at in sizes[::max(1, len(sizes) // 2)]]
            panels.append(Panel(f"{pattern} {title}", marks, (0, top, False),
                                curves(kinds, mine, "variant", lambda row: [int(row["bytes"]), *spread(row, column)]), line))

    def gain(at):
        gains = [value(row["ratio"]) for row in rows if (row["variant"], int(row["bytes"])) == (subject, at)]
        return " to ".join(distinct((f"{min(gains):.1f}", f"{max(gains):.1f}"))) + " times"

    message = f"{name}: {subject} is {gain(sizes[0])} as fast as {base} at {size(sizes[0])}, {gain(sizes[-1])} at {size(sizes[-1])}"
    return Picture(message, what, key(kinds, panels), panels, max(2, len(patterns)))


def allreduce(rows, limit):
    kinds = {"plain": "base", "registered": 2, "barrier": 3, "lines": 4, "symmetric": 5, "direct": "subject"}
    return by_size(rows, limit, "AllReduce", kinds, "plain, registered and symmetric are NCCL's AllReduce by the memory of its "
                   "buffers", ("times as fast as plain", "bus bandwidth, GB/s"))


def alltoallv(rows, limit):
    kinds = {"send/recv": "base", "bare push": 4, "device counts": 3, "barrier": 2, "alltoallv": "subject"}
    return by_size(rows, limit, "AlltoAllV", kinds, "above: times as fast as send/recv; below: wire bandwidth, GB/s",
                   ("times as fast", "GB/s"))


def sparse_speedup(rows, _):
    kinds = {"topkAopt": 6, "gtopk": 5, "topkSA": 4, "gaussiank": 3, "topkA": 2, "oktopk entries": 7, "oktopk": "subject"}
    rows = [row for row in rows if value(row["us"]) and row["path"] in kinds]
    if "oktopk" not in {row["path"] for row in rows}:
        return None
    rows = list({(row["path"], row["count"], row["density"]): row for row in rows}.values()) # measured twice: the later time
    top, panels = max(value(row["ratio"]) for row in rows), []
    for count in sorted({int(row["count"]) for row in rows})[-3:]:
        mine = [row for row in rows if int(row["count"]) == count]
        marks = [(f"{100 * density:g}", density) for density in sorted({float(row["density"]) for row in mine})]
        dense = ("dense", "base", [(marks[0][1] / 1.3, 1), (marks[-1][1] * 1.3, 1)])
        panels.append(Panel(f"{count / 1e6:.4g} million elements", marks, (0, 1.1 * top, False),
                            [dense] + curves(kinds, mine, "path", lambda row: [float(row["density"]), *spread(row, "ratio")]), 0))
    best = max(value(row["ratio"]) for row in rows if row["path"] == "oktopk")
    return Picture(f"A step of oktopk is up to {best:.1f} times as fast as dense AllReduce", "times as fast as dense, against the "
                   "density in %: the part of the elements that is to be selected", key({"dense": "base", **kinds}, panels), panels, 3)


def sparse_volume(rows, _):
    ranks, panels, message = sorted({int(row["ranks"]) for row in rows}), [], []
    if len(ranks) < 2:
        return None
    for name in ("dense", "topkA", "gaussiank", "gtopk", "topkSA", "oktopk"):
        mine = [row for row in rows if row["path"] == name]
        sent, low, high = ([value(row[column]) / value(row["k"]) for row in mine] for column in ("words_sent", "paper_words_low", "paper_words_high"))
        at = [int(row["ranks"]) for row in mine]
        panels.append(Panel(name, [(str(n), n) for n in ranks if n & (n - 1) == 0], (0.8, 300, True),
                            [("paper", "band", list(zip(at, low, high)))] + [("sent", "subject", [point]) for point in zip(at, sent)], 0))
        message += [f"{name} {sent[-1]:.0f}"] if name in ("dense", "topkA", "oktopk") else []
    return Picture(f"Words that one of {ranks[-1]} ranks sends per element to be selected: {', '.join(message)}", "words sent / k, against the "
                   "number of ranks, and the paper's closed forms; all axes are the same",
                   [("sent", "subject"), ("in the paper, if there are bounds, from one to the other", "band")], panels, 3)


def training(rows, _):
    kinds, panels = {"dense": "base", "topkA": 2, "oktopk-no-residual": 3, "oktopk": "subject"}, []
    for title, column, factor, y in (("loss of the images to learn from", "loss", 1, (0.01, 3, True)),
                                     ("accuracy on 360 other images, %", "accuracy", 100, (50, 95, False))):
        seeds = {}
        for row in rows:
            seeds.setdefault((row["trained"], int(row["epoch"])), []).append(factor * value(row[column]))
        means = [{"trained": name, "point": [epoch, sum(some) / len(some)]} for (name, epoch), some in seeds.items()]
        marks = [(str(epoch), epoch) for epoch in sorted({epoch for _, epoch in seeds}) if epoch in (1, 2, 5, 10, 20)]
        panels.append(Panel(title, marks, y, curves(kinds, means, "trained", lambda row: row["point"]), 0))
    return Picture("Sending 1 % of the gradient trains as well as sending all of it, if the rest is kept", "against the epoch, means of 10 "
                   "seeds, 4 ranks", key(kinds, panels), panels, 2) if rows else None


PICTURES = {
    "allreduce": (allreduce, ["02_allreduce_sm.mpi.graph.csv", "01_allreduce_ub.mpi.graph.csv"]),
    "alltoallv": (alltoallv, ["03_alltoallv_sm.mpi.graph.csv"]),
    "sparse_speedup": (sparse_speedup, ["04_sparse_allreduce.mpi.[gd]*.csv"]),
    "sparse_volume": (sparse_volume, ["04_sparse_allreduce.*.ranks*.csv"]),
    "training": (training, ["04_training.density0.01.ranks4.csv"]),
}
