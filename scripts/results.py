#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/bench.sh measured: as pictures, as a page of its own, in the suite's pages, and beside another time.

  scripts/results.py plot DIR      draw DIR/plots/NAME.svg and write NAME.dat for each scripts/plots/NAME.gnuplot, as
                                   scripts/plots/style explains; needs gnuplot. What DIR has no files for is left out
  scripts/results.py html DIR      write DIR/report.html: the headline, pictures, tables, provenance
  scripts/results.py pages DIR     fill the tables and pictures of the suite's pages from DIR, between lines
                                   <!-- table: FILE.csv[, only 1 KiB, 64 KiB][, without COLUMN, COLUMN] -->
                                   <!-- picture: NAME, words in its place -->     <!-- headline -->
                                   and <!-- end of ... -->; FOLDER/FILE.csv, FOLDER/NAME: of results/FOLDER
  scripts/results.py plot|pages --check DIR            write nothing; fail where data or pages are not those of DIR
  scripts/results.py compare OLD NEW [--percent N]     before and after an upgrade: a row for each time that is in both;
      `*`: the quartiles (or extremes) do not meet; SLOWER: by more than N percent (10); LOST: NEW has no time, since it was wrong

Exit code 0: done, no difference, nothing SLOWER or LOST; 1: otherwise; 2: usage, or a file that is not understood."""
import base64
import csv
import difflib
import glob
import html
import os
import re
import shutil
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
PLOTS = os.path.join(TOP, "scripts/plots")
# file, variant, bytes, and series; of the sparse AllReduce file, path, elements and density
HEADLINE = [
    ("01_allreduce_ub.mpi.graph.csv", "registered", 268435456, ""),
    ("02_allreduce_sm.mpi.graph.csv", "symmetric", 268435456, ""),
    ("02_allreduce_sm.mpi.graph.csv", "direct", 1024, ""),
    ("02_allreduce_sm.mpi.graph.csv", "direct", 268435456, ""),
    ("03_alltoallv_sm.mpi.graph.csv", "alltoallv", 65536, "uniform"),
    ("03_alltoallv_sm.mpi.graph.csv", "alltoallv", 268435456, "uniform"),
    ("04_sparse_allreduce.mpi.graph.csv", "oktopk", 14728266, "0.02"),
    ("04_sparse_allreduce.mpi.graph.csv", "oktopk", 133547324, "0.01"),
]
RENAMED = {"own": "direct", "own allreduce": "direct allreduce", "one-shot": "barrier"}  # what older files call them


def die(message):
    print("results.py: " + re.sub(r"[\x00-\x1f]", " ", message), file=sys.stderr)
    sys.exit(2)


# ---- files ---------------------------------------------------------------------------------------
class Row(dict):
    """A row of a CSV file, by the names of its columns."""

    def __missing__(self, name):
        die(f"no column {name} in a file that has {', '.join(self)}; allowed: a CSV file of --bench")


def read(path):
    """The rows of a CSV file, and the names of its columns."""
    with open(path, newline="") as file:
        names, *lines = list(csv.reader(file)) or [[]]
    for number, fields in enumerate(lines, 2):
        if len(fields) != len(names):
            die(f"{path}:{number}: {len(fields)} fields, the header has {len(names)}; allowed: a CSV file of --bench")
    return [Row(zip(names, [RENAMED.get(field, field) for field in fields])) for fields in lines], names


def value(text):
    """None where it is no finite number that is not negative."""
    known = re.fullmatch(r"\d+(\.\d*)?([eE][-+]?\d+)?", text) and float(text) < 1e300
    return float(text) if known else None


def shown(form, text):
    return "-" if value(text) is None else form % value(text)


def found(folder, pattern):
    """The files that match, 2 before 16."""
    parts = lambda path: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)]
    return sorted(glob.glob(os.path.join(glob.escape(folder), pattern)), key=parts)


def write(path, text):
    with open(path, "w") as file:
        file.write(text)
    print(path)


def provenance(folder):
    """Lines of provenance.txt by their key."""
    lines = {}
    with open(f"{folder}/provenance.txt") as file:
        for line in file:
            key, _, text = line.rstrip("\n").partition(": ")
            lines.setdefault(key, []).append(text)
    return lines


def machine(folder, words="", file=""):
    """The machine in one line, with some words on how it was used. Files of an example may be of another NCCL."""
    lines = provenance(folder)
    date = lines["date"][-1][:10]
    if "machine" in lines: # where the hardware does not matter
        return f"{lines['machine'][0]}; {date}"
    version = {text.split()[0]: text for text in lines["version"]}
    others = {key[len("version of "):]: texts[0] for key, texts in lines.items() if key.startswith("version of ")}
    nccl = others.get(os.path.basename(file).split(".")[0], version.get("NCCL", ""))
    if not file:
        nccl += "".join(f"; {key}: {text}" for key, text in others.items())
    _, gpu, driver = lines["gpu"][-1].split(", ")[:3]
    environment = "".join(f" `{text}`" for text in lines.get("environment", [])) or " no NCCL_ variables set"
    words = f" {words};" if words else ""
    return f"{len(lines['gpu'])} x {gpu}, driver {driver}, {version.get('CUDA', '')}; {nccl};{words}{environment}; {date}"


def limit_of(folder):
    """What the links can do at best: the largest limit that a program measured."""
    return max((value(row.get("limit", "")) or 0 for path in found(folder, "*.csv") for row in read(path)[0]), default=0)


# ---- tables: a head, in which ':' marks text, and rows -----------------------------------------------
def size(count):
    unit = next((unit for unit in (1 << 30, 1 << 20, 1 << 10) if count >= unit), 1)
    return f"{count / unit:.6g} " + {1 << 30: "GiB", 1 << 20: "MiB", 1 << 10: "KiB", 1: "B"}[unit]


def elements(count):
    return f"{count / 1e6:.1f} M" if count >= 100000 else f"{count:.6g}"


def rate_of(row):
    return "wire" if "wire" in row else "busbw"


def table(path, only=(), without=()):
    """A row per size, with its series such as the pattern if it has one, and a cell per variant; of the sparse
    AllReduce, which has many paths, a row per path. Other files are shown as they are."""
    rows, names = read(path)
    sparse = "path" in names
    if not rows:
        die(f"{path} has no rows; allowed: a CSV file of --bench")
    if not sparse and not {"bytes", "variant"} <= set(names):
        return names, [list(row.values()) for row in rows]
    name = "path" if sparse else "variant"
    series = [] if sparse else names[:names.index("bytes")]

    def label(row):
        if sparse:
            return row["count"], f"{100 * float(row['density']):.6g} %"
        return (*(row[key] for key in series), size(float(row["bytes"])))

    def cell(row):
        if not value(row["us"]):
            return "-"
        if sparse:
            return f"{value(row['us']):.0f} / " + shown("%.2fx", row["ratio"])
        ratio = " / " + shown("%.2fx", row["ratio"]) if row["variant"] != variants[0] else ""
        return f"{value(row['us']):.2f} / " + shown("%.1f", row[rate_of(row)]) + ratio

    unknown = {*only} - {" ".join(label(row)) for row in rows} | {*without} - {row[name] for row in rows}
    if unknown:
        die(f"{path} has no '{min(unknown)}'; allowed: its rows and columns")
    rows = [row for row in rows if (not only or " ".join(label(row)) in only) and row[name] not in without]
    labels, variants = (list(dict.fromkeys(keys)) for keys in (map(label, rows), (row[name] for row in rows)))
    cells = {(label(row), row[name]): cell(row) for row in rows}
    wrong = lambda key: str(sum(int(row["wrong"]) for row in rows if key in (label(row), row[name])))
    if sparse:
        head = [":us / times as fast as dense"] + [f"{elements(float(count))}, {density}" for count, density in labels]
        return head + ["wrong"], [[v] + [cells.get((l, v), "-") for l in labels] + [wrong(v)] for v in variants]
    head = [":" + key for key in series] + ["bytes"]
    head += [f"{v}: us / {rate_of(rows[0])} GB/s" + (" / ratio" if v != variants[0] else "") for v in variants]
    return head + ["wrong"], [[*l] + [cells.get((l, v), "") for v in variants] + [wrong(l)] for l in labels]


def headline(folder):
    limit, lines = limit_of(folder), []
    for file, variant, amount, series in HEADLINE:
        sparse, path = file.startswith("04"), f"{folder}/{file}"
        amounts, names, kinds = ("count", "path", "density") if sparse else ("bytes", "variant", "pattern")
        rows = [row for row in (read(path)[0] if os.path.isfile(path) else [])
                if (row[amounts], row.get(kinds, "")) == (str(amount), series)]
        for row in (row for row in rows if row[names] == variant and value(row["us"])):
            what, rate = ", ".join(filter(None, (variant, series, size(amount)))), "-"
            if sparse:
                what = f"{variant}, {elements(amount)} elements, density {series}"
            elif amount >= 1 << 20:
                rate = shown("%.1f", row[rate_of(row)]) + (f" ({100 * value(row[rate_of(row)]) / limit:.0f} %)" if limit else "")
            base, base_us = ("dense", row["dense_us"]) if sparse else (rows[0]["variant"], rows[0]["us"])
            us = shown("%.2f", base_us) + f" / {value(row['us']):.2f}"
            lines.append([file[:2], what, base, us, shown("%.2fx", row["ratio"]), rate])
    share = f" (of the limit, {limit:.6g})" if limit else ""
    return [":example", ":what", ":baseline", "us: baseline / this", "times as fast", "GB/s" + share], lines


def markdown(head, rows):
    lines = [[name.lstrip(":") for name in head], ["---" if name[0] == ":" else "---:" for name in head]] + rows
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


# ---- pictures ------------------------------------------------------------------------------------
def settings(name, word):
    """The lines `# word: ...` of a picture's file."""
    with open(f"{PLOTS}/{name}.gnuplot") as file:
        return re.findall(f"^# {word}: (.*)$", file.read(), re.M)


