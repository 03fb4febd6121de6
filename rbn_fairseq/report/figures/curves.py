"""Curves by norm: a thin line a seed, the mean bold, the paper's numbers grey and dashed."""

import math
from collections.abc import Sequence
from typing import Any, Optional

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.figures.panel import HEADER, Panel, Points, band_of, mean_curve, rows_of
from rbn_fairseq.report.figures.style import GREY, legend_below, plain_log, sheet

__all__ = ["draw_panel", "figure_of_curves"]


def _draw_points(axes: Axes, points: Points, edge: set[str], level: float, **style: Any) -> None:
    """Draw a line; what is not finite as a marker near the top edge, remembered in ``edge``."""
    finite = [(x, y if math.isfinite(y) else math.nan) for x, y in points]
    if any(not math.isnan(y) for _, y in finite):
        # None on dashes, which it would make look alike.
        marked = len(finite) <= 30 and style["linewidth"] > 0.7 and style["linestyle"] == "-"
        marker = "o" if marked or len(finite) == 1 else None
        size = 6 if len(finite) == 1 else 3
        axes.plot(*zip(*finite, strict=True), marker=marker, markersize=size, **style)
    for x, y in points:
        if not math.isfinite(y):
            kind = "nan" if math.isnan(y) else "infinite"
            edge.add(kind)
            axes.plot(
                [x], [level], {"nan": "x", "infinite": "^"}[kind], color=style["color"],
                markersize=6, transform=axes.get_xaxis_transform(), clip_on=False,
            )  # fmt: skip


def draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw one pair of axes."""
    edge: set[str] = set()
    for height, curve in enumerate(panel.curves):
        several = len(curve.points) > 1
        style = {"color": curve.colour, "linestyle": curve.dash}
        level = 0.985 - 0.035 * (height % 8)
        if several and panel.band:
            band = zip(*band_of(curve), strict=True)
            axes.fill_between(*band, color=curve.colour, alpha=0.15, linewidth=0)
        for _, points in curve.points if several and not panel.band else ():
            _draw_points(axes, points, edge, level, linewidth=0.6, alpha=0.5, **style)
        style |= {"linewidth": 2.2 if several else 0.7 if curve.many else 1.4}
        style |= {"alpha": 0.6} if curve.many else {}
        _draw_points(axes, mean_curve(curve), edge, level, label=curve.label, **style)
    if panel.line is not None:
        axes.axhline(panel.line, color="black", linewidth=0.8)
    for number, (value, name) in enumerate(panel.references):
        dash = ("--", ":")[number % 2]
        axes.axhline(value, color=GREY, linestyle=dash, linewidth=1, label=f"paper: {name}")
        axes.annotate(
            f"{value:g}", (1, value), xycoords=("axes fraction", "data"), xytext=(3, 0),
            textcoords="offset points", va="center", fontsize=8, color=GREY,
        )  # fmt: skip
    for kind, marker in (("infinite", "^"), ("nan", "x")):
        if kind in edge:
            name = {"nan": "not a number (NaN)", "infinite": "infinite"}[kind]
            axes.plot([], [], marker, color=GREY, markersize=6, label=f"{name}, at the top edge")
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    places = {x for curve in panel.curves for _, points in curve.points for x, _ in points}
    values = [y for curve in panel.curves for _, points in curve.points for _, y in points]
    finite = [value for value in values if math.isfinite(value)]
    if panel.log and finite and min(finite) > 0 and max(finite) > 10 * min(finite):
        plain_log(axes.yaxis) if max(finite) < 1e3 * min(finite) else axes.set_yscale("log")
    elif panel.zero:
        axes.set_ylim(bottom=0)
    if len(places) == 1:
        (place,) = places
        axes.set(xlim=(place - 0.5, place + 0.5), xticks=[place])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _draw(grid: Sequence[Sequence[Optional[Panel]]]) -> Canvas:
    with sheet(len(grid), len(grid[0])) as (canvas, rows):
        for own, axes in zip(grid, rows, strict=True):
            for panel, one in zip(own, axes, strict=True):
                if panel is None:
                    one.axis("off")
                else:
                    draw_panel(one, panel)
        legend_below(canvas, canvas.axes)
        return canvas


def figure_of_curves(
    name: str,
    title: str,
    caption: str,
    grid: Sequence[Sequence[Panel]],
    notes: Sequence[str] = (),
) -> Optional[Figure]:
    """Return a figure of panels in rows; rows and columns without any curve are left out.

    ``None`` if nothing is left.
    """
    full = [row for row in grid if any(panel.curves for panel in row)]
    if not full:
        return None
    kept = [n for n in range(len(full[0])) if any(row[n].curves for row in full)]
    shown = [[row[n] if row[n].curves else None for n in kept] for row in full]
    drawn = [panel for row in shown for panel in row if panel]
    return Figure(name, title, caption, lambda: _draw(shown), HEADER, rows_of(drawn), tuple(notes))
