"""Prints the primary metric of results/sampler and its paired differences; draws nll by epoch."""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from scipy import stats

from rbn_fairseq.report.runs import read_run

NORMS = {"ln": ("layer norm", "#0072B2"), "bn": ("batch norm", "#D55E00"),
         "none": ("no norm", "#A0A0A0")}  # fmt: skip
SAMPLERS = {"sorted": ("sorted", "--"), "mixing16": ("16 buckets", "-")}
GRID = ("sorted", "mixing16")
PARTS = ("", "-low", "-high", "-micro", "-eight", "-pre", "-tatoeba", "-large")
#: Pairs of kinds of run whose difference, the first minus the second, is printed.
PAIRS = [
    *((f"{norm} mixing16{part}", f"{norm} sorted{part}")
      for part in PARTS for norm in ("ln", "bn", "rbn")),
    *((f"bn {sampler}{part}", f"ln {sampler}{part}")
      for part in PARTS for sampler in (*GRID, "random")),
    ("ln random", "ln mixing16"), ("bn random", "bn mixing16"),
    ("ln equal", "ln sorted"), ("ln mixing16", "ln equal"), ("ln once", "ln mixing16"),
    *((f"none {sampler}", f"{norm} {sampler}") for sampler in GRID for norm in ("ln", "bn")),
    ("none mixing16", "none sorted"),
    *((f"fixln mixing16{part}", f"ln mixing16{part}") for part in ("", "-low", "-high")),
    *((f"{norm} mixing16-{rate}", f"{norm} mixing16")
      for norm in ("ln", "bn", "fixln") for rate in ("low", "high")),
    ("fixln sorted", "ln sorted"), ("fixln mixing16", "fixln sorted"),
    ("fixbn mixing16", "bn mixing16"),
    ("fixbn mixing16", "fixln mixing16"),
    ("rbn sorted", "bn sorted"), ("rbn mixing16", "bn mixing16"),
    *((f"{hybrid} mixing16", f"{norm} mixing16")
      for hybrid in ("lower2", "rmsbatch") for norm in ("ln", "bn")),
]  # fmt: skip


def find_runs(runs: Path) -> Iterator[tuple[str, int, Path]]:
    """Yield norm and sampler, the seed, and the directory of each run."""
    for log in sorted(runs.glob("*/train.log")):
        if name := re.fullmatch(r"([a-z0-9]+)-([\w-]+)-seed(\d+)", log.parent.name):
            yield f"{name[1]} {name[2]}", int(name[3]), log.parent


def losses(run: Path, part: str) -> pd.Series:
    """Return nll in bits a token by epoch; ``part`` is ``valid`` or ``train``.

    In training, without a last epoch that --max-update has left with a few updates.
    """
    rows = getattr(read_run(run.name, run), part)
    ends = rows.drop_duplicates("epoch", keep="last").set_index("epoch")
    if part == "train":
        made = ends["update"].diff().fillna(float("inf"))
        ends = ends[~(made < made[1:].max() / 2)]
    return ends["nll_loss"]


def curves_of(runs: Path, part: str = "valid") -> pd.DataFrame:
    """Return nll: a row an epoch, columns kind and seed."""
    return pd.DataFrame(
        {(kind, seed): losses(run, part) for kind, seed, run in find_runs(runs)}
    ).sort_index()


def lines(run: Path, name: str) -> pd.DataFrame:
    """Return a file of measurements, or an empty frame."""
    path = run / f"{name}.jsonl"
    return pd.read_json(path, lines=True) if path.exists() else pd.DataFrame()


def measurements(run: Path) -> dict[str, Any]:
    """Return what is measured at a run's end, by name."""
    values: dict[str, Any] = {"training": losses(run, "train").iloc[-1]}
    if len(tid := lines(run, "tid")):
        last = 100 * tid[tid["epoch"] == tid["epoch"].max()].mean(numeric_only=True)
        values |= {"TID %": last["mean_tid"], "TID given length %": last["mean_conditional_tid"]}
    if len(cost := lines(run, "cost")):
        last = cost[cost["update"] == cost["update"].max()].set_index("statistics")["cost"]
        values["loses"] = last["running"]
    if len(conditioning := lines(run, "conditioning")):
        stream = conditioning[conditioning["place"] == "stream"]
        last = stream[stream["update"] == stream["update"].max()]
        values["C_50"] = last.loc[last["layer"].idxmax(), "c_50"]
    if len(weights := lines(run, "weights")):
        last = weights.iloc[-1]
        values |= {
            f"|{name}|": last.get(f"encoder {name}") for name in ("feed-forward", "norms' bias")
        }
    if (path := run / "translations.json").exists():
        scores = json.loads(path.read_text())
        values |= {"lenpen": scores["lenpen"], "BLEU4": scores["tuned"]["bleu4"],
                   "chrF2": scores["tuned"]["chrf2"],
                   "BLEU4, lenpen 1": scores["lenpen_1"]["bleu4"]}  # fmt: skip
    return values


