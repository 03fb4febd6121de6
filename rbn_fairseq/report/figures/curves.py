"""Curves by setting: a thin line a seed, the mean bold, the paper's numbers grey and dashed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Optional

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from rbn_fairseq.report.blocks import Curve, Figure, Panel
from rbn_fairseq.report.figures.style import GREY, Colours, legend_below, sheet
from rbn_fairseq.report.groups import IDENTITY, Group

_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))


def panel(
    group: Group,
    frame: pd.DataFrame,
    placement: Optional[str],
    title: str,
    column: str,
    unit: str,
    colours: Colours,
    *,
    x: str = "epoch",
    quantity: str = "",
    factor: float = 1.0,
    not_a_number: bool = False,
    differences: Optional[pd.DataFrame] = None,
    **style: Any,
) -> Panel:
    """Return a panel of one column by another, with a curve for each series that has points.

    Args:
        group: the runs.
        frame: rows with ``run``, the columns and the identity of their runs.
        placement: that of the rows to draw; ``None`` = all.
        title: above the panel, behind the placement.
        column: the values'; nothing is drawn of one that is not there.
        unit: label of the values' axis.
        colours: of the settings.
        x: a column, whose name is the axis' label.
        quantity: what CSV calls the values, if not as the column.
        factor: of the values, such as 100 for per cent.
        not_a_number: whether NaN is a value, as of a loss; else it is one that was not measured.
        differences: of the values to layer norm's, as
            :func:`rbn_fairseq.report.means.gaps_by_epoch` has them.
        style: other attributes of :class:`Panel`.
    """
    title = group.placed(placement or "", title)
    rows = frame if placement is None else frame[frame["placement"] == placement]
    values = rows.get(column, pd.Series(dtype=float))
    points = rows[[*IDENTITY, "run"]].assign(x=rows[x], value=values * factor)
    points = points if not_a_number else points[points["value"].notna()]
    if differences is not None:
        gaps = differences.set_index(["run", "epoch"])["gap"].rename("difference")
        points = points.join(gaps, on=["run", "x"])
    shown = points[["norm", "label", "series"]].drop_duplicates("series")
    settings = shown.groupby("norm").size()
    several = shown.groupby("norm")["label"].agg(lambda labels: len(set(labels.map(colours.get))))
    seen: dict[str, int] = {}
    curves = []
    for _, curve in points.groupby("series"):
        norm, label = curve["norm"].iloc[0], curve["label"].iloc[0]
        index = seen[norm] = seen.get(norm, -1) + 1
        many = bool(several[norm] < settings[norm])
        dash = "-" if many else _DASHES[index % len(_DASHES)]
        name = f"{norm}, {settings[norm]} settings" if many else label
        curves.append(Curve(curve, colours[label], dash, name, many))
    return Panel(title, quantity or column, x, unit, curves, **style)


def _draw_points(axes: Axes, points: pd.Series, level: float, **style: Any) -> None:
    """Draw values by x; what is not finite as a cross near the top edge."""
    finite = points.where(np.isfinite(points))
    if finite.notna().any():
        # None on dashes, which it would make look alike.
        marked = len(finite) <= 30 and style["linewidth"] > 0.7 and style["linestyle"] == "-"
        marker = "o" if marked or len(finite) == 1 else None
        axes.plot(
            finite.index, finite, marker=marker, markersize=6 if len(finite) == 1 else 3, **style
        )
    for x in points.index[finite.isna()]:
        axes.plot(
            [x], [level], "x", color=style["color"], markersize=6,
            transform=axes.get_xaxis_transform(), clip_on=False,
        )  # fmt: skip


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for height, curve in enumerate(panel.curves):
        several = curve.points["run"].nunique() > 1
        style = {"color": curve.colour, "linestyle": curve.dash}
        level = 0.985 - 0.035 * (height % 8)
        for _, seed in curve.points.groupby("run") if several else ():
            seed = seed.set_index("x")["value"]
            _draw_points(axes, seed, level, linewidth=0.6, alpha=0.5, **style)
        style |= {"linewidth": 2.2 if several else 0.7 if curve.many else 1.4}
        style |= {"alpha": 0.6} if curve.many else {}
        _draw_points(axes, curve.mean, level, label=curve.label, **style)
    if panel.line is not None:
        axes.axhline(panel.line, color="black", linewidth=0.8)
    for number, (value, name) in enumerate(panel.references):
        dash = ("--", ":")[number % 2]
        axes.axhline(value, color=GREY, linestyle=dash, linewidth=1, label=f"paper: {name}")
    if not np.isfinite(panel.values).all():
        axes.plot([], [], "x", color=GREY, markersize=6, label="not finite, at the top edge")
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.unit)
    _set_axes(axes, panel)


def _set_axes(axes: Axes, panel: Panel) -> None:
    finite = panel.values[np.isfinite(panel.values)]
    if panel.is_log:
        axes.set_yscale("log")
        if finite.max() < 1e3 * finite.min():  # ticks that read as numbers: 0.2, 0.5, 1
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_locator(NullLocator())
    elif panel.linear_to is not None:
        axes.set_yscale("symlog", linthresh=panel.linear_to)
        axes.yaxis.set_major_formatter("{x:g}")
    elif panel.zero:
        axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _draw(grid: Sequence[Sequence[Optional[Panel]]]) -> Canvas:
    with sheet(len(grid), len(grid[0])) as (canvas, rows):
        for panels, axes in zip(grid, rows, strict=True):
            for panel, one in zip(panels, axes, strict=True):
                if panel is None:
                    one.axis("off")
                else:
                    _draw_panel(one, panel)
        legend_below(canvas, canvas.axes)
        return canvas


def _numbers(panels: Sequence[Panel]) -> pd.DataFrame:
    """Return the CSV of panels: a line a point."""
    parts = [
        curve.points.assign(quantity=panel.quantity, axis=panel.x)
        for panel in panels
        for curve in panel.curves
    ]
    columns = ["placement", "norm", "detail", "run", "seed", "quantity", "axis", "x", "value"]
    return pd.concat(parts)[columns].rename(columns={"detail": "setting"})


def _with_clock(group: Group, panel: Panel) -> Panel:
    """Add updates and minutes to curves by epoch; epoch 0, before training, has 0 of both."""
    if panel.x != "epoch":
        return panel
    start = pd.DataFrame({"run": group.runs.index, "epoch": 0, "update": 0, "minutes": 0.0})
    parts = [start, group.frames["train"], group.frames["valid"].assign(minutes=float("nan"))]
    ends = pd.concat([part[list(start)].astype(dict(start.dtypes)) for part in parts])
    clock = ends.drop_duplicates(["run", "epoch"]).set_index(["run", "epoch"])
    curves = [replace(curve, points=curve.points.join(clock, on=["run", "x"]))
              for curve in panel.curves]  # fmt: skip
    return replace(panel, curves=curves)


def figure_of_curves(
    group: Group,
    name: str,
    title: str,
    caption: str,
    grid: Sequence[Sequence[Panel]],
    notes: Sequence[str] = (),
) -> list[Figure]:
    """Return a figure of panels in rows, without rows and columns that have no curve; or none."""
    full = [row for row in grid if any(panel.curves for panel in row)]
    if not full:
        return []
    columns = [n for n in range(len(full[0])) if any(row[n].curves for row in full)]
    shown = [[row[n] if row[n].curves else None for n in columns] for row in full]
    numbers = _numbers([panel for row in full for panel in row])
    panels = tuple(_with_clock(group, panel) for row in shown for panel in row if panel)
    return [Figure(name, title, caption, lambda: _draw(shown), numbers, tuple(notes), panels)]
