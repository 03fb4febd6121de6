"""The price of TID in validation loss, by way of normalising: at the end, and through training."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Canvas

from rbn_fairseq.report.blocks import Figure, Missing
from rbn_fairseq.report.compare import IDENTITY, Group
from rbn_fairseq.report.figures.curves import Curve, Panel, figure_of_curves
from rbn_fairseq.report.figures.style import Colours, legend_below, placed, sheet

__all__ = ["cost_by_epoch", "discrepancy_cost"]

_BARS, _ROWS = 8, 6  # settings that are drawn
_WAYS = {
    "running": "running statistics",
    "running-global": "running, all lengths",
    "recalibrated": "recalibrated",
    "pooled": "pooled",
    "length-conditional": "length-conditional",
    "batch-random": "random batches' own",
}
_LINES: dict[str, tuple[str, Any]] = {
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
    cost = cost[cost["update"] == cost.groupby("run")["update"].transform("max")]
    cost = cost.drop_duplicates(["run", "statistics"], keep="last")
    means = cost.groupby(["series", "statistics"])["cost"].mean().unstack()
    caption = (
        "Validation nll with population statistics minus that with each batch's own (batches as "
        "trained), in bits per target token: what TID costs. Below 0: the population's are "
        "better. Running: the exponential average of training; recalibrated: mean of batches with "
        "the final weights; pooled: over all tokens. Each run's last checkpoint that was measured; "
        "means over seeds."
    )
    if "length-conditional" in means:
        caption += " Length-conditional: as recalibrated, for each bin of sentence lengths."
    notes = ()
    if len(means) > _BARS:
        notes = (f"Drawn: the first {_BARS} of {len(means)} settings; CSV has all.",)
    columns = ["placement", "label", "run", "statistics", "nll", "cost", "cost_random"]
    numbers = cost[columns].rename(columns={"label": "norm"})
    draw = lambda: _draw(group.series, means.head(_BARS), colours)  # noqa: E731
    return [Figure("cost", title, caption, draw, numbers, notes)]


def _draw(series: pd.DataFrame, means: pd.DataFrame, colours: Colours) -> Canvas:
    ways = [way for way in _WAYS if way in means and means[way].notna().any()]
    with sheet(1, 1, width=max(6.0, 1.0 + 1.6 * len(ways)), height=3.4) as (canvas, ((axes,),)):
        width = 0.8 / len(means)
        hatches: Sequence[str] = ("", "//", "..", "xx")
        seen: dict[str, int] = {}
        for number, (at, row) in enumerate(means.iterrows()):
            own = series.loc[at]
            colour = colours[own["norm"]]
            seen[colour] = seen.get(colour, -1) + 1
            places = [n + (number - (len(means) - 1) / 2) * width for n in range(len(ways))]
            style = {"color": colour, "edgecolor": "white", "hatch": hatches[seen[colour] % 4]}
            label = placed(own["placement"], own["label"])
            axes.bar(places, row[ways], width, label=label, **style)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xticks(range(len(ways)), [_WAYS[way] for way in ways])
        axes.grid(axis="x", visible=False)
        axes.set(ylabel="bits per target token")
        legend_below(canvas, [axes])
        return canvas


def _by_epoch(group: Group) -> pd.DataFrame:
    """Return nll by run, way and epoch, of checkpoints that were saved at the end of one."""
    valid = group.frames["valid"][["run", "update", "epoch"]].drop_duplicates(["run", "update"])
    cost = group.frames["cost"].merge(valid, on=["run", "update"])
    cost = cost.drop_duplicates(["run", "statistics", "epoch"], keep="last")
    return cost.sort_values(["series", "seed", "epoch"], kind="stable")


def _curves(group: Group, own: pd.DataFrame, colours: Colours) -> tuple[list[Curve], pd.DataFrame]:
    """Return layer norm's curve, where there is one, and the series' by way; layer norm's rows."""
    points = own.assign(x=own["epoch"], value=own["nll"])[
        [*IDENTITY, "run", "x", "value", "statistics"]
    ]
    label, colour = own["label"].iloc[0], colours[own["norm"].iloc[0]]
    lines = [
        Curve(part, colour, dash, f"{label}, {name}", quantity=name)
        for way, (name, dash) in _LINES.items()
        if len(part := points[points["statistics"] == way])
    ]
    pairs = group.pairs
    base = pairs.loc[pairs["series"] == own["series"].iloc[0], "baseline"]
    valid = group.frames["valid"]
    series = group.runs.at[base.iloc[0], "series"] if len(base) else None
    layer = valid[(valid["series"] == series) & valid["epoch"].isin(set(points["x"]))]
    layer = layer.assign(x=layer["epoch"], value=layer["nll_loss"])
    layer = layer.drop_duplicates(["run", "x"], keep="last")[[*IDENTITY, "run", "x", "value"]]
    if len(layer):
        name, about = "as validated", layer.iloc[0]
        curve = Curve(
            layer, colours[about["norm"]], "-", f"{about['label']}, {name}", quantity=name
        )
        lines.insert(0, curve)
    return lines, layer


def _less(lines: Sequence[Curve], mean: Mapping[Any, float]) -> list[Curve]:
    """Subtract layer norm's mean over seeds, where all of its seeds have one."""
    less = []
    for line in lines:
        points = line.points[line.points["x"].isin(mean.keys())]
        points = points.assign(value=points["value"] - points["x"].map(mean))
        less.append(Curve(points, line.colour, line.dash, line.label, line.many, line.quantity))
    return less


def cost_by_epoch(group: Group, colours: Colours) -> list[Figure | Missing]:
    """Validation nll by epoch and way of normalising; nothing where it was measured once."""
    rows = _by_epoch(group)
    batch = rows[rows["statistics"] == "batch"].groupby(["series", "run"]).size()
    often = sorted(set(batch[batch > 1].index.get_level_values("series")))
    grid = []
    for series in often[:_ROWS]:
        own = rows[rows["series"] == series]
        placement, label = own["placement"].iloc[0], own["label"].iloc[0]
        lines, layer = _curves(group, own, colours)
        axes = ("epoch", "bits per target token")
        left = Panel(placed(placement, f"{label}, valid nll"), "nll", *axes, lines, band=True)
        by_x = layer.groupby("x")["value"]
        mean = by_x.mean()[by_x.size() == layer["run"].nunique()]
        differences = _less(lines, mean.to_dict()) if len(layer) else []
        title = placed(placement, f"{label}, minus LN's")
        grid.append([left, Panel(title, "nll minus LN's", *axes, differences, band=True)])
    caption = (
        "Validation nll in bits per target token by epoch: with the running statistics, as "
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
    figure = figure_of_curves("cost_by_epoch", title, caption, grid, notes)
    return [figure] if figure else []