def data(name, folder):
    """What a picture shows; nothing where a file is missing or has nothing to draw."""
    harmless = lambda text: re.sub(r"[^A-Za-z0-9_.+/ -]", "_", text)  # names become parts of commands in gnuplot files
    text = ""
    for words in settings(name, "data"):
        kind, pattern, keys, columns = (words.split() + [""] * 3)[:4]
        if kind == "limit":
            text += f"# limit\n{limit_of(folder):.6g}\n\n\n" if limit_of(folder) else ""
            continue
        files, blocks = found(folder, pattern), {}
        for row in (row for path in files for row in read(path)[0]):
            if kind == "columns": # no value: NaN; words in quotes
                cells = [harmless(row[column]) or "NaN" for column in columns.split("+")]
                line = [cell if re.fullmatch(r"[-+.0-9e]+|NaN", cell) else f'"{cell}"' for cell in cells]
            elif value(row["us"]):
                quartiles = [row.get("us_q1", row["us"]), row.get("us_q3", row["us"])] # older files have none
                line = [row["bytes"], row["us"], *quartiles, row["us_min"], row["us_max"], row[rate_of(row)], row["ratio"]]
            else:
                continue
            block = harmless(" ".join(row[key] for key in keys.split("+")))
            blocks[block] = blocks.get(block, "") + " ".join(line) + "\n"
        if not blocks or ("ranks*" in pattern and len(files) < 2): # one number of ranks makes no line
            return ""
        text += "".join(f"# {block}\n{lines}\n\n" for block, lines in blocks.items())
    return text


