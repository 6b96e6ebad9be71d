#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/bench.sh measured: as pictures, as a page of its own, in the suite's pages, and beside another time.

  scripts/results.py plot DIR      draw DIR/plots/NAME.svg, the pictures of scripts/pictures.py for which DIR has files
  scripts/results.py html DIR      write DIR/report.html: the headline, pictures, tables, provenance
  scripts/results.py pages DIR     fill the tables and pictures of the suite's pages from DIR, between lines
                                   <!-- table: FILE.csv[, only 1 KiB, 64 KiB][, without COLUMN, COLUMN] -->
                                   <!-- picture: NAME, words in its place -->     <!-- headline -->
                                   and <!-- end of ... -->; FOLDER/FILE.csv, FOLDER/NAME: of results/FOLDER
  scripts/results.py plot|pages --check DIR            write nothing; fail where pictures or pages are not those of DIR
  scripts/results.py compare OLD NEW [--percent N]     before and after an upgrade: a row for each time that is in both;
      `*`: the quartiles (or extremes) do not meet; SLOWER: by more than N percent (10); LOST: NEW has no time, since it was wrong

Exit code 0: done, no difference, nothing SLOWER or LOST; 1: otherwise; 2: usage, or a file that is not understood."""
import csv
import difflib
import glob
import html
import os
import re
import sys

sys.dont_write_bytecode = True  # no folder __pycache__ in the suite
from pictures import CHANGED, PICTURES, distinct, limit_of, rate_of, size, svg, value

TOP = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
# example, variant or path, and the row of its table
HEADLINE = [
    ("01_allreduce_ub", "registered", "256 MiB"),
    ("02_allreduce_sm", "symmetric", "256 MiB"),
    ("02_allreduce_sm", "direct", "1 KiB"),
    ("02_allreduce_sm", "direct", "256 MiB"),
    ("03_alltoallv_sm", "alltoallv", "uniform 64 KiB"),
    ("03_alltoallv_sm", "alltoallv", "uniform 256 MiB"),
    ("04_sparse_allreduce", "oktopk", "14.7 M 2 %"),
    ("04_sparse_allreduce", "oktopk", "133.5 M 1 %"),
]
RENAMED = {"own": "direct", "own allreduce": "direct allreduce", "one-shot": "barrier"}  # what older files call them


def die(message):
    print("results.py: " + re.sub(r"[\x00-\x1f]", " ", message), file=sys.stderr)
    sys.exit(2)


# ---- files ---------------------------------------------------------------------------------------
def read(path):
    with open(path, newline="") as file:
        names, *lines = list(csv.reader(file)) or [[]]
    for number, fields in enumerate(lines, 2):
        if len(fields) != len(names):
            die(f"{path}:{number}: {len(fields)} fields, the header has {len(names)}; allowed: a CSV file of --bench")
    if not lines:
        die(f"{path} has no rows; allowed: a CSV file of --bench")
    return [dict(zip(names, [RENAMED.get(field, field) for field in fields])) for fields in lines]


def found(folder, pattern):
    return sorted(glob.glob(os.path.join(glob.escape(folder), pattern)))


def rows_of(folder, pattern):
    return [row for path in found(folder, pattern) for row in read(path)]


def put(path, text, check):
    """Writes a file that is to change; with check, prints how it would change, and returns whether."""
    with open(path if os.path.isfile(path) else os.devnull) as file:
        old = file.read()
    if check:
        sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), text.splitlines(True), path, "results"))
    elif old != text:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        print(path)
    return check and old != text


def provenance(folder):
    """Lines of provenance.txt by their key."""
    with open(f"{folder}/provenance.txt") as file:
        pairs = [line.rstrip("\n").partition(": ")[::2] for line in file]
    return {key: [text for other, text in pairs if other == key] for key, _ in pairs}


def machine(folder, words="", short=False):
    """The machine in one line, with some words on how it was used; short, for a picture."""
    lines = provenance(folder)
    date = lines["date"][-1][:10]
    if "machine" in lines:  # where the hardware does not matter
        return f"{lines['machine'][0]}; {date}"
    version = {text.split()[0]: text for text in lines["version"]}
    _, gpu, driver = lines["gpu"][-1].split(", ")[:3]
    if short:
        nccl, off = re.search(r"NCCL (?:header \S+ runtime )?([\d.]+)", " ".join(lines["version"])), "NCCL_NVLS_ENABLE=0" in str(lines)
        return f"{len(lines['gpu'])} x {gpu}, {len(lines['gpu'])} ranks, NCCL {nccl[1]}, NVLS {'off' if off else 'not forbidden'}; {date}"
    environment = "".join(f" `{text}`" for text in lines.get("environment", [])) or " no NCCL_ variables set"
    words = f" {words};" if words else ""
    return f"{len(lines['gpu'])} x {gpu}, driver {driver}, {version.get('CUDA', '')}; {version.get('NCCL', '')};{words}{environment}; {date}"


# ---- tables: a head, in which ':' marks text, and rows -----------------------------------------------
def shown(form, text):
    return "-" if value(text) is None else form % value(text)


def variant_of(row):
    return row["path"] if "path" in row else row["variant"]


def label(row):
    """What is measured: a series such as the pattern, if there is one, and the size; of 04, elements and density."""
    if "path" in row:
        count = float(row["count"])
        return f"{count / 1e6:.1f} M" if count >= 100000 else f"{count:.6g}", f"{100 * float(row['density']):.6g} %"
    names = list(row)
    return (*(row[key] for key in names[:names.index("bytes")]), size(float(row["bytes"])))


def table(path, only=(), without=()):
    """A row per label and a cell per variant; of the sparse AllReduce, which has many paths, a row per path. Other
    files are shown as they are."""
    rows = read(path)
    names, sparse = list(rows[0]), "path" in rows[0]
    if not sparse and not {"bytes", "variant"} <= set(names):
        return names, [list(row.values()) for row in rows]
    base = "" if sparse else rows[0]["variant"]

    def cell(row):
        parts = ["%.0f" % value(row["us"])] if sparse else ["%.2f" % value(row["us"]), shown("%.1f", row[rate_of(row)])]
        return " / ".join(parts + [shown("%.2fx", row["ratio"])] * (variant_of(row) != base))

    unknown = {*only} - {" ".join(label(row)) for row in rows} | {*without} - {variant_of(row) for row in rows}
    if unknown:
        die(f"{path} has no '{min(unknown)}'; allowed: its rows and columns")
    rows = [row for row in rows if (not only or " ".join(label(row)) in only) and variant_of(row) not in without]
    labels, variants = distinct(map(label, rows)), distinct(map(variant_of, rows))
    cells = {(label(row), variant_of(row)): cell(row) if value(row["us"]) else "-" for row in rows}
    wrong = lambda key: str(sum(int(row["wrong"]) for row in rows if key in (label(row), variant_of(row))))
    if sparse:
        head = [":us / speedup over dense"] + [", ".join(l) for l in labels]
        return head + ["wrong"], [[v] + [cells.get((l, v), "-") for l in labels] + [wrong(v)] for v in variants]
    head = [":" + key for key in names[:names.index("bytes")]] + ["bytes"]
    head += [f"{v}: us / {rate_of(rows[0])} GB/s" + " / ratio" * (v != base) for v in variants]
    return head + ["wrong"], [[*l] + [cells.get((l, v), "") for v in variants] + [wrong(l)] for l in labels]


def headline(folder):
    limit, lines = limit_of(rows_of(folder, "*.csv")), []
    for example, variant, words in HEADLINE:
        rows = {variant_of(row): row for row in rows_of(folder, example + ".mpi.graph.csv") if " ".join(label(row)) == words and value(row["us"])}
        for row in [rows[variant]] if variant in rows else []:
            nccl = [(value(rows[name]["us"]), name) for name in ("plain", "symmetric", "send/recv") if name in rows and name != variant]
            base, name = (value(row["dense_us"]), "dense") if "path" in row else min(nccl, default=(None, "-"))
            us, rate = value(row["us"]), value(row[rate_of(row)]) if int(row.get("bytes", 0)) >= 1 << 20 else None
            lines.append([example[:2], ", ".join([variant, *label(row)]), name, *((f"{base:.2f} / {us:.2f}", f"{base / us:.2f}x") if base else ("-", "-")),
                          (f"{rate:.1f}" + f" ({100 * rate / limit:.0f} %)" * bool(limit)) if rate else "-"])
    share = f" (of the limit, {limit:.6g})" if limit else ""
    return [":example", ":what", ":baseline", "us: baseline / this", "speedup", "GB/s" + share], lines


def markdown(head, rows):
    lines = [[name.lstrip(":") for name in head], ["---" if name[0] == ":" else "---:" for name in head], *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


# ---- pictures and pages --------------------------------------------------------------------------
def pictures(folder):
    """By name, title and picture; nothing where a file is missing or has nothing to draw."""
    drawn, older = {}, " (older kernel)" * (provenance(folder)["date"][-1] < CHANGED)
    for name, (draw, patterns) in PICTURES.items():
        picture = draw([row for pattern in patterns for row in rows_of(folder, pattern)], older)
        if picture.points:
            drawn[name] = svg(picture, machine(folder, short=True))
    return drawn


def plot(folder, check):
    drawn = pictures(folder)
    failed = [name for name, (_, text) in drawn.items() if put(f"{folder}/plots/{name}.svg", text, check)]
    print("left out, because their files are not there or have nothing to draw:", ", ".join(name for name in PICTURES if name not in drawn) or "none")
    return bool(failed)


def filling(page, folder, kind, words):
    """What belongs between the lines of a marker."""
    if kind == "headline":
        return markdown(*headline(folder)) + f"\n{machine(folder, 'mpi launcher, in a CUDA graph')}; raw: `{folder}`.\n"
    words, _, without = words.partition(", without ")
    name, _, rest = words.partition(", only " if kind == "table" else ", ")
    if "/" in name:
        folder, name = "results/" + name.split("/")[0], name.split("/", 1)[1]
    path = f"{folder}/plots/{name}.svg" if kind == "picture" else f"{folder}/{name}"
    if not os.path.isfile(path):
        die(f"{page} wants {path}, which is not there; allowed: what bench.sh and results.py plot make")
    if kind == "picture":
        raw = ", ".join(f"`{folder}/{pattern}`" for pattern in PICTURES[name][1])
        return f"![{rest}]({os.path.relpath(path, os.path.dirname(page) or '.')})\n\n{machine(folder)}; raw: {raw}.\n"
    launcher = re.match(r"\d\d_[^./]+\.(mpi|pthread)\.", name)
    text = markdown(*table(path, *([word for word in words.split(", ") if word] for words in (rest, without))))
    return text + f"\n{machine(folder, launcher[1] + ' launcher' if launcher else '')}; raw: `{path}`.\n"


def pages(folder, check):
    folder, failed = os.path.relpath(folder, TOP), False
    os.chdir(TOP)
    marker = r"^(<!-- (table|picture|headline)(?:: (.+))? -->\n)(?:(?!<!-- ).*\n)*(<!-- end of \2 -->)$"
    for page in (path for pattern in ("README.md", "docs/*.md", "0*/README.md", "0*/*/*.md") for path in sorted(glob.glob(pattern))):
        with open(page) as file:
            old = file.read()
        new, count = re.subn(marker, lambda m: f"{m[1]}\n{filling(page, folder, m[2], m[3] or '')}\n{m[4]}", old, flags=re.M)
        if 2 * count != len(re.findall(r"^<!-- (?:end of )?(?:table|picture|headline)", old, re.M)):
            die(f"{page}: a table, picture or headline is not understood; allowed: the lines that --help shows")
        failed |= put(page, new, check)
    return failed


def html_page(folder):
    """What was found, the headline and the pictures first; tables are open where they are of graphs under MPI."""
    def html_table(head, rows):
        lines = [[name.lstrip(":") for name in head]] + rows
        return "<table>" + "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>\n" for line in lines) + "</table>\n"

    drawn, style = pictures(folder).values(), "body { font: 15px/1.5 sans-serif; max-width: 64em; margin: 2em auto; padding: 0 1em } " \
        "table { display: block; overflow-x: auto } td { border-bottom: 1px solid #ddd; padding: 2px 10px; white-space: nowrap; text-align: right }"
    text = "".join(f"<p><b>{html.escape(title)}</b></p>\n" for title, _ in drawn) + html_table(*headline(folder)) + "".join(text for _, text in drawn)
    for path in found(folder, "*.csv"):
        text += f"<details{' open' * path.endswith('.mpi.graph.csv')}><summary>{os.path.basename(path)}</summary>\n{html_table(*table(path))}</details>\n"
    with open(f"{folder}/provenance.txt") as file:
        text += f"<pre>{html.escape(file.read())}</pre>"
    put(f"{folder}/report.html", '<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"/><title>NCCL examples: results</title>\n'
        f"<style>{style}</style>\n<h1>NCCL examples: results</h1>\n<p>{machine(folder, short=True)}</p>\n{text}</html>\n", False)


# ---- two folders side by side --------------------------------------------------------------------
def compared(before, after, percent):
    """The times of two rows, and what is to be said of them."""
    was, now = value(before["us"]), value(after["us"])
    if not now:
        return f"{was:.2f}", "-", "-", "LOST"
    bars = [value(side.get(q, side.get(m, ""))) for side in (after, before) for q, m in (("us_q1", "us_min"), ("us_q3", "us_max"))]
    apart = None not in bars and (bars[0] > bars[3] or bars[1] < bars[2])
    return f"{was:.2f}", f"{now:.2f}", f"{now / was:.3f}x", " ".join(["*"] * apart + ["SLOWER"] * (now > was * (1 + percent / 100)))


def compare(folders, percent):
    """A row is known by its file and the columns before `us` that both files have."""
    text, marks, alone = [], [], [0, 0]
    old, new = ({os.path.basename(path): read(path) for path in found(folder, "*.csv")} for folder in folders)
    for name in (name for name in sorted(old.keys() & new.keys()) if "us" in old[name][0] and "us" in new[name][0]):
        first, second = (names[:names.index("us")] for names in (list(old[name][0]), list(new[name][0])))
        keys = [key for key in second if key in first]
        before, after = ({tuple(row[key] for key in keys): row for row in side[name]} for side in (old, new))
        lines = [(*key, *compared(before[key], after[key], percent)) for key in before if key in after and value(before[key]["us"])]
        marks += [line[-1] for line in lines]
        alone = [alone[0] + len(before.keys() - after.keys()), alone[1] + len(after.keys() - before.keys())]
        if lines:
            text += [f"\n{name}\n", markdown([*(":" + key for key in keys), "old, us", "new, us", "new/old", ":mark"], lines)]
    if not marks:
        die("no row with a time is in both folders; allowed: results of the same examples, of as many ranks")
    noise, slower, lost = (sum(word in mark for mark in marks) for word in ("*", "SLOWER", "LOST"))
    files = ", ".join(sorted(old.keys() ^ new.keys())) or "none"
    print(f"old: {machine(folders[0])}", f"new: {machine(folders[1])}", *text, f"files only in one of them: {files}", sep="\n")
    print(f"{len(marks)} rows compared, {alone[0]} of OLD not in NEW, {alone[1]} of NEW not in OLD; {noise} outside the noise, "
          f"{slower} slower by more than {percent:g} %, {lost} lost")
    return slower + lost > 0


def main():
    words, percent, check = sys.argv[1:], 10.0, False
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return 0
    if len(words) == 5 and words[0] == "compare" and words[3] == "--percent" and value(words[4]) is not None:
        percent, words = value(words[4]), words[:3]
    elif words[:2] in (["plot", "--check"], ["pages", "--check"]):
        check = words.pop(1)
    command, folders = words[0] if words else "", [os.path.normpath(folder) for folder in words[1:]]
    if command not in ("plot", "html", "pages", "compare") or len(folders) != 1 + (command == "compare"):
        die(f"'{' '.join(words)}' is not understood; allowed: plot|pages [--check] DIR, html DIR, compare OLD NEW [--percent N]")
    for folder in folders:
        if not os.path.isfile(f"{folder}/provenance.txt"):
            die(f"'{folder}' is no folder of results; allowed: DIR, with DIR/provenance.txt")
        if "stand-in" in provenance(folder):
            die(f"{folder} is a trial on the CPU stand-in, which has no times; allowed: results of GPUs")
    if command == "compare":
        return compare(folders, percent)
    return html_page(folders[0]) if command == "html" else (plot if command == "plot" else pages)(folders[0], check)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyError as missing:
        die(f"no column {missing} in a file; allowed: CSV files of --bench, provenance.txt of bench.sh")
