"""The price of TID in validation loss, by way of normalising: at the end, and through training."""

from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Canvas

from rbn_fairseq.report.blocks import Figure, Missing
from rbn_fairseq.report.compare import IDENTITY, Group, by_epoch, of_largest
from rbn_fairseq.report.figures.curves import figure_of_curves
from rbn_fairseq.report.figures.panels import Curve, Panel
from rbn_fairseq.report.figures.style import Colours, legend_below, sheet

_BARS, _ROWS = 8, 6  # settings that are drawn
_WAYS = {
    "running": "running statistics",
    "running-global": "running, all lengths",
    "recalibrated": "recalibrated",
    "recalibrated-dropout": "recalibrated, dropout on",
    "pooled": "pooled",
    "length-conditional": "length-conditional",
    "batch-random": "random batches' own",
}
_LINES: dict[str, tuple[str, Any]] = {
    "layer": ("as validated", "-"),
    "running": ("running statistics", "-"),
    "running-global": ("running statistics of all lengths", (0, (5, 1.5, 1, 1.5))),
    "length-conditional": ("length-conditional statistics", (0, (5, 2))),
    "batch": ("batches' own statistics", (0, (1, 1.5))),
}


def discrepancy_cost(group: Group, colours: Colours) -> list[Figure | Missing]:
    """Validation nll with each way's statistics minus that with the batches' own."""
    title = "Discrepancy cost"
    cost = group.frames["cost"]
    if not len(cost):
        hint = "`rbn cost SAVE_DIR/checkpoint_last.pt --json SAVE_DIR/cost.jsonl` measures it."
        return [Missing(title, hint)]
    cost = of_largest(cost, "update")
    cost = cost.drop_duplicates(["run", "statistics"], keep="last")
    means = cost.groupby(["series", "statistics"])["cost"].mean().unstack()
    seeds = cost.groupby(["series", "statistics"])["cost"].agg(list)
    caption = (
        "Validation nll with population statistics minus that with each batch's own (batches as "
        f"trained), in {group.metric.unit}: what TID costs. Below 0: the population's are "
        "better. Running: the exponential average of training; recalibrated: mean of batches with "
        "the final weights, dropout off, and on; pooled: over all tokens. Each run's last "
        "checkpoint that was measured; means over seeds, each of which is a point. "
        "Length-conditional: as recalibrated, for each bin of sentence lengths."
    )
    notes = ()
    if len(means) > _BARS:
        notes = (f"Drawn: the first {_BARS} of {len(means)} settings; CSV has all.",)
    columns = ["placement", "label", "run", "statistics", "nll", "cost", "cost_random"]
    numbers = cost[columns].rename(columns={"label": "norm"})
    draw = partial(_draw, group, means.head(_BARS), seeds, colours)
    return [Figure("cost", title, caption, draw, numbers, notes)]


def _draw(group: Group, means: pd.DataFrame, seeds: pd.Series, colours: Colours) -> Canvas:
    ways = [way for way in _WAYS if way in means and means[way].notna().any()]
    with sheet(1, 1, width=max(6.0, 1.0 + 1.6 * len(ways)), height=3.4) as (canvas, ((axes,),)):
        width = 0.8 / len(means)
        for number, (at, row) in enumerate(means.iterrows()):
            about = group.series.loc[at]
            places = [n + (number - (len(means) - 1) / 2) * width for n in range(len(ways))]
            label = group.placed(about["placement"], about["label"])
            hatch = "//" if about["placement"] == "Pre-Norm" else ""
            style = {"color": colours[about["label"]], "edgecolor": "white", "hatch": hatch}
            axes.bar(places, row[ways], width, label=label, **style)
            for place, way in zip(places, ways, strict=True):
                points = seeds.get((at, way), [])
                if len(points) > 1:
                    axes.plot([place] * len(points), points, "o", color="black", markersize=2.5)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xticks(range(len(ways)), [_WAYS[way] for way in ways])
        axes.grid(axis="x", visible=False)
        axes.set(ylabel=f"discrepancy cost, {group.metric.unit}")
        legend_below(canvas, [axes])
        return canvas


def _by_epoch(group: Group) -> pd.DataFrame:
    """Return nll by run, way and epoch, of checkpoints that were saved at the end of one."""
    frames = by_epoch(group.frames["valid"]), group.frames["train"]
    ends = pd.concat([frame[["run", "update", "epoch"]] for frame in frames])
    cost = group.frames["cost"].merge(ends.drop_duplicates(["run", "update"]), on=["run", "update"])
    cost = cost.drop_duplicates(["run", "statistics", "epoch"], keep="last")
    return cost.sort_values(["series", "seed", "epoch"], kind="stable")


def _layer_norm(group: Group, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the nll of the layer norm that a series is compared with, at the same epochs."""
    pairs = group.pairs
    baselines = pairs.loc[pairs["series"] == rows["series"].iloc[0], "baseline"]
    series = group.runs.loc[baselines, "series"].unique()
    valid = by_epoch(group.frames["valid"])
    layer = valid[valid["series"].isin(series) & valid["epoch"].isin(rows["epoch"])]
    return layer.assign(nll=layer["nll_loss"], statistics="layer")


def _panel(title: str, quantity: str, rows: pd.DataFrame, unit: str, colours: Colours) -> Panel:
    points = rows.assign(x=rows["epoch"], value=rows["nll"])
    points = points[[*IDENTITY, "run", "x", "value", "statistics"]]
    curves = []
    for way, (name, dash) in _LINES.items():
        curve = points[points["statistics"] == way]
        if len(curve):
            label = curve["label"].iloc[0]
            curves.append(Curve(curve, colours[label], dash, f"{label}, {name}", quantity=name))
    return Panel(title, quantity, "epoch", unit, curves, band=True)


def cost_by_epoch(group: Group, colours: Colours) -> list[Figure | Missing]:
    """Validation nll by epoch and way of normalising; nothing where it was measured once."""
    rows = _by_epoch(group)
    batch = rows[rows["statistics"] == "batch"].groupby(["series", "run"]).size()
    often = sorted(set(batch[batch > 1].index.get_level_values("series")))
    grid, unit = [], group.metric.unit
    for series in often[:_ROWS]:
        one = rows[rows["series"] == series]
        layer = _layer_norm(group, one)
        both = pd.concat([layer, one]) if len(layer) else one
        of_epoch = layer.groupby("epoch")["nll"]
        mean = of_epoch.mean()[of_epoch.size() == layer["run"].nunique()]
        less = both.assign(nll=both["nll"] - both["epoch"].map(mean))
        title = group.placed(one["placement"].iloc[0], one["label"].iloc[0])
        left = _panel(f"{title}, valid nll", "nll", both, unit, colours)
        less = less[less["epoch"].isin(mean.index)]
        right = _panel(f"{title}, minus LN's", "nll minus LN's", less, unit, colours)
        grid.append([left, right])
    caption = (
        f"Validation nll in {unit} by epoch: with the running statistics, as "
        "inference has them (those of all lengths besides, where a model was trained with bins of "
        "lengths), with statistics of sentences of like length, and with each batch's "
        "own (batches as trained; not usable in inference); layer norm's, which has no statistics, "
        "from its log. Right: the same minus layer norm's mean, below 0: better. Lines are means "
        "over seeds, bands reach from the least to the largest."
    )
    notes = []
    if len(often) > len(grid):
        notes.append(f"Drawn: the first {len(grid)} of {len(often)} settings.")
    title = "Validation loss by way of normalising"
    return figure_of_curves(group, "cost_by_epoch", title, caption, grid, notes=notes)
