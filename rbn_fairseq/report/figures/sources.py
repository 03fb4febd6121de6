"""Where TID comes from (sampling of sentences, batches by length), and what it costs."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.figures.style import Colours, legend_below, sheet
from rbn_fairseq.report.groups import Group, of_largest
from rbn_fairseq.report.means import name_diverged

_KINDS = {"mean": "mean_tid", "variance": "var_tid"}
_RUNS = 4
_PARTS = {
    "sampling": ("sentence sampling", "#56B4E9"),
    "bucketing": ("length bucketing", "#E69F00"),
}
_LINES = {
    "independent": ("independent tokens", ":"),
    "given_length": ("as trained, given length", "--"),
}
_UNIT = "_squared_percent"  # behind the names of parts and lines in CSV
_BARS = 8  # settings that are drawn
_WAYS = {
    "running": "running statistics",
    "running-global": "running, all lengths",
    "recalibrated": "recalibrated",
    "recalibrated-dropout": "recalibrated, dropout on",
    "pooled": "pooled",
    "length-conditional": "length-conditional",
    "batch-random": "random batches' own",
}


def _squares(measured: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Return one run's parts of squared TID in squared per cent, a row a batch norm."""
    name = _KINDS[kind]
    by_way = measured.drop_duplicates(["depth", "batching"], keep="last").set_index("batching")
    trained, random = (by_way.loc[[way]].set_index("depth") for way in ("as-trained", "random"))
    tids = {
        "sampling": random[name],
        "bucketing": trained[name],
        "independent": trained[f"independent_{name}"],
        "given_length": trained[name.replace("_tid", "_conditional_tid")],
    }
    squared = (100 * pd.DataFrame(tids).sort_index()) ** 2
    squared["bucketing"] -= squared["sampling"]
    return squared.add_suffix(_UNIT)


def decomposition(group: Group, colours: Colours) -> list[Figure]:
    """Squared TID by layer as stacked bars, a row a run."""
    latest = of_largest(group.frames["batching"], "update")
    ways = latest.groupby("run")["batching"].agg(set)
    runs = [run for run in group.runs.index if {"as-trained", "random"} <= ways.get(run, set())]
    if not runs:
        return []
    parts = {
        (run, kind): _squares(latest[latest["run"] == run], kind) for run in runs for kind in _KINDS
    }
    numbers = pd.concat(parts, names=["run", "kind"]).reset_index().astype({"depth": int})
    if numbers["given_length" + _UNIT].isna().all():
        numbers = numbers.drop(columns="given_length" + _UNIT)
    caption = (
        "Squared TID of each batch norm. Sentence sampling: that of random batches with as many "
        "tokens. Length bucketing: what batches as trained have more; below zero where random "
        "batches have more. Dotted, no floor: the closed form for independent Gaussian tokens, "
        "(E 1/sqrt(n))² for the mean and half of it for the variance, over the batches as trained "
        "of n tokens. Dashed: batches as trained, compared with the population of batches of like "
        "length."
    )
    notes = ()
    if len(runs) > _RUNS:
        notes = (f"Drawn: the first {_RUNS} of {len(runs)} runs; CSV has all.",)
    draw = partial(_draw_parts, group, numbers, runs[:_RUNS])
    return [Figure("batching", "Where TID comes from", caption, draw, numbers, notes)]


def _draw_parts(group: Group, numbers: pd.DataFrame, shown: list[str]) -> Canvas:
    with sheet(len(shown), len(_KINDS)) as (canvas, grid):
        for row, run in zip(grid, shown, strict=True):
            for axes, kind in zip(row, _KINDS, strict=True):
                _bars(axes, numbers[(numbers["run"] == run) & (numbers["kind"] == kind)])
                heading = group.placed(group.runs.at[run, "placement"], f"{run}, {kind} TID²")
                axes.set(
                    title=heading, xlabel="batch norm, from input to output", ylabel="TID², %²"
                )
                axes.title.set_fontsize(9.5)
        legend_below(canvas, canvas.axes)
        return canvas


def _bars(axes: Axes, squares: pd.DataFrame) -> None:
    depths, base = squares["depth"], squares["sampling" + _UNIT]
    for name, (label, colour) in _PARTS.items():
        part = squares[name + _UNIT]
        # A negative part hangs from zero, beside what stands on it.
        bottom = base.where(part >= 0, 0) if name == "bucketing" else 0
        axes.bar(depths, part, 0.7, bottom=bottom, color=colour, label=label)
    for name, (label, dash) in _LINES.items():
        if name + _UNIT in squares and squares[name + _UNIT].notna().any():
            ends = [depth + side for depth in depths for side in (-0.45, 0.45, 0.45)]
            heights = [h for value in squares[name + _UNIT] for h in (value, value, np.nan)]
            axes.plot(ends, heights, dash, color="black", linewidth=1.4, label=label)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(depths)
    axes.grid(axis="x", visible=False)


def discrepancy_cost(group: Group, colours: Colours) -> list[Figure]:
    """Validation nll with each way's statistics minus that with the batches' own."""
    cost = of_largest(group.frames["cost"], "update")
    cost = cost.drop_duplicates(["run", "statistics"], keep="last")
    mixing = group.series["settings"].map(lambda chosen: chosen.get("task.length_mixing", "1"))
    of_mixed = cost["series"].map(mixing).ne("1") & cost["statistics"].eq("length-conditional")
    drawn = group.without_diverged(cost[~of_mixed])
    if not len(drawn):
        return []
    ways = drawn.groupby(["series", "statistics"])["cost"]
    means, seeds = ways.mean().unstack(), ways.agg(list)
    caption = (
        "Validation nll with population statistics minus that with each batch's own (batches as "
        f"trained), in {group.metric.unit}, of each run's last checkpoint that was measured. Bars "
        "are means over seeds, points are seeds. Running: the exponential average of training; "
        "recalibrated: mean of batches with the final weights; pooled: over all tokens; "
        "length-conditional: as recalibrated, for each bin of sentence lengths."
    )
    notes = name_diverged(group)
    if of_mixed.any():
        notes.append(
            "Length-conditional is not drawn of trainings with --length-mixing, which normalised "
            "by all lengths together: it is no cost of inference there. CSV has it."
        )
    if len(means) > _BARS:
        notes.append(f"Drawn: the first {_BARS} of {len(means)} settings; CSV has all.")
    columns = ["placement", "label", "run", "statistics", "nll", "cost", "cost_random"]
    numbers = cost[columns].rename(columns={"label": "norm"})
    draw = partial(_draw_cost, group, means.head(_BARS), seeds, colours)
    return [Figure("cost", "Discrepancy cost", caption, draw, numbers, tuple(notes))]


def _draw_cost(group: Group, means: pd.DataFrame, seeds: pd.Series, colours: Colours) -> Canvas:
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
