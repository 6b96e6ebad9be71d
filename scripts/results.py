#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/bench.sh measured: as pictures, as a page of its own, in the suite's pages, and beside another time.

  scripts/results.py plot DIR      draw DIR/plots/NAME.svg, the pictures of scripts/pictures.py for which DIR has files
  scripts/results.py html DIR      write DIR/report.html: pictures, tables, provenance
  scripts/results.py pages DIR     fill the tables of the suite's pages from DIR, between lines
                                   <!-- table: FILE.csv[, only 1 KiB, 64 KiB][, without COLUMN, COLUMN] -->
                                   and <!-- end of table -->; FOLDER/FILE.csv: of results/FOLDER
  scripts/results.py plot|html|pages --check DIR       write nothing; fail where they are not those of DIR
  scripts/results.py compare OLD NEW [--percent N]     before and after an upgrade: a row for each time that is in both;
      `*`: the quartiles (or extremes) do not meet; SLOWER: by more than N percent (10); LOST: NEW has no time, since it
      was wrong

Exit code 0: done, no difference, nothing SLOWER or LOST; 1: otherwise; 2: usage, or a file that is not understood or
cannot be written."""
import csv
import difflib
import glob
import html
import os
import re
import sys

# no folder __pycache__ in the suite
sys.dont_write_bytecode = True
from pictures import PICTURES, distinct, size, svg, value

TOP = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def die(message):
    print("results.py: " + re.sub(r"[\x00-\x1f]", " ", message), file=sys.stderr)
    sys.exit(2)


# ---- files -------------------------------------------------------------------------------------------------
def read(path):
    if not os.path.isfile(path):  # a pipe, for example, would be waited for
        die(f"{path} is no file; allowed: a CSV file of --bench")
    with open(path, newline="") as file:
        names, *lines = [*csv.reader(file)] or [[]]
    # the variants of 04
    names = ["variant" if name == "path" else name for name in names]
    for number, fields in enumerate(lines, 2):
        if len(fields) != len(names):
            die(f"{path}:{number}: {len(fields)} fields, the header has {len(names)}; allowed: a CSV file of --bench")
    if not lines:
        die(f"{path} has no rows; allowed: a CSV file of --bench")
    return [dict(zip(names, fields)) for fields in lines]


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


def machine(folder):
    """The machine in one line."""
    lines = provenance(folder)
    date = lines["date"][-1].split("T")[0]
    if "machine" in lines:  # where the hardware does not matter
        return f"{lines['machine'][0]}; {date}"
    _, gpu, driver = lines["gpu"][-1].split(", ")[:3]
    versions = re.findall(r"(\w+) header .*?, runtime ([\d.]+)", "\n".join(lines["version"]))
    words = ", ".join(f"{name} {version}" for name, version in [("driver", driver), *versions])
    nvls = "off" if "NCCL_NVLS_ENABLE=0" in lines.get("environment", []) else "not forbidden"
    return f"{len(lines['gpu'])} x {gpu}, {words}, NVLS {nvls}; {date}"


# ---- tables: a head, in which ':' marks text, and rows -----------------------------------------------------
def shown(text, form):
    return "-" if value(text) is None else form % value(text)


def label(row):
    """What is measured: a series such as the pattern, if there is one, and the size; of 04, elements and density."""
    if "density" in row:
        count = float(row["count"])
        return f"{count / 1e6:.1f} M" if count >= 100000 else f"{count:.6g}", f"{100 * float(row['density']):.6g} %"
    names = list(row)
    return (*(row[key] for key in names[:names.index("bytes")]), size(int(row["bytes"])))


def table(path, only=(), without=()):
    """A row per label and a cell per variant; of the sparse AllReduce, which has many paths, a row per path. Other
    files are shown as they are."""
    rows = read(path)
    names, sparse = list(rows[0]), {"density", "variant"} <= set(rows[0])
    if not sparse and not {"bytes", "variant"} <= set(names):
        return names, [list(row.values()) for row in rows]
    base, rate = "" if sparse else rows[0]["variant"], "wire" if "wire" in names else "busbw"

    def cell(row):
        parts = [shown(row["us"], "%.0f")] if sparse else [shown(row["us"], "%.2f"), shown(row[rate], "%.1f")]
        parts += [shown(row["ratio"], "%.2fx")] if row["variant"] != base else []
        return " / ".join(parts) if value(row["us"]) else "-"

    def wrong(key):
        return str(sum(int(row["wrong"]) for row in rows if key in (label(row), row["variant"])))

    unknown = {*only} - {" ".join(label(row)) for row in rows} | {*without} - {row["variant"] for row in rows}
    if unknown:
        die(f"{path} has no '{min(unknown)}'; allowed: its rows and columns")
    rows = [row for row in rows if (not only or " ".join(label(row)) in only) and row["variant"] not in without]
    labels, variants = distinct(map(label, rows)), distinct(row["variant"] for row in rows)
    cells = {(label(row), row["variant"]): cell(row) for row in rows}
    if sparse:
        head = [":us / speedup over dense", *(", ".join(l) for l in labels), "wrong"]
        return head, [[v, *(cells.get((l, v), "-") for l in labels), wrong(v)] for v in variants]
    head = [":" + key for key in names[:names.index("bytes")]] + ["bytes"]
    head += [f"{v}: us / {rate} GB/s" + " / ratio" * (v != base) for v in variants] + ["wrong"]
    return head, [[*l, *(cells.get((l, v), "") for v in variants), wrong(l)] for l in labels]


def markdown(head, rows):
    marks = ["---" if name[0] == ":" else "---:" for name in head]
    return "".join("| " + " | ".join(line) + " |\n" for line in [[name.lstrip(":") for name in head], marks, *rows])


# ---- pictures and pages ------------------------------------------------------------------------------------
def pictures(folder):
    """By name, title and picture; nothing where a file is missing or has nothing to draw."""
    drawn = {}
    for name, (draw, patterns) in PICTURES.items():
        picture = draw([row for pattern in patterns for row in rows_of(folder, pattern)])
        if picture.points:
            drawn[name] = svg(picture, machine(folder))
    return drawn


def plot(folder, check):
    drawn = pictures(folder)
    failed = [name for name, (_, text) in drawn.items() if put(f"{folder}/plots/{name}.svg", text, check)]
    missing = ", ".join(name for name in PICTURES if name not in drawn) or "none"
    print("left out, because their files are not there or have nothing to draw:", missing)
    return bool(failed)


def pages(folder, check):
    folder, failed = os.path.relpath(folder, TOP), False
    os.chdir(TOP)

    def filled(match):
        words, _, without = match[2].partition(", without ")
        name, _, only = words.partition(", only ")
        path = f"results/{name}" if "/" in name else f"{folder}/{name}"
        if not os.path.isfile(path):
            die(f"{page} wants {path}, which is not there; allowed: what bench.sh makes")
        lists = ([word for word in words.split(", ") if word] for words in (only, without))
        raw = f"{machine('/'.join(path.split('/')[:2]))}; raw: `{path}`."
        return f"{match[1]}\n{markdown(*table(path, *lists))}\n{raw}\n\n{match[3]}"

    patterns = ("README.md", "docs/*.md", "0*/README.md", "0*/*/*.md")
    for page in (path for pattern in patterns for path in sorted(glob.glob(pattern))):
        with open(page) as file:
            old = file.read()
        marker = r"^(<!-- table: (.+) -->\n)(?:(?!<!-- ).*\n)*(<!-- end of table -->)$"
        new, count = re.subn(marker, filled, old, flags=re.M)
        if 2 * count != len(re.findall(r"^<!-- (?:end of )?table", old, re.M)):
            die(f"{page}: a table is not understood; allowed: the lines that --help shows")
        failed |= put(page, new, check)
    return failed


STYLE = """body { font: 15px/1.5 sans-serif; max-width: 64em; margin: 2em auto; padding: 0 1em }
table { display: block; overflow-x: auto }
td { border-bottom: 1px solid #ddd; padding: 2px 10px; white-space: nowrap; text-align: right }"""


def html_table(head, rows):
    lines = ("".join(f"<td>{html.escape(cell.lstrip(':'))}</td>" for cell in line) for line in [head, *rows])
    return "<table>" + "".join(f"<tr>{line}</tr>\n" for line in lines) + "</table>\n"


def html_page(folder, check):
    """What was measured on what, what was found, the pictures; then, to be opened, tables and provenance."""
    drawn, files = pictures(folder).values(), found(folder, "*.csv")
    text = "".join(f"<p><b>{html.escape(title)}</b></p>\n" for title, _ in drawn)
    text += "".join(picture for _, picture in drawn)
    parts = [(os.path.basename(path), html_table(*table(path))) for path in files]
    with open(f"{folder}/provenance.txt") as file:
        parts.append(("provenance.txt", f"<pre>{html.escape(file.read())}</pre>"))
    text += "".join(f"<details><summary>{name}</summary>\n{part}</details>\n" for name, part in parts)
    title = "NCCL examples: results"
    head = f'<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"/><title>{title}</title>\n<style>{STYLE}</style>\n'
    what = ", ".join(name[:-4] for name, _ in parts[:-1])
    head += f"<h1>{title}</h1>\n<p>Measured on {html.escape(machine(folder))}:</p>\n<p>{what}</p>\n"
    return put(f"{folder}/report.html", head + text + "</html>\n", check)


# ---- two folders side by side ------------------------------------------------------------------------------
def compared(before, after, percent):
    """The times of two rows, and what is to be said of them."""
    was, now = value(before["us"]), value(after["us"])
    if not now:
        return f"{was:.2f}", "-", "-", "LOST"
    quartiles = ("us_q1", "us_min"), ("us_q3", "us_max")
    bars = [value(row.get(q, row.get(other, ""))) for row in (after, before) for q, other in quartiles]
    apart = None not in bars and (bars[0] > bars[3] or bars[1] < bars[2])
    mark = ["*"] * apart + ["SLOWER"] * (now > was * (1 + percent / 100))
    return f"{was:.2f}", f"{now:.2f}", f"{now / was:.3f}x", " ".join(mark)


def compare(folders, percent):
    """A row is known by its file and the columns before `us` that both files have."""
    text, marks = [], []
    old, new = ({os.path.basename(path): read(path) for path in found(folder, "*.csv")} for folder in folders)
    for name in (name for name in sorted(old.keys() & new.keys()) if "us" in old[name][0] and "us" in new[name][0]):
        first, second = (list(side[name][0]) for side in (old, new))
        keys = [key for key in second[:second.index("us")] if key in first[:first.index("us")]]
        before, after = ({tuple(row[key] for key in keys): row for row in side[name]} for side in (old, new))
        both = [key for key in before if key in after and value(before[key]["us"])]
        lines = [(*key, *compared(before[key], after[key], percent)) for key in both]
        marks += [line[-1] for line in lines]
        head = [*(":" + key for key in keys), "old, us", "new, us", "new/old", ":mark"]
        text += [f"\n{name}\n", markdown(head, lines)] if lines else []
    if not marks:
        die("no row with a time is in both folders; allowed: results of the same examples, of as many ranks")
    noise, slower, lost = (sum(word in mark for mark in marks) for word in ("*", "SLOWER", "LOST"))
    print(f"old: {machine(folders[0])}", f"new: {machine(folders[1])}", *text, sep="\n")
    print(f"{len(marks)} rows in both: {noise} outside the noise, "
          f"{slower} slower by more than {percent:g} %, {lost} lost")
    return slower + lost > 0


def main():
    words, percent, check = sys.argv[1:], 10.0, "--check" in sys.argv
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return 0
    if words[-2:-1] == ["--percent"]:
        percent = value(words[-1])
        del words[-2:]
    command, *folders = [word for word in words if word != "--check"] or [""]
    folders = [os.path.normpath(folder) for folder in folders]
    commands = {"plot": plot, "html": html_page, "pages": pages, "compare": compare}
    if command not in commands or len(folders) != 1 + (command == "compare") or percent is None:
        die(f"'{' '.join(sys.argv[1:])}' is not understood; allowed: "
            "plot|html|pages [--check] DIR, compare OLD NEW [--percent N]")
    for folder in folders:
        if not os.path.isfile(f"{folder}/provenance.txt"):
            die(f"'{folder}' is no folder of results; allowed: DIR, with DIR/provenance.txt")
        if "stand-in" in provenance(folder):
            die(f"{folder} is a trial on the CPU stand-in, which has no times; allowed: results of GPUs")
    if command == "compare":
        return compare(folders, percent)
    return commands[command](folders[0], check)


if __name__ == "__main__":
    try:
        code = main()
        print(end="", flush=True)
    except OSError as problem:
        # what cannot be written, Python would try to write again
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        die(f"a file cannot be read or written: {problem}")
    except Exception as problem:  # whatever the files are: exit code 1 would mean SLOWER
        die(f"not understood: {problem!r}; allowed: CSV files of --bench, provenance.txt of bench.sh")
    sys.exit(code)
