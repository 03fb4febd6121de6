"""Validation loss through training, by way of normalising."""

import statistics
from dataclasses import replace
from typing import Any

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.figures.curves import figure_of_curves
from rbn_fairseq.report.figures.panel import Curve, Panel, Points
from rbn_fairseq.report.figures.training import placed
from rbn_fairseq.report.gaps import nll_of
from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.series import Group, Series

__all__ = ["cost_by_epoch"]

_MOST = 6  # settings that are drawn
_WAYS = {
    "running": ("running statistics", "-"),
    "running-global": ("running statistics of all lengths", (0, (5, 1.5, 1, 1.5))),
    "length-conditional": ("length-conditional statistics", (0, (5, 2))),
    "batch": ("batches' own statistics", (0, (1, 1.5))),
}


def _nll(run: Run, way: str) -> Points:
    """Validation nll by epoch, of checkpoints that were saved at the end of one."""
    epochs = {it.update: it.epoch for it in run.validations}
    found = {epochs[it.update]: it.nll for it in run.cost
             if it.statistics == way and it.update in epochs}  # fmt: skip
    return tuple(sorted(found.items()))


def _curve(series: Series, colour: str, name: str, dash: Any, points: list[Points]) -> Curve:
    by_run = tuple((run, own) for run, own in zip(series.runs, points, strict=True) if own)
    return Curve(series, colour, dash, f"{series.label}, {name}", False, by_run, name)


def _curves(group: Group, series: Series, colours: dict[str, str]) -> tuple[Curve, ...]:
    """Layer norm's, where there is one to be compared with, and the series' by way."""
    found = [
        _curve(series, colours[series.norm], *style, [_nll(run, way) for run in series.runs])
        for way, style in _WAYS.items()
    ]
    layer = group.baseline(series)
    if layer is not None:
        measured = {epoch for curve in found for _, points in curve.points for epoch, _ in points}
        points = [
            tuple((epoch, nll) for epoch, nll in nll_of(run).items() if epoch in measured)
            for run in layer.runs
        ]
        found.insert(0, _curve(layer, colours[layer.norm], "as validated", "-", points))
    return tuple(curve for curve in found if curve.points)


def _less(curves: tuple[Curve, ...], layer: Curve) -> tuple[Curve, ...]:
    """Subtract layer norm's mean over seeds, where all of its seeds have one."""
    columns = [dict(points) for _, points in layer.points]
    shared = set.intersection(*map(set, columns))
    mean = {epoch: statistics.fmean(own[epoch] for own in columns) for epoch in shared}

    def less(points: Points) -> Points:
        return tuple((epoch, nll - mean[epoch]) for epoch, nll in points if epoch in mean)

    return tuple(
        replace(it, points=tuple((run, less(points)) for run, points in it.points)) for it in curves
    )


def _row(group: Group, series: Series, colours: dict[str, str]) -> list[Panel]:
    curves = _curves(group, series, colours)
    layer, axes = curves[0], ("epoch", "bits per target token")
    label = series.label
    left = Panel(placed(series.placement, f"{label}, valid nll"), "nll", *axes, curves, band=True)
    differences = () if layer.series is series else _less(curves, layer)
    title = placed(series.placement, f"{label}, minus LN's")
    return [left, Panel(title, "nll minus LN's", *axes, differences, band=True)]


def cost_by_epoch(group: Group, colours: dict[str, str], suffix: str = "") -> list[Figure]:
    """Validation nll by epoch and way of normalising; nothing where it was measured once."""
    found = [one for one in group.series if any(len(_nll(run, "batch")) > 1 for run in one.runs)]
    grid = [_row(group, one, colours) for one in found[:_MOST]]
    caption = (
        "Validation nll in bits per target token by epoch: with the running statistics, as "
        "inference has them (those of all lengths besides, where a model was trained with bins of "
        "lengths), with statistics of sentences of like length, and with each batch's "
        "own (batches as trained; not usable in inference); layer norm's, which has no statistics, "
        "from its log. Right: the same minus layer norm's mean, below 0: better. Lines are means "
        "over seeds, bands reach from the least to the largest."
    )
    notes = []
    if len(found) > len(grid):
        notes.append(f"Drawn: the first {len(grid)} of {len(found)} settings.")
    figure = figure_of_curves(
        f"cost_by_epoch{suffix}", "Validation loss by way of normalising", caption, grid, notes
    )
    return [figure] if figure else []