def interval(values: pd.Series) -> str:
    """Return the mean of paired values; of three or more also their spread and 95 % interval."""
    text = f"{values.mean():+.3f}"
    if len(values) > 2:
        half = stats.t.ppf(0.975, len(values) - 1) * values.std() / len(values) ** 0.5
        low, high = values.mean() - half, values.mean() + half
        text += f" ± {values.std():.3f}, 95 % [{low:+.3f}, {high:+.3f}]"
    return f"{text} (n = {len(values)}: {', '.join(f'{value:+.3f}' for value in values)})"


def print_differences(curves: pd.DataFrame, losses_of: str) -> None:
    """Print paired differences of the last nll: a row a kind, a column a seed."""
    last = curves.apply(lambda curve: curve.dropna().iloc[-1]).unstack()
    rows = {f"{one} - {other}": last.loc[one] - last.loc[other]
            for one, other in PAIRS if {one, other} <= {*last.index}}  # fmt: skip
    for part in PARTS:
        bn, ln = (rows.get(f"{norm} mixing16{part} - {norm} sorted{part}") for norm in ("bn", "ln"))
        if bn is not None and ln is not None:
            rows[f"gain of bn by mixing - ln's{part}"] = bn - ln
    print(f"\n{losses_of}: paired differences of the last nll")
    for title, gaps in rows.items():
        if len(gaps := gaps.dropna()):
            print(f"{title:<36} {interval(gaps)}")


def print_by_epoch(curves: pd.DataFrame, part: str) -> None:
    """Print the means of paired differences of nll, after every epoch that all seeds have."""
    pairs = {
        f"{one} - {other}": (curves[one] - curves[other])
        .dropna(how="all", axis=1)
        .mean(axis=1, skipna=False)
        for one, other in PAIRS
        if {one, other} <= {*curves.columns.get_level_values(0)}
    }
    print(f"\n{part}: means of paired differences by epoch")
    print(pd.DataFrame(pairs).T.to_string(float_format="%+.3f", na_rep=""))


def updates_to(curve: pd.Series, nll: float) -> float:
    """Return the epoch at which a curve reaches a loss, interpolated; NaN if it does not."""
    for (before, high), (after, low) in zip(curve.items(), curve.iloc[1:].items(), strict=False):
        if high > nll >= low:
            return before + (after - before) * (high - nll) / (high - low)
    return float("nan")


def draw(curves: pd.DataFrame, path: Path) -> None:
    """Draw nll by epoch, and its difference to layer norm's mean on sorted batches.

    A thin line a seed; bold their mean, where all were measured. One seed alone is named.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.4, 4.2), layout="constrained")
    base = curves["ln sorted"].mean(axis=1, skipna=False) if "ln sorted" in curves else 0
    for norm, (norm_name, colour) in NORMS.items():
        for sampler, (sampler_name, dashes) in SAMPLERS.items():
            kind = f"{norm} {sampler}"
            if kind not in curves:
                continue
            seeds = curves[kind]
            name = f"{norm_name}, {sampler_name}" + ", 1 seed" * (seeds.shape[1] == 1)
            for axes, values in ((left, seeds), (right, seeds.sub(base, axis=0))):
                for seed in values:
                    one = values[seed].dropna()
                    axes.plot(one, dashes, color=colour, linewidth=0.7, alpha=0.5)
                mean = values.dropna().mean(axis=1)
                axes.plot(mean, dashes, color=colour, linewidth=2, label=name)
    left.set(xlabel="epoch", ylabel="validation nll (bits per token)", yscale="log")
    left.yaxis.set_major_formatter("{x:.1f}")
    left.yaxis.set_minor_formatter("{x:.1f}")
    right.set(xlabel="epoch", ylabel="minus layer norm's on sorted batches (bits)")
    left.legend(frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("figure", type=Path)
    arguments = parser.parse_args()
    curves = curves_of(arguments.runs)
    print("validation nll by epoch, bits a token")
    print(curves.to_string(float_format="%.3f"))
    trained = curves_of(arguments.runs, "train")
    print_differences(curves, "validation")
    print_differences(trained, "training")
    table = {(kind, seed): measurements(run) for kind, seed, run in find_runs(arguments.runs)}
    if {key for key in curves if key[0] == "ln sorted"}:
        for (kind, seed), curve in curves.items():
            if ("ln sorted", seed) in curves and kind.split()[1] in GRID:
                goal = curves["ln sorted", seed].dropna().iloc[-1]
                table[kind, seed]["epochs to LN's last, sorted"] = updates_to(curve.dropna(), goal)
    print_by_epoch(curves, "validation")
    print_by_epoch(trained, "training")
    print("\nat the end")
    print(pd.DataFrame(table).T.to_string(float_format="%.3f", na_rep=""))
    draw(curves, arguments.figure)
