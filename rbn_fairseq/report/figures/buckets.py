"""TID against how many of the training's batches one batch is made of."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Optional

from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.commands import BATCHING
from rbn_fairseq.report.figures.batching import KINDS, Measured, measured
from rbn_fairseq.report.figures.missing import Drawn, Missing
from rbn_fairseq.report.figures.style import GREY, legend_below, plain_log, sheet
from rbn_fairseq.report.figures.training import placed
from rbn_fairseq.report.records import TIDPoint
from rbn_fairseq.report.series import Group, Series

__all__ = ["by_buckets", "by_processes"]


@dataclass(frozen=True)
class _Axis:
    """What a batch is made of, as ``--tid-batching KIND:NUMBER`` says it, and the figure of it."""

    kind: str
    symbol: str
    label: str
    name: str
    title: str
    lacking: str
    command: str
    caption: str

    def trained(self, series: Series) -> Optional[int]:
        """Return the number that the training's own batches have; ``None`` if they have none."""
        mixing = series.setup.length_mixing
        if self.kind == "joint" and mixing != 1:
            return None  # it is not the training's batches that are put together
        return mixing

    def by_number(self, series: Series, points: dict[str, TIDPoint]) -> dict[int, TIDPoint]:
        """Return measurements by the number, those as trained among them; none without these."""
        trained = self.trained(series)
        if trained is None:
            return {}
        found = {}
        for way, point in points.items():
            match = re.fullmatch(f"{self.kind}:([1-9][0-9]*)", way)
            if match:
                found[int(match[1])] = point
        found[trained] = points["as-trained"]
        return dict(sorted(found.items()))


_LINES = (
    "Grey: proportional to 1/sqrt({}), through the first run's batches as trained. Dotted: random "
    "batches{}. A line a run; logarithmic axes."
)
_BUCKETS = _Axis(
    "mixed", "K", "length buckets", "buckets",
    "TID by number of length buckets in a batch",
    "no run on batches of length buckets measured TID with mixed ones",
    BATCHING,
    "TID of the last batch norm where each batch is drawn from K random length buckets; K = 1 "
    "is fairseq's own batching. Batches as trained stand at the K of --length-mixing, 1 "
    "without; runs on random batches have none, and are left out. " + _LINES.format("K", ""),
)  # fmt: skip
_PROCESSES = _Axis(
    "joint", "W", "processes", "processes",
    "TID by number of processes with --norm-sync",
    "no run on fairseq's batches measured TID with joint batches",
    BATCHING,
    "TID of the last batch norm where W of fairseq's batches, one of each process, have their "
    "statistics together; the models were trained as their runs say, without --length-mixing. "
    + _LINES.format("W", " of one process"),
)  # fmt: skip


def by_buckets(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """TID of the last layer against K, the number of length buckets a batch is drawn from."""
    return _by(_BUCKETS, group, colours, suffix)


def by_processes(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """TID of the last layer against W, the number of processes that share statistics."""
    return _by(_PROCESSES, group, colours, suffix)


def _by(axis: _Axis, group: Group, colours: dict[str, str], suffix: str) -> Drawn:
    found = [it for it in measured(group, ("as-trained",)) if len(axis.by_number(it[0], it[2])) > 1]
    if not found:
        return Missing(axis.title, axis.lacking, axis.command)
    points = [
        (series, run, number, point)
        for series, run, own in found
        for number, point in axis.by_number(series, own).items()
    ]
    points += [
        (series, run, "random", own["random"]) for series, run, own in found if "random" in own
    ]
    rows = tuple(
        (run.name, series.norm, number, point.last.mean_tid, point.last.var_tid)
        for series, run, number, point in points
    )
    columns = ("run", "norm", axis.symbol, "mean_tid_last", "var_tid_last")
    draw = partial(_draw, axis, found, colours)
    return Figure(f"{axis.name}{suffix}", axis.title, axis.caption, draw, columns, rows)


def _draw(axis: _Axis, found: Sequence[Measured], colours: dict[str, str]) -> Canvas:
    with sheet(1, 2) as (canvas, (row,)):
        numbers = sorted({n for series, _, points in found for n in axis.by_number(series, points)})
        first, _, trained = found[0]
        for axes, (kind, name) in zip(row, KINDS.items(), strict=True):
            start = 100 * getattr(trained["as-trained"].last, name)
            law = [start * math.sqrt(axis.trained(first) / number) for number in numbers]
            axes.plot(numbers, law, "-.", color=GREY, label=f"1/sqrt({axis.symbol})")
            for series, _, points in found:
                own = axis.by_number(series, points)
                values = [100 * getattr(point.last, name) for point in own.values()]
                style = {"color": colours[series.norm], "linewidth": 1.4}
                dash = "--" if series.placement == "Pre-Norm" else "-"
                label = placed(series.placement, series.label)
                axes.plot(list(own), values, dash, marker="o", markersize=4, label=label, **style)
                if "random" in points:
                    level = 100 * getattr(points["random"].last, name)
                    axes.axhline(level, linestyle=":", **style)
            plain_log(axes.xaxis)
            plain_log(axes.yaxis)
            axes.xaxis.set_major_locator(FixedLocator(numbers))
            axes.set(
                title=f"{kind} TID, last layer", xlabel=f"{axis.symbol}, {axis.label}", ylabel="%"
            )
        legend_below(canvas, canvas.axes)
        return canvas
