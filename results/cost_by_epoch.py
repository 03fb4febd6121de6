"""Draws BN's validation loss by way of normalising, minus LN's, by epoch, from committed runs.

Writes results/NAME/cost_by_epoch.png.
"""

import argparse

import matplotlib.pyplot as plt
import pandas as pd
from claims import RESULTS, lines, nll, runs

WAYS = {
    "running": ("running statistics", "-"),
    "running-global": ("running statistics of all lengths", "-."),
    "length-conditional": ("length-conditional statistics", "--"),
    "batch": ("batches' own statistics", ":"),
}


def measured(name: str) -> pd.DataFrame:
    """Return nll: a row an epoch, run and way of normalising; LN's is as validated."""
    batch = [lines(run, "cost").assign(run=run.name) for run in runs(f"{name}/runs/*bn*")
             if "rbn" not in run.name]  # fmt: skip
    rows = pd.concat(batch)
    rows["epoch"] = (
        rows["checkpoint"].str.extract(r"^checkpoint(\d+)\.pt", expand=False).astype(int)
    )
    layer = [nll(run).rename("nll").rename_axis("epoch").reset_index().assign(run=run.name)
             for run in runs(f"{name}/runs/*ln*")]  # fmt: skip
    layer = pd.concat(layer).assign(statistics="LN")
    return pd.concat([layer[layer["epoch"].isin(rows["epoch"])], rows])


def draw(name: str) -> None:
    """Draw means over seeds, and bands from the least to the largest."""
    rows = measured(name)
    by_way = rows.groupby(["statistics", "epoch"])["nll"].agg(["mean", "min", "max"])
    by_way = by_way.sub(by_way.loc["LN", "mean"], axis="index", level="epoch")
    figure, axes = plt.subplots(figsize=(6.6, 4.2), layout="constrained")
    ways = {"LN": ("LN, as validated", "-")}
    ways |= {way: (f"BN, {words}", dash) for way, (words, dash) in WAYS.items()}
    for way, (label, dash) in ways.items():
        if way in by_way.index:
            line, colour = by_way.loc[way], "#0072B2" if way == "LN" else "#D55E00"
            axes.plot(line.index, line["mean"], dash, color=colour, label=label)
            band = {"color": colour, "alpha": 0.12, "linewidth": 0}
            axes.fill_between(line.index, line["min"], line["max"], **band)
    axes.set(xlabel="epoch", ylabel="valid nll minus LN's, bits per target token")
    axes.set_xticks(sorted(set(rows["epoch"])))
    axes.grid(color="#e5e5e5")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(RESULTS / name / "cost_by_epoch.png", dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="a directory of results/, such as ladder")
    draw(parser.parse_args().name)
