"""Where TID comes from: sentences sampled at random, and batches made by length."""

import math
from collections.abc import Sequence
from typing import Optional

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.commands import BATCHING
from rbn_fairseq.report.figures.missing import Drawn, Missing
from rbn_fairseq.report.figures.style import legend_below, sheet
from rbn_fairseq.report.figures.training import placed
from rbn_fairseq.report.records import TIDPoint, latest
from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.series import Group, Series, first_seeds

__all__ = ["KINDS", "Measured", "decomposition", "measured"]

KINDS = {"mean": "mean_tid", "variance": "var_tid"}
_RUNS = 4
_PARTS = {"sentence sampling": "#56B4E9", "length bucketing": "#E69F00"}
_LINES = {"permuted tokens": "-", "independent tokens": ":", "as trained, given length": "--"}

Measured = tuple[Series, Run, dict[str, TIDPoint]]


def _latest(run: Run) -> dict[str, TIDPoint]:
    """The measurements of the last checkpoint, by way of making batches."""
    return {point.batching: point for point in latest(run.batching)}


def measured(group: Group, needed: Sequence[str]) -> list[Measured]:
    """Return the runs that measured TID with all of these ways of making batches."""
    found = [(one, run, _latest(run)) for one, run in first_seeds(group)]
    return [it for it in found if all(name in it[2] for name in needed)]


def _squares(point: Optional[TIDPoint], name: str, layers: Sequence[str]) -> list[float]:
    """Squared TID by layer, in squared per cent; NaN where there is none."""
    found = {it.layer: getattr(it, name) for it in point.layers} if point else {}
    values = (found.get(layer) for layer in layers)
    return [math.nan if value is None else (100 * value) ** 2 for value in values]


def _columns(points: dict[str, TIDPoint], kind: str) -> dict[str, list[float]]:
    name = KINDS[kind]
    trained = points["as-trained"]
    layers = [it.layer for it in trained.layers]
    whole, random, permuted = (
        _squares(points.get(way), name, layers) for way in ("as-trained", "random", "permuted")
    )
    return {
        "sentence sampling": random,
        "length bucketing": [a - b for a, b in zip(whole, random, strict=True)],
        "permuted tokens": permuted,
        "independent tokens": _squares(trained, f"independent_{name}", layers),
        "as trained, given length": _squares(trained, name.replace("_", "_conditional_"), layers),
    }


def decomposition(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """Squared TID by layer as stacked bars, a row a run."""
    title = "Where TID comes from"
    found = measured(group, ("as-trained", "random"))
    if not found:
        return Missing(title, "no run measured TID with random batches", BATCHING)
    shown = found[:_RUNS]
    rows = []
    negative = []
    for _, run, points in found:
        for kind in KINDS:
            columns = _columns(points, kind)
            lines = zip(*columns.values(), strict=True)
            rows += [(run.name, kind, depth, *line) for depth, line in enumerate(lines, 1)]
            below = [n for n, part in enumerate(columns["length bucketing"], 1) if part < 0]
            if below:
                negative.append(f"{run.name}, {kind}: {', '.join(map(str, below))}")
    notes = []
    if negative:
        notes.append(
            "Length bucketing is negative, and drawn as it is, where random batches have more TID "
            f"than those of training, in the batch norms of {'; '.join(negative)}."
        )
    if len(found) > len(shown):
        notes.append(f"Drawn: the first {len(shown)} of {len(found)} runs; CSV has all.")
    caption = (
        "Squared TID of each batch norm. Sentence sampling: that of random batches with as many "
        "tokens. Length bucketing: what batches as trained have more, which fairseq makes of "
        "sentences of like length, --length-mixing K of those of K lengths and --length-mixing "
        "random of any (squared TID as trained minus that of random batches). Reference lines, no "
        "floor: tokens permuted across batches, and the closed form for independent Gaussian "
        "tokens, (E 1/sqrt(n))² for the mean and half of it for the variance, over the batches as "
        "trained of n tokens; real sentences are stratified, and random batches may lie below."
    )
    parts = ["sampling", "bucketing", "permuted", "independent"]
    if all(math.isnan(row[-1]) for row in rows):  # as of older versions
        rows = [row[:-1] for row in rows]
    else:
        parts.append("given_length")
        caption += (
            " Dashed: batches as trained, compared with the population of batches of like length."
        )
    header = ("run", "kind", "depth", *(f"{part}_squared_percent" for part in parts))
    return Figure(
        f"batching{suffix}", title, caption, lambda: _draw_bars(shown), header, tuple(rows),
        tuple(notes),
    )  # fmt: skip


def _draw_bars(shown: Sequence[Measured]) -> Canvas:
    with sheet(len(shown), len(KINDS)) as (canvas, grid):
        for row, (series, run, points) in zip(grid, shown, strict=True):
            for axes, kind in zip(row, KINDS, strict=True):
                _bars(axes, _columns(points, kind))
                heading = placed(series.placement, f"{run.name}, {kind} TID²")
                axes.set(title=heading, xlabel="batch norm, from input to output", ylabel="%²")
                axes.title.set_fontsize(9.5)
        legend_below(canvas, canvas.axes)
        return canvas


def _bars(axes: Axes, columns: dict[str, list[float]]) -> None:
    base = columns["sentence sampling"]
    depths = range(1, len(base) + 1)
    for name, colour in _PARTS.items():
        part = columns[name]
        # A negative part hangs from zero, beside what stands on it.
        bottom = [
            0 if name == "sentence sampling" or p < 0 else b
            for b, p in zip(base, part, strict=True)
        ]
        axes.bar(depths, part, 0.7, bottom=bottom, color=colour, label=name)
    for name, dash in _LINES.items():
        if not all(map(math.isnan, columns[name])):
            ends = [depth + side for depth in depths for side in (-0.45, 0.45, 0.45)]
            heights = [h for value in columns[name] for h in (value, value, math.nan)]
            axes.plot(ends, heights, dash, color="black", linewidth=1.4, label=name)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(depths)
    axes.grid(axis="x", visible=False)
