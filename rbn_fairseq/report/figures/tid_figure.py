"""Figures 2 and 4: TID and deviation of batch statistics, through training and by depth."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from rbn_fairseq.report.blocks import Figure, Missing
from rbn_fairseq.report.compare import IDENTITY, Group, first_seeds
from rbn_fairseq.report.figures.curves import figure_of_curves, panel
from rbn_fairseq.report.figures.panels import Panel
from rbn_fairseq.report.figures.style import Colours, sheet
from rbn_fairseq.report.paper import published

__all__ = ["MEASURE", "average_tid", "depth_map", "deviation", "deviation_by_depth"]

#: What measures TID.
MEASURE = (
    "Train with a batch norm, such as `--norm-encoder batch`; the monitor measures TID at every "
    "epoch. `rbn tid SAVE_DIR --json SAVE_DIR/tid.jsonl` measures it afterwards."
)
_WARNING = (
    "Its model and data (6 + 6 layers, IWSLT14) are not those here unless this section's title "
    "says so."
)
_READINGS = {
    "deviation": "relative to ‖μ‖ and ‖v‖ (relative deviation)",
    "tid": "relative to ‖σ‖ (TID)",
}
_OF_STD = ("% of ‖σ‖", "% of ‖σ‖")
_MAPS = 4
_KINDS = (("mean", "mean"), ("variance", "var"))


def _over_layers(
    group: Group,
    colours: Colours,
    readings: Sequence[tuple[str, str, Sequence[str], Mapping[str, Sequence[float]]]],
    prefix: str = "",
) -> list[list[Panel]]:
    """Return panels of quantities averaged over layers, by epoch; none where a layer lacks it.

    Args:
        group: the runs.
        colours: of the settings.
        readings: a row for each: its name, its heading, the units of mean and variance, and the
            paper's mean and variance by model.
        prefix: before the quantities' names in CSV.
    """
    by_epoch = group.frames["tid"].groupby(["run", "epoch", *IDENTITY], sort=False, dropna=False)
    grid = []
    for placement in group.placements:
        for reading, heading, units, paper in readings:
            row = []
            for number, (kind, short) in enumerate(_KINDS):
                name = f"{short}_{reading}"
                means = by_epoch[name].agg(lambda values: values.mean(skipna=False)).reset_index()
                references = tuple((pair[number], model) for model, pair in paper.items())
                row.append(
                    panel(
                        group, means, placement, heading.format(kind), name, units[number],
                        colours, quantity=prefix + name, factor=100, zero=True,
                        references=references,
                    )
                )  # fmt: skip
            grid.append(row)
    return grid


def _sampling(group: Group) -> list[str]:
    """Say on how many batches was measured, and how exactly."""
    tid = group.frames["tid"]
    notes = []
    used = tid[["batches", "total_batches"]].dropna(subset=["batches"]).drop_duplicates()
    if len(used):
        pairs = sorted(used.fillna(0).astype(int).itertuples(index=False, name=None))
        counts = ", ".join(f"{one} of {total}" if total else str(one) for one, total in pairs)
        notes.append(f"Measured on {counts} training batches.")
    error = tid[["mean_tid_error", "var_tid_error"]].max(axis=None) if len(tid) else np.nan
    if not np.isnan(error):
        notes.append(
            f"Sampling error of a single layer's TID: at most {100 * error:.2g} percentage points "
            "at any measurement (standard error over the batches); that of an average over layers "
            "is another."
        )
    if len(tid):
        modes = " and ".join(sorted({"on" if dropout else "off" for dropout in tid["dropout"]}))
        populations = ", ".join(sorted(set(tid["population"])))
        notes.append(f"Population: {populations}; dropout {modes}.")
    return notes


def average_tid(group: Group, colours: Colours) -> list[Figure | Missing]:
    """Figure 4: TID averaged over layers through training."""
    paper = {"BN on IWSLT14": published()["average_tid"]["Transformer"]}
    readings = (
        ("tid", "{} TID", _OF_STD, paper),
        ("conditional_tid", "{} TID given length", _OF_STD, {}),
    )
    grid = _over_layers(group, colours, readings, "average ")
    title = "Paper's Figure 4: average TID"
    caption = (
        "TID averaged over all batch norms, by epoch; epoch 0 is before training. The paper draws "
        "WMT16, CoNLL, IMDB and WT103 in Pre-Norm, where RBN ends below BN, and gives numbers for "
        "BN on IWSLT14: 2.8 % (mean) and 4.1 % (variance); ResNet18: 0.8 % and 0.9 %. "
        f"{_WARNING}"
    )
    if any(panel.curves for row in grid[1::2] for panel in row):
        caption += (
            " Given length: batches compared with the population of batches of like length, in the "
            "same unit; what is left is not due to bucketing by length."
        )
    return figure_of_curves(group, "figure4", title, caption, grid, MEASURE, _sampling(group))


def deviation(group: Group, colours: Colours) -> list[Figure | Missing]:
    """Figure 2, top: deviation of batches from the population through training."""
    paper = published()["deviation"]
    readings = (
        ("deviation", "relative deviation, {}", ("% of ‖μ‖", "% of ‖v‖"), paper),
        ("tid", "TID, {}", _OF_STD, {}),
    )
    grid = _over_layers(group, colours, readings)
    title = "Paper's Figure 2, top: deviation of batch statistics"
    caption = (
        "How far a batch's mean and variance are from the population's, averaged over batches and "
        f"layers, by both readings of the paper's definition: {' and '.join(_READINGS.values())}. "
        "The paper ends at 11 % (mean) and 13 % (variance) with a Transformer, 4 % and 4 % with "
        f"ResNet18. {_WARNING} Epoch 0: before training."
    )
    return figure_of_curves(group, "figure2_top", title, caption, grid, MEASURE, _sampling(group))


def deviation_by_depth(group: Group, colours: Colours) -> list[Figure | Missing]:
    """Figure 2, bottom: by layer, at the last measurement."""
    tid = group.frames["tid"]
    last = tid[tid["update"] == tid.groupby("run")["update"].transform("max")]
    names = {
        "var_deviation": ("variance deviation", "% of ‖v‖"),
        "var_tid": ("variance TID", _OF_STD[1]),
        "mean_tid": ("mean TID", _OF_STD[0]),
    }
    grid = [
        [
            panel(group, last, placement, heading, name, unit, colours, x="depth",
                  x_label="batch norm, from input to output", factor=100, zero=True)
            for name, (heading, unit) in names.items()
        ]
        for placement in group.placements
    ]  # fmt: skip
    title = "Paper's Figure 2, bottom: deviation by depth"
    caption = (
        "At each run's last measurement. Variance deviation is relative to ‖v‖, TID to ‖σ‖. "
        "The paper: the last batch norms, close to the output, have a large one in the Transformer."
    )
    return figure_of_curves(group, "figure2_bottom", title, caption, grid, MEASURE)


def depth_map(group: Group, colours: Colours) -> list[Figure | Missing]:
    """Figure 2, bottom right: deviation by depth and epoch, a map a run, BN's first."""
    title = "Paper's Figure 2, map: variance deviation by depth and epoch"
    tid = group.frames["tid"]
    often = tid.groupby("run")["epoch"].nunique()
    runs = [run for run in first_seeds(group).index if often.get(run, 0) > 1][:_MAPS]
    if not runs:
        return [Missing(title, f"Needs TID of two epochs. {MEASURE}")]
    drawn = pd.concat([tid[tid["run"] == run] for run in runs])
    whole = drawn["var_deviation"].notna().all()
    name, unit = ("var_deviation", "% of ‖v‖") if whole else ("var_tid", "% of ‖σ‖")
    maps = [
        100 * tid[tid["run"] == run].pivot(index="depth", columns="epoch", values=name)
        for run in runs
    ]
    headings = [
        f"{group.placed(group.runs.at[run, 'placement'], group.runs.at[run, 'norm'])}, {run}"
        for run in runs
    ]
    caption = (
        f"{'Variance deviation, relative to ‖v‖' if whole else 'Variance TID, relative to ‖σ‖'}"
        ", by layer (from input, 1, to output) and epoch. One colour scale for all maps."
    )
    numbers = drawn[["run", "epoch", "depth", "layer", name]].astype({"depth": int})
    draw = lambda: _draw_maps(maps, headings, unit)  # noqa: E731
    return [Figure("figure2_map", title, caption, draw, numbers)]


