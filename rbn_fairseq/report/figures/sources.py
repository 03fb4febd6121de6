"""Where TID comes from: sampling of sentences, and batches by length."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.compare import Group, of_largest
from rbn_fairseq.report.figures.style import Colours, legend_below, sheet

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


def _squares(measured: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Return one run's parts of squared TID in squared per cent, a row a batch norm."""
    name = _KINDS[kind]
    by_way = measured.drop_duplicates(["depth", "batching"], keep="last").pivot(
        index="depth", columns="batching", values=name
    )
    squared = (100 * by_way) ** 2
    trained = measured[measured["batching"] == "as-trained"].drop_duplicates("depth", keep="last")
    trained = trained.set_index("depth").sort_index()
    given_length = trained[name.replace("_tid", "_conditional_tid")]
    parts = {
        "sampling": squared["random"],
        "bucketing": squared["as-trained"] - squared["random"],
        "independent": (100 * trained[f"independent_{name}"]) ** 2,
        "given_length": (100 * given_length) ** 2,
    }
    return pd.DataFrame(parts).add_suffix(_UNIT).reset_index().astype({"depth": int})


def decomposition(group: Group, colours: Colours) -> list[Figure]:
    """Squared TID by layer as stacked bars, a row a run."""
    latest = of_largest(group.frames["batching"], "update")
    ways = latest.groupby("run")["batching"].agg(set)
    runs = [run for run in group.runs.index if {"as-trained", "random"} <= ways.get(run, set())]
    if not runs:
        return []
    parts = [
        _squares(latest[latest["run"] == run], kind).assign(run=run, kind=kind)
        for run in runs
        for kind in _KINDS
    ]
    numbers = pd.concat(parts)
    numbers = numbers[["run", "kind", *numbers.columns.drop(["run", "kind"])]]
    if numbers["given_length" + _UNIT].isna().all():
        numbers = numbers.drop(columns="given_length" + _UNIT)
    caption = (
        "Squared TID of each batch norm. Sentence sampling: that of random batches with as many "
        "tokens. Length bucketing: what batches as trained have more, which fairseq makes of "
        "sentences of like length, --length-mixing K of those of K lengths and --length-mixing "
        "random of any (squared TID as trained minus that of random batches; below zero where "
        "random batches have more). Reference line, no floor: the closed form for independent "
        "Gaussian tokens, (E 1/sqrt(n))² for the mean and half of it for the variance, over the "
        "batches as trained of n tokens; real sentences are stratified, and random batches may lie "
        "below. Dashed: batches as trained, compared with the population of batches of like length."
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
