"""Curves by norm: a thin line a seed, the mean bold, the paper's numbers grey and dashed."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.figures.style import GREY, legend_below, plain_log, sheet
from rbn_fairseq.report.grouping import Series
from rbn_fairseq.report.runs import Run

__all__ = ["Curve", "Panel", "curves", "figure_of_curves", "mean_curve", "rows_of"]

Points = tuple[tuple[float, float], ...]
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
_SETTINGS = 4  # of one norm, that have a legend's entry each


@dataclass(frozen=True)
class Curve:
    """One series: its points by run."""

    series: Series
    colour: str
    dash: Any
    label: str
    many: bool
    points: tuple[tuple[Run, Points], ...]


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: above it.
        quantity: what CSV calls the values.
        x, y: labels of the axes, with units.
        curves: what is drawn.
        log: whether the values' axis is logarithmic, where they are positive and span more than a
            factor of ten.
        zero: whether it begins at 0.
        references: the paper's values, each with its name.
        line: where a black line is drawn across, such as at 0.
    """

    title: str
    quantity: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    log: bool = False
    zero: bool = False
    references: tuple[tuple[float, str], ...] = ()
    line: Optional[float] = None


def curves(
    series: Sequence[Series],
    colours: dict[str, str],
    values: Callable[[Run], Iterable[tuple[float, Optional[float]]]],
) -> tuple[Curve, ...]:
    """Return a curve for each series that has points; ``values`` gives (x, y) of a run."""
    number: dict[str, int] = {}
    for one in series:
        number[one.norm] = number.get(one.norm, 0) + 1
    seen: dict[str, int] = {}
    found = []
    for one in series:
        index = seen[one.norm] = seen.get(one.norm, -1) + 1
        many = number[one.norm] > _SETTINGS
        points = tuple(
            (run, tuple((x, y) for x, y in values(run) if y is not None)) for run in one.runs
        )
        points = tuple((run, own) for run, own in points if own)
        if points:
            label = f"{one.norm}, {number[one.norm]} settings" if many else one.label
            dash = "-" if many else _DASHES[index]
            found.append(Curve(one, colours[one.norm], dash, label, many, points))
    return tuple(found)


def mean_curve(curve: Curve) -> Points:
    """Average over seeds where all of them have a point."""
    columns = [dict(points) for _, points in curve.points]
    shared = sorted(set.intersection(*(set(column) for column in columns)))
    return tuple((x, sum(column[x] for column in columns) / len(columns)) for x in shared)


def _draw_points(axes: Axes, points: Points, edge: set[str], level: float, **style: Any) -> None:
    """Draw a line; what is not finite as a marker near the top edge, remembered in ``edge``."""
    finite = [(x, y if math.isfinite(y) else math.nan) for x, y in points]
    if any(not math.isnan(y) for _, y in finite):
        marker = "o" if len(finite) <= 30 and style["linewidth"] > 0.7 else None
        marker = "o" if len(finite) == 1 else marker
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
        for _, points in curve.points if several else ():
            _draw_points(axes, points, edge, level, linewidth=0.6, alpha=0.5, **style)
        style |= {"linewidth": 2.2 if several else 0.7 if curve.many else 1.4}
        style |= {"alpha": 0.6} if curve.many else {}
        _draw_points(axes, mean_curve(curve), edge, level, label=curve.label, **style)
    if panel.line is not None:
        axes.axhline(panel.line, color="black", linewidth=0.8)
    for value, name in panel.references:
        axes.axhline(value, color=GREY, linestyle="--", linewidth=1)
        axes.annotate(
            name, (1, value), xycoords=("axes fraction", "data"), xytext=(0, 1),
            textcoords="offset points", ha="right", va="bottom", fontsize=8, color=GREY,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1}, zorder=5,
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


def rows_of(panels: Iterable[Panel]) -> tuple[tuple[Any, ...], ...]:
    """Return the CSV of panels: a line a point."""
    return tuple(
        (
            one.series.placement, one.series.norm, one.series.detail, run.name,
            one.series.seeds[one.series.runs.index(run)], panel.quantity, panel.x, x, y,
        )
        for panel in panels
        for one in panel.curves
        for run, points in one.points
        for x, y in points
    )  # fmt: skip


HEADER = ("placement", "norm", "setting", "run", "seed", "quantity", "axis", "x", "value")


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