def plot(folder, check):
    if not check and not shutil.which("gnuplot"):
        die("no gnuplot; allowed, as root: apt-get install gnuplot-nox")
    left_out, failed = [], False
    for name in sorted(file[:-8] for file in os.listdir(PLOTS) if file.endswith(".gnuplot")):
        text, file = data(name, folder), f"{folder}/plots/{name}.dat"
        if not text:
            left_out.append(name)
        elif check:
            failed |= differs(file, text)
        else:
            os.makedirs(f"{folder}/plots", exist_ok=True)
            write(file, text)
            terminal = f"svg size {settings(name, 'size')[0]} dynamic enhanced background 'white' font 'sans-serif,13' name '{name}'"
            command = ["gnuplot", "-e", f"set terminal {terminal}", "-e", 'data = system("printf %s \\"$DATA\\"")']
            command += [f"{PLOTS}/style", f"{PLOTS}/{name}.gnuplot"]
            write(file[:-3] + "svg", subprocess.check_output(command, env=dict(os.environ, DATA=file, LC_ALL="C"), text=True))
    if left_out:
        print("left out, because their files are not there or have nothing to draw: " + ", ".join(left_out))
    return failed


def differs(path, text):
    with open(path if os.path.isfile(path) else os.devnull) as file:
        old = file.read()
    sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), text.splitlines(True), path, "results"))
    return old != text


