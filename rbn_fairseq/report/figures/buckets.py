"""TID against the number of length buckets that a batch is drawn from."""

import math
import re
from collections.abc import Sequence

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

__all__ = ["by_buckets"]


def _by_number(series: Series, points: dict[str, TIDPoint]) -> dict[int, TIDPoint]:
    """By number of length buckets that a batch is drawn from; as trained by the training's."""
    found = {}
    for way, point in points.items():
        match = re.fullmatch("mixed:([1-9][0-9]*)", way)
        if match:
            found[int(match[1])] = point
    found[series.setup.length_mixing] = points["as-trained"]
    return dict(sorted(found.items()))


def by_buckets(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """TID of the last layer against K, the number of length buckets a batch is drawn from."""
    title = "TID by number of length buckets in a batch"
    found = [
        (series, run, points)
        for series, run, points in measured(group, ("as-trained",))
        if len(_by_number(series, points)) > 1
    ]
    if not found:
        return Missing(title, "no run measured TID with mixed buckets", BATCHING)
    rows = tuple(
        (run.name, series.norm, number, point.last.mean_tid, point.last.var_tid)
        for series, run, points in found
        for number, point in _by_number(series, points).items()
    )
    rows += tuple(
        (
            run.name,
            series.norm,
            "random",
            points["random"].last.mean_tid,
            points["random"].last.var_tid,
        )
        for series, run, points in found
        if "random" in points
    )
    caption = (
        "TID of the last batch norm where each batch is drawn from K random length buckets; K = 1 "
        "is fairseq's own batching. Batches as trained stand at the K of --length-mixing, 1 "
        "without. Grey: proportional to 1/sqrt(K), through the first run's batches as trained. "
        "Dotted: random batches. A line a run; logarithmic axes."
    )
    return Figure(
        f"buckets{suffix}", title, caption, lambda: _draw_buckets(found, colours),
        ("run", "norm", "K", "mean_tid_last", "var_tid_last"), rows,
    )  # fmt: skip


def _draw_buckets(found: Sequence[Measured], colours: dict[str, str]) -> Canvas:
    with sheet(1, 2) as (canvas, (row,)):
        numbers = sorted({n for series, _, points in found for n in _by_number(series, points)})
        first, _, trained = found[0]
        for axes, (kind, name) in zip(row, KINDS.items(), strict=True):
            start = 100 * getattr(trained["as-trained"].last, name)
            law = [start * math.sqrt(first.setup.length_mixing / number) for number in numbers]
            axes.plot(numbers, law, "-.", color=GREY, label="1/sqrt(K)")
            for series, _, points in found:
                own = _by_number(series, points)
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
            axes.set(title=f"{kind} TID, last layer", xlabel="K, length buckets", ylabel="%")
        legend_below(canvas, canvas.axes)
        return canvas