def _draw_maps(maps: Sequence[Any], headings: Sequence[str], unit: str) -> Canvas:
    columns = min(2, len(maps))
    with sheet(-(-len(maps) // columns), columns) as (canvas, grid):
        axes = [one for row in grid for one in row]
        top = max((np.nanmax(table.to_numpy()) for table in maps), default=1.0)
        for one, table, heading in zip(axes, maps, headings, strict=False):
            epochs = list(table.columns)
            edges = [*epochs, epochs[-1] + 1]  # an epoch's column begins at its number
            depths = np.arange(len(table) + 1) + 0.5
            image = one.pcolormesh(edges, depths, table, cmap="viridis", vmin=0, vmax=top)
            one.set(title=heading, xlabel="epoch", ylabel="batch norm, from input up")
            one.title.set_fontsize(9.5)
            one.grid(visible=False)
            centres = [(a + b) / 2 for a, b in zip(edges[:-1], edges[1:], strict=True)]
            step = -(-len(epochs) // 8)
            one.set_xticks(centres[::step], [str(epoch) for epoch in epochs[::step]])
            one.yaxis.set_major_locator(MaxNLocator(integer=True))
        for one in axes[len(maps) :]:
            one.axis("off")
        canvas.colorbar(image, ax=axes, label=f"{'deviation' if 'v' in unit else 'TID'}, {unit}")
        return canvas
