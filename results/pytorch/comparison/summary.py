# SPDX-License-Identifier: Apache-2.0
"""The table of comparison.py's LOG, into README.md between the lines `<!-- runs -->` and `<!-- end of runs -->`.

    summary.py LOG [PAGE]

Of each family, number of ranks and number of steps: the settings that seed 1 has chosen, by the text to choose with. Their loss
on the other text is the mean over seeds and its standard deviation. The last column compares seed by seed. `tries` is how many
settings ran with 4 ranks and 1000 steps; other rows have the best of these. With fewer than 4 a family is not compared. What
has no run has no row.
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
    "every16": "what 16 local steps changed",
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


def spread(values, form="%.3f"):
    mean = form % statistics.mean(values)
    return mean + " +- " + form.replace("+", "") % statistics.stdev(values) if len(values) > 1 else mean


def words(row):
    return "%.2g" % row["words"] if row["words"] > 0.5 else "1/%.3g" % (1 / row["words"])


def tries(rows):
    return [row for row in rows if row["seed"] == 1]


def chosen(rows):
    """The rows with the settings whose seed 1 is best. A run that fails is a try."""
    ended = [row for row in tries(rows) if "failed" not in row and math.isfinite(row["choose"])]
    if not ended:
        return []
    best = settings(min(ended, key=lambda row: row["choose"]))
    return [row for row in rows if settings(row) == best and "failed" not in row]


def table(rows):
    def of(family, steps=1000, ranks=4):
        return [row for row in rows if (row["family"], row["steps"], row["ranks"]) == (family, steps, ranks)]

    yield "| what is exchanged | ranks | steps | words, of dense | tries | rate, betas, warm-up | seeds | held out | weights averaged | against dense |"
    yield "| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |"
    for compared in (True, False):
        for steps, ranks in sorted({(row["steps"], row["ranks"]) for row in rows}):
            dense = {row["seed"]: row["report"] for row in chosen(of("dense", steps))}
            for family, name in FAMILIES.items():
                best, tried = chosen(of(family, steps, ranks)), len(tries(of(family)))
                if not best or (tried >= 4) != compared:
                    continue
                o = best[0]
                clip = ", clip %g" % o["clip"] if o["clip"] else ""
                percent = [100 * (row["report"] / dense[row["seed"]] - 1) for row in best if row["seed"] in dense]
                against = "" if family == "dense" or not percent else spread(percent, "%+.1f") + " %"
                yield "| %s | %d | %d | %s | %d | %g, (%g, %g), %d%s | %d | %s | %s | %s |" % (
                    name, ranks, steps, words(o), tried, o["lr"], o["b1"], o["b2"], o["warm"], clip, len(best),
                    spread([row["report"] for row in best]), spread([row["report averaged"] for row in best]),
                    against if compared else "not compared")


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
