# SPDX-License-Identifier: Apache-2.0
"""The table of comparison.py's LOG, into README.md between the lines `<!-- runs -->` and `<!-- end of runs -->`.

    summary.py LOG [PAGE]

Of each family, number of ranks and number of steps: the settings that seed 1 has chosen, by the text to choose with. Their loss
on the other text is the mean over seeds and its standard deviation; the last column compares the same seeds. What has no run
has no row.
"""

import json
import math
import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FAMILIES = {
    "dense": "gradients, dense",
    "bfloat16": "gradients, dense, in bfloat16",
    "control": "what AdamW changed, all of it (control)",
    "ours50": "what AdamW changed",
    "ours500": "what AdamW changed",
    "every16": "what 16 local steps changed (`every=16`)",
    "diloco": "DiLoCo, 16 local steps",
    "sparseloco": "SparseLoCo's rule, 16 local steps",
    "powersgd4": "PowerSGD, rank 4",
    "powersgd16": "PowerSGD, rank 16",
    "demo": "DeMo",
    "late": "what AdamW changed, one step late",
}
NOT_SETTINGS = ("seed", "words", "loss", "choose", "report", "choose averaged", "report averaged", "seconds", "weights", "text",
                "version", "device", "curve", "failed")


def settings(row):
    return json.dumps({name: value for name, value in row.items() if name not in NOT_SETTINGS}, sort_keys=True)


def spread(values):
    mean = "%.3f" % statistics.mean(values)
    return mean + " +- %.3f" % statistics.stdev(values) if len(values) > 1 else mean


def words(row):
    return "%.2g" % row["words"] if row["words"] > 0.5 else "1/%.3g" % (1 / row["words"])


def chosen(rows):
    """The rows with the settings whose seed 1 is best, and how many were tried. A run that fails is a try."""
    tried = [row for row in rows if row["seed"] == 1]
    ended = [row for row in tried if "failed" not in row and math.isfinite(row["choose"])]
    if not ended:
        return [], len(tried)
    best = settings(min(ended, key=lambda row: row["choose"]))
    return [row for row in rows if settings(row) == best and "failed" not in row], len(tried)


def table(rows):
    kinds = sorted({(row["steps"], row["ranks"]) for row in rows})
    yield "| what is exchanged | ranks | steps | words, of dense | tries | rate, betas, warm-up | seeds | report | weights averaged | against dense |"
    yield "| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |"
    for steps, ranks in kinds:
        dense = [row for row in rows if row["family"] == "dense" and row["steps"] == steps]
        reference = {row["seed"]: row["report"] for row in chosen(dense)[0]}
        for family, name in FAMILIES.items():
            best, tried = chosen([row for row in rows if (row["family"], row["steps"], row["ranks"]) == (family, steps, ranks)])
            if not best:
                continue
            o, reports = best[0], [row["report"] for row in best]
            clip = ", clip %g" % o["clip"] if o["clip"] else ""
            pairs = [(row["report"], reference[row["seed"]]) for row in best if row["seed"] in reference]
            against = "%+.1f %%" % (100 * (sum(a for a, _ in pairs) / sum(b for _, b in pairs) - 1)) if pairs else ""
            yield "| %s | %d | %d | %s | %d | %g, (%g, %g), %d%s | %d | %s | %s | %s |" % (
                name, ranks, steps, words(o), tried, o["lr"], o["b1"], o["b2"], o["warm"], clip, len(best), spread(reports),
                spread([row["report averaged"] for row in best]), against)


def main():
    with open(sys.argv[1]) as file:
        rows = [json.loads(line) for line in file if line.startswith("{")]
    texts = {json.dumps(row["text"]) for row in rows}
    if len(texts) != 1:
        sys.exit("%s has runs of %d texts; they cannot be compared" % (sys.argv[1], len(texts)))
    page = sys.argv[2] if len(sys.argv) > 2 else os.path.join(HERE, "README.md")
    with open(page) as file:
        before, _, rest = file.read().partition("<!-- runs -->\n")
    _, _, after = rest.partition("<!-- end of runs -->\n")
    if not after:
        sys.exit("%s has no line `<!-- runs -->`, or no `<!-- end of runs -->` with text after it" % page)
    with open(page, "w") as file:
        file.write("%s<!-- runs -->\n%s\n<!-- end of runs -->\n%s" % (before, "\n".join(table(rows)), after))


if __name__ == "__main__":
    main()
