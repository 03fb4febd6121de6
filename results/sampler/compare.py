"""Prints the primary metric of results/sampler and its paired differences, and draws nll by epoch.

Usage: python results/sampler/compare.py RUNS FIGURE
"""

import argparse
import json
import re
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from scipy import stats

NORMS = {"ln": ("layer norm", "#0072B2"), "bn": ("batch norm", "#D55E00")}
SAMPLERS = {"sorted": ("sorted", "--"), "mixing16": ("16 buckets", "-")}
DIFFERENCES = {
    "LN: mixed - sorted": {"ln mixing16": 1, "ln sorted": -1},
    "BN: mixed - sorted": {"bn mixing16": 1, "bn sorted": -1},
    "sorted: BN - LN": {"bn sorted": 1, "ln sorted": -1},
    "mixed: BN - LN": {"bn mixing16": 1, "ln mixing16": -1},
    "BN's gain by mixing - LN's": {
        "bn mixing16": 1, "bn sorted": -1, "ln mixing16": -1, "ln sorted": 1,
    },
}  # fmt: skip


def read(runs: Path) -> pd.DataFrame:
    """Return validation nll, bits a token: a row an epoch; columns norm and sampler, and seed."""
    curves = {}
    for log in sorted(runs.glob("*/train.log")):
        if name := re.fullmatch(r"(\w+)-(\w+)-seed(\d+)", log.parent.name):
            rows = re.findall(r"INFO \| valid \| (\{.*\})", log.read_text())
            ends = {row["epoch"]: float(row["valid_nll_loss"]) for row in map(json.loads, rows)}
            curves[f"{name[1]} {name[2]}", int(name[3])] = pd.Series(ends)
    return pd.DataFrame(curves).rename_axis("epoch").sort_index()


def interval(values: pd.Series) -> str:
    """Return mean, sample standard deviation and Student's 95 % interval of paired values."""
    text = f"{values.mean():+.3f}"
    if len(values) > 1:
        half = stats.t.ppf(0.975, len(values) - 1) * values.std() / len(values) ** 0.5
        low, high = values.mean() - half, values.mean() + half
        text += f" ± {values.std():.3f}, 95 % [{low:+.3f}, {high:+.3f}]"
    return f"{text} (n = {len(values)}: {', '.join(f'{value:+.3f}' for value in values)})"


def draw(curves: pd.DataFrame, path: Path) -> None:
    """Draw nll by epoch; a thin line a seed."""
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for norm, (norm_name, colour) in NORMS.items():
        for sampler, (sampler_name, dashes) in SAMPLERS.items():
            kind = f"{norm} {sampler}"
            if kind in curves:
                lines = axes.plot(curves[kind], dashes, color=colour, linewidth=0.9)
                lines[0].set_label(f"{norm_name}, {sampler_name}")
    axes.set(xlabel="epoch", ylabel="validation nll (bits per token)", yscale="log")
    axes.yaxis.set_major_formatter("{x:.1f}")
    axes.yaxis.set_minor_formatter("{x:.1f}")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("figure", type=Path)
    arguments = parser.parse_args()
    curves = read(arguments.runs)
    print(curves.to_string(float_format="%.3f"))
    last = curves.loc[curves.index.max()].unstack(level=0)
    for title, signs in DIFFERENCES.items():
        if set(signs) <= set(last):
            gaps = sum(sign * last[kind] for kind, sign in signs.items()).dropna()
            if len(gaps):
                print(f"{title:<28} {interval(gaps)}")
    draw(curves, arguments.figure)
