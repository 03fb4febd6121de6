"""Prints what the samplers of results/tasks do to the norms, and draws BN's gap against its TID."""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from scipy.stats import t

TASKS = {
    "ptb": ("Penn Treebank, words", "#0072B2"),
    "ptb_pre": ("Penn Treebank, Pre-Norm", "#56B4E9"),
    "conll": ("CoNLL-2003, entities", "#D55E00"),
    "resume": ("Resume, entities", "#009E73"),
    "imdb": ("IMDB, labels", "#CC79A7"),
}
#: What a run is scored by, whichever it has: perplexity, %, %.
METRICS = ("ppl", "accuracy", "f1")
SAMPLERS = {
    "blocks": ("blocks of one length", "s"),
    "sorted": ("sorted by length", "o"),
    "sentences": ("sorted by length", "o"),
    "mixed": ("16 lengths", "^"),
    "shuffled": ("shuffled", "D"),
}


def last(run: Path, name: str) -> pd.DataFrame:
    """Return the last measurements of a file of a run, or an empty frame."""
    path = run / f"{name}.jsonl"
    if not path.exists():
        return pd.DataFrame()
    rows = pd.read_json(path, lines=True)
    return rows[rows["update"] == rows["update"].max()]


def read_run(run: Path) -> dict[str, Any]:
    """Return what a run ended with, by name."""
    log = (run / "train.log").read_text()
    losses = {
        part: [float(json.loads(row)[f"{part}_loss"])
               for row in re.findall(rf"INFO \| {part} \| (\{{.*\}})", log)]
        for part in ("train", "valid")
    }  # fmt: skip
    values: dict[str, Any] = {
        "training": losses["train"][-1],
        "valid": losses["valid"][-1],
        "lowest": min(losses["valid"]),
    }
    if (path := run / "score.json").exists():
        (score,) = json.loads(path.read_text()).values()
        values["test"] = next(score[metric] for metric in METRICS if metric in score)
    if len(tid := last(run, "tid")):
        of_norms = 100 * tid.mean(numeric_only=True)
        values["mean TID %"] = of_norms["mean_tid"]
        values["given length %"] = of_norms["mean_conditional_tid"]
    if len(cost := last(run, "cost")):
        values["loses"], anew = cost.set_index("statistics")["cost"][["running", "recalibrated"]]
        values["less recalibrated"] = values["loses"] - anew
    return values


def read_runs(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each run: task, sampler, norm, seed, and what it ended with."""
    for task in TASKS:
        for log in sorted((directory / task).glob("*/train.log")):
            if name := re.fullmatch(r"(\w+)-(\w+)-seed(\d+)", log.parent.name):
                yield {"task": task, "sampler": name[2], "norm": name[1], "seed": int(name[3]),
                       **read_run(log.parent)}  # fmt: skip


def differences(runs: pd.DataFrame) -> pd.DataFrame:
    """Return BN's and RBN's ends less LN's of the same seed, with a 95 % interval of the mean."""
    values = ["training", "valid", "lowest", "test"]
    ends = runs.set_index(["task", "sampler", "seed", "norm"])[values]
    base = ends.xs("ln", level="norm")
    gaps = ends.drop("ln", level="norm").groupby("norm", group_keys=True).apply(
        lambda part: part.droplevel("norm") - base
    )  # fmt: skip
    groups = gaps.dropna().groupby(["task", "sampler", "norm"])
    joint = groups.agg(["mean", "std"])
    for value in values:
        seeds = groups[value].count()
        half = t.ppf(0.975, seeds - 1) * joint[value, "std"] / seeds**0.5
        joint[value, "from"] = joint[value, "mean"] - half
        joint[value, "to"] = joint[value, "mean"] + half
    return joint[values]


def draw(runs: pd.DataFrame, path: Path) -> None:
    """Draw validation loss less LN's against mean TID, and against what inference loses.

    A point a seed, filled for BN, hollow for RBN.
    """
    figure, panels = plt.subplots(1, 2, figsize=(9.6, 4.2), sharey=True, layout="constrained")
    wide = runs.pivot_table(index=["task", "sampler", "seed"], columns="norm")
    points = runs.loc[runs["norm"] != "ln", "task"].value_counts()
    causes = {"mean TID %": "mean TID, average of the norms (%)",
              "loses": "lost by running statistics (bits)"}  # fmt: skip
    for axes, (cause, label) in zip(panels, causes.items(), strict=True):
        for norm in wide["valid"].columns.drop("ln"):
            gaps = (wide["valid", norm] - wide["valid", "ln"]).dropna()
            for (task, sampler, seed), gap in gaps.items():
                value = wide.loc[(task, sampler, seed), (cause, norm)]
                axes.plot(value, gap, SAMPLERS[sampler][1], color=TASKS[task][1],
                          fillstyle="full" if norm == "bn" else "none")  # fmt: skip
        axes.axhline(0, color="grey", linewidth=0.8)
        axes.set_xlabel(label)
    panels[0].set_ylabel("validation loss minus LN's (bits)")
    keys = [plt.Line2D([], [], marker="o", linestyle="", color=colour,
                       label=f"{name}, n = {points[task]}")
            for task, (name, colour) in TASKS.items() if task in points]  # fmt: skip
    keys += [plt.Line2D([], [], marker=marker, linestyle="", color="black", label=name)
             for name, marker in dict(SAMPLERS.values()).items()]  # fmt: skip
    panels[0].legend(handles=keys, frameon=False, fontsize="small")
    panels[1].legend(
        handles=[plt.Line2D([], [], marker="o", linestyle="", color="black", fillstyle=style,
                            label=norm.upper())
                 for norm, style in (("bn", "full"), ("rbn", "none")) if norm in wide["valid"]],
        frameon=False, fontsize="small",
    )  # fmt: skip
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("figure", type=Path)
    arguments = parser.parse_args()
    runs = pd.DataFrame(read_runs(arguments.directory))
    order = ["task", "sampler", "norm", "seed"]
    print(runs.set_index(order).to_string(float_format="%.3f", na_rep=""))
    print("\nminus LN's of the same seed")
    print(differences(runs).to_string(float_format="%+.3f", na_rep=""))
    draw(runs, arguments.figure)