# ---- pages ---------------------------------------------------------------------------------------
def sources(folder, name):
    """Where a picture's numbers come from: GPUs, or the stand-in, on which words are counted and nothing is timed."""
    text = ""
    patterns = [words.split()[1] for words in settings(name, "data") if words != "limit"]
    files = [path for pattern in patterns for path in found(folder, pattern)]
    for counted in (False, True):
        mine = [path for path in files if (".standin." in path) == counted]
        raw = ", ".join(dict.fromkeys("`%s`" % re.sub(r"ranks\d+\.csv$", "ranks*.csv", path) for path in mine))
        if mine and counted:
            rows = [row for path in mine for row in read(path)[0]]
            verified = "on" if any(value(row["verified_steps"]) for row in rows) else "off"
            text += f"Counted on the CPU stand-in, without GPUs: {rows[-1]['count']} elements, density " \
                    f"{100 * float(rows[-1]['density']):g} %, verification {verified}; raw: {raw}.\n"
        elif mine:
            text += f"From {machine(folder, '', mine[0])}; raw: {raw}.\n"
    return text


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
        words = settings(name, "caption") + [sources(folder, name)]
        return f"![{rest}]({os.path.relpath(path, os.path.dirname(page) or '.')})\n\n" + "\n".join(words)
    launcher = re.match(r"\d\d_[^./]+\.([a-z]+)\.", name)
    text = markdown(*table(path, *([word for word in words.split(", ") if word] for words in (rest, without))))
    return text + f"\n{machine(folder, launcher[1] + ' launcher' if launcher else '', name)}; raw: `{path}`.\n"


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
        if check:
            failed |= differs(page, new)
        elif new != old:
            write(page, new)
    return failed


def html_page(folder):
    """The headline and the pictures first; tables are open where they are of graphs under MPI."""
    def cells(tag, names):
        return "<tr>" + "".join(f"<{tag}>{html.escape(name.lstrip(':'))}</{tag}>" for name in names) + "</tr>\n"

    def section(title, text, opened=""):
        return f"<details{opened}><summary>{title}</summary>\n{text}</details>\n"

    def html_table(head, rows):
        return "<table>" + cells("th", head) + "".join(cells("td", row) for row in rows) + "</table>\n"

    text = f"<p>{html.escape(machine(folder).replace('`', ''))}</p>\n{html_table(*headline(folder))}"
    for path in found(folder, "plots/*.svg"):  # as an image, in which a browser runs no scripts and fetches nothing
        name = os.path.basename(path)[:-4]
        with open(path, "rb") as file:
            picture = base64.b64encode(file.read()).decode()
        text += f'<img alt="{name}" src="data:image/svg+xml;base64,{picture}"/>\n<p>{html.escape(settings(name, "caption")[0])}</p>\n'
    for path in found(folder, "*.csv"):
        if any(value(row.get("us", "1")) for row in read(path)[0]):  # there are times, or it is no file of times
            text += section(os.path.basename(path), html_table(*table(path)), " open" * path.endswith(".mpi.graph.csv"))
    with open(f"{folder}/provenance.txt") as file:
        text += section("provenance.txt", f"<pre>{html.escape(file.read())}</pre>")
    style = "body { font: 15px/1.5 sans-serif; max-width: 64em; margin: 2em auto } img { width: 100% } details { overflow-x: auto } " \
            "td, th { border-bottom: 1px solid #ddd; padding: 2px 10px; text-align: right } pre { white-space: pre-wrap }"
    write(f"{folder}/report.html", '<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"/><title>NCCL examples: results</title>\n'
          f"<style>{style}</style>\n<h1>NCCL examples: results</h1>\n{text}</html>\n")


