"""What a panel of curves holds: a quantity by norm, setting and run."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.series import Series

__all__ = ["HEADER", "Curve", "Panel", "Points", "band_of", "curves", "mean_curve", "rows_of"]

Points = tuple[tuple[float, float], ...]
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
#: Columns of :func:`rows_of`.
HEADER = ("placement", "norm", "setting", "run", "seed", "quantity", "axis", "x", "value")
_SETTINGS = 4  # of one norm, that have a legend's entry each


@dataclass(frozen=True)
class Curve:
    """One series: its points by run; ``quantity`` where it is another than the panel's."""

    series: Series
    colour: str
    dash: Any
    label: str
    many: bool
    points: tuple[tuple[Run, Points], ...]
    quantity: str = ""


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
        band: whether seeds are a band from the least to the largest in place of thin lines.
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
    band: bool = False


def curves(
    series: Sequence[Series],
    colours: dict[str, str],
    values: Callable[[Run], Iterable[tuple[float, Optional[float]]]],
) -> tuple[Curve, ...]:
    """Return a curve for each series that has points; ``values`` gives (x, y) of a run."""
    drawn = []
    for one in series:
        points = tuple(
            (run, tuple((x, y) for x, y in values(run) if y is not None)) for run in one.runs
        )
        points = tuple((run, own) for run, own in points if own)
        if points:
            drawn.append((one, points))
    norms = [one.norm for one, _ in drawn]
    seen: dict[str, int] = {}
    found = []
    for one, points in drawn:
        index = seen[one.norm] = seen.get(one.norm, -1) + 1
        number = norms.count(one.norm)
        many = number > _SETTINGS
        label = f"{one.norm}, {number} settings" if many else one.label
        dash = "-" if many else _DASHES[index]
        found.append(Curve(one, colours[one.norm], dash, label, many, points))
    return tuple(found)


def mean_curve(curve: Curve) -> Points:
    """Average over seeds where all of them have a point."""
    columns = [dict(points) for _, points in curve.points]
    shared = sorted(set.intersection(*(set(column) for column in columns)))
    return tuple((x, sum(column[x] for column in columns) / len(columns)) for x in shared)


def band_of(curve: Curve) -> tuple[tuple[float, float, float], ...]:
    """Return the least and the largest value over seeds where all of them have one."""
    columns = [dict(points) for _, points in curve.points]
    values = ((x, [column[x] for column in columns]) for x, _ in mean_curve(curve))
    return tuple((x, min(own), max(own)) for x, own in values)


def rows_of(panels: Iterable[Panel]) -> tuple[tuple[Any, ...], ...]:
    """Return the CSV of panels: a line a point."""
    return tuple(
        (
            one.series.placement, one.series.norm, one.series.detail, run.name,
            one.series.seeds[one.series.runs.index(run)],
            ", ".join(filter(None, (panel.quantity, one.quantity))), panel.x, x, y,
        )
        for panel in panels
        for one in panel.curves
        for run, points in one.points
        for x, y in points
    )  # fmt: skip