# ---- two folders side by side --------------------------------------------------------------------
def compare_file(old, new, percent, sums):
    """Lines of text. A row is known by the columns before `us` that both files have."""
    keys = [key for key in new[1][:new[1].index("us")] if key in old[1][:old[1].index("us")]]
    before, after = ({tuple(row[key] for key in keys): row for row in rows if value(row["us"]) or rows is new[0]} for rows, _ in (old, new))
    lines = [keys + ["old, us", "new, us", "new/old", ""]]
    for key, row in ((key, after[key]) for key in before if key in after):
        was, now, mark = value(before[key]["us"]), value(row["us"]), "LOST"
        if now:
            bars = [value(side.get(q, side.get(m, ""))) for side in (row, before[key]) for q, m in (("us_q1", "us_min"), ("us_q3", "us_max"))]
            apart = None not in bars and (bars[0] > bars[3] or bars[1] < bars[2])
            mark = " ".join(["*"] * apart + ["SLOWER"] * (now > was * (1 + percent / 100)))
        for word in mark.split():
            sums[word] += 1
        lines.append([*key, f"{was:.2f}", f"{now:.2f}" if now else "-", f"{now / was:.3f}x" if now else "-", mark])
    sums["rows"] += len(lines) - 1
    widths = [max(len(line[i]) for line in lines) for i in range(len(keys))]
    form = "  " + " ".join([f"{{:<{width}}}" for width in widths] + ["{:>10} {:>10} {:>8}  {}"])
    text = [form.format(*line).rstrip() for line in lines] * (len(lines) > 1)
    timed = {key for key, row in after.items() if value(row["us"])}
    for side, alone, others in (("OLD", before.keys() - after.keys(), after), ("NEW", timed - before.keys(), before)):
        sums[side] += len(alone)
        values = [{row[i] for row in alone} - {row[i] for row in others} for i in range(len(keys))]
        only = "; ".join(f"{key} {', '.join(sorted(some))}" for key, some in zip(keys, values) if some)
        text += [f"  not compared: {len(alone)} of {side}, only there: {only or 'that combination'}"] * bool(alone)
    return text


def compare(folders, percent):
    files = [{os.path.basename(path): read(path) for path in found(folder, "*.csv")} for folder in folders]
    sums, text = dict.fromkeys(("rows", "*", "SLOWER", "LOST", "OLD", "NEW"), 0), []
    for name in sorted(files[0].keys() & files[1].keys()):
        if "us" in files[0][name][1] and "us" in files[1][name][1]:
            lines = compare_file(files[0][name], files[1][name], percent, sums)
            text += [name] * bool(lines) + lines
    alone = sorted(files[0].keys() ^ files[1].keys())
    if not sums["rows"]:
        die("no row with a time is in both folders; allowed: results of the same examples, of as many ranks")
    print(f"old: {machine(folders[0])}", f"new: {machine(folders[1])}", *text, sep="\n")
    print("only in one of them: " + ", ".join(alone) + "\n" if alone else "", end="")
    print(f"{sums['rows']} rows compared, {sums['OLD']} of OLD not in NEW, {sums['NEW']} of NEW not in OLD; {sums['*']} outside the noise, "
          f"{sums['SLOWER']} slower by more than {percent:g} %, {sums['LOST']} lost")
    return sums["SLOWER"] + sums["LOST"] > 0


def main():
    words, percent = sys.argv[1:], 10.0
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return 0
    if len(words) == 5 and words[0] == "compare" and words[3] == "--percent" and value(words[4]) is not None:
        percent, words = value(words[4]), words[:3]
    check = words[:2] in (["plot", "--check"], ["pages", "--check"])
    command, *folders = (words[:1] + words[1 + check:]) or [""]
    if command not in ("plot", "html", "pages", "compare") or len(folders) != 1 + (command == "compare"):
        die(f"'{' '.join(words)}' is not understood; allowed: plot|pages [--check] DIR, html DIR, compare OLD NEW [--percent N]")
    for folder in folders:
        if not os.path.isfile(f"{folder}/provenance.txt"):
            die(f"'{folder}' is no folder of results; allowed: DIR, with DIR/provenance.txt")
        if "stand-in" in provenance(folder):
            die(f"{folder} is a trial on the CPU stand-in, which has no times; allowed: results of GPUs")
    folders = [os.path.normpath(folder) for folder in folders]
    if command == "compare":
        return compare(folders, percent)
    return html_page(folders[0]) if command == "html" else (plot if command == "plot" else pages)(folders[0], check)


if __name__ == "__main__":
    sys.exit(main())
