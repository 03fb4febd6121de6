"""The parts of a report: tables and figures, in sections."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Canvas

from rbn_fairseq.report.figures.style import THEMED

#: Behind a column's name: columns of the standard deviation and the number of seeds of its means.
SPREAD, SEEDS = ", standard deviation", ", seeds"
_PAPER = "paper"  # columns and rows that begin so are the paper's numbers


@dataclass(frozen=True, eq=False)
class Table:
    """A table.

    Attributes:
        name: that of its files.
        title: its heading.
        numbers: a row a line, in full precision, as CSV has it; the first column names the row.
            What is missing is NaN, ``None`` or empty. Columns of :data:`SPREAD` and
            :data:`SEEDS` are shown within the column before them: as ±, and where they are other
            than the row's ``n``.
        digits: behind the decimal point, by column; a column without them is shown as it is.
        signed: columns whose positive numbers are shown with a plus.
        notes: paragraphs below it.
        colours: of dots before the rows' names, the runs' colours in every figure.
        paper: rows whose numbers are the paper's own; so are those of columns called ``paper, …``.
    """

    name: str
    title: str
    numbers: pd.DataFrame
    digits: Mapping[str, int] = field(default_factory=dict)
    signed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    colours: tuple[str, ...] = ()
    paper: frozenset[int] = frozenset()

    @property
    def columns(self) -> list[str]:
        """The columns that are shown."""
        return [column for column in self.numbers if not column.endswith((SPREAD, SEEDS))]

    def texts(self) -> pd.DataFrame:
        """Return the cells as rounded text."""
        rows = [
            [self._text(row, place, column) for column in self.columns]
            for place, row in enumerate(self.numbers.to_dict("records"))
        ]
        return pd.DataFrame(rows, columns=self.columns, dtype=str)

    def _text(self, row: Mapping[Any, Any], place: int, column: str) -> str:
        value = row[column]
        if pd.isna(value):
            return ""
        if isinstance(value, str):
            return value
        digits = 1 if self.is_paper(place, column) else self.digits.get(column)
        if digits is None:
            return f"{value:z.0f}" if value % 1 == 0 else f"{value:g}"
        sign = "+" if column in self.signed else ""
        text = f"{value:{sign}z.{digits}f}"  # z: no negative zero
        spread, seeds = row.get(column + SPREAD), row.get(column + SEEDS)
        if pd.notna(spread):
            text += f" ± {spread:.{digits}f}"
        if pd.notna(seeds) and pd.notna(row.get("n")) and seeds != row["n"]:
            text += f" (n = {seeds})"
        return text

    def is_paper(self, row: int, column: str) -> bool:
        """Return whether a cell is the paper's own number, not measured here."""
        return row in self.paper or column.startswith(_PAPER)

    def is_number(self, column: str) -> bool:
        """Return whether a column stands at the right: it has numbers."""
        return bool(pd.api.types.is_numeric_dtype(self.numbers[column])) or column in self.digits


@dataclass(frozen=True, eq=False)
class Curve:
    """One series: ``points`` has a row a point, with ``run``, ``x``, ``value`` and the identity.

    There may be columns ``difference`` (of the value to layer norm's), ``update`` and ``minutes``
    besides. ``many`` where the norm has many settings.
    """

    points: pd.DataFrame
    colour: str
    dash: Any
    label: str
    many: bool = False

    @property
    def mean(self) -> pd.Series:
        """Average over seeds where all of them have a point, by x."""
        by_x = self.points.groupby("x")["value"]
        mean = by_x.agg(lambda values: values.mean(skipna=False))
        return mean[by_x.size() == self.points["run"].nunique()]

    def data(self) -> dict[str, Any]:
        """Return what the page's script draws, as containers for JSON."""
        runs = [
            {"run": run}
            | {
                name: _for_json(points[name], "NaN" if name == "value" else None)
                for name in ("x", "value", "difference", "update", "minutes")
                if name in points and (name == "value" or points[name].notna().any())
            }
            for run, points in self.points.groupby("run", sort=False)
        ]
        dash = [] if self.dash == "-" else list(self.dash[1])
        name = self.points["label"].iloc[0] if self.many else self.label
        return {
            "label": self.label, "name": name, "dash": dash, "runs": runs,
            "many": self.many,
            "colour": THEMED.get(self.colour.lower(), self.colour),
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
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
    curves: Sequence[Curve]
    log: bool = False
    zero: bool = False
    references: tuple[tuple[float, str], ...] = ()
    line: Optional[float] = None

    @property
    def values(self) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """All values of its curves."""
        every = [curve.points["value"].to_numpy(dtype=float) for curve in self.curves]
        return np.concatenate(every) if every else np.array([])

    @property
    def is_log(self) -> bool:
        """Whether the values' axis is logarithmic."""
        finite = self.values[np.isfinite(self.values)]
        return bool(self.log and finite.size and 0 < 10 * finite.min() < finite.max())

    @property
    def linear_to(self) -> Optional[float]:
        """Up to where the values' axis is linear around 0, a power of ten; beyond, logarithmic.

        ``None`` (all of it linear) unless its line is at 0 and a value far away would press most
        others onto it.
        """
        sizes = np.abs(self.values[np.isfinite(self.values)])
        middle = np.median(sizes) if self.line == 0 and sizes.size else 0
        far = 0 < 20 * middle < sizes.max()
        return float(10 ** np.ceil(np.log10(middle))) if far else None

    @property
    def unit(self) -> str:
        """Label of the values' axis."""
        beyond = self.linear_to
        return self.y if beyond is None else f"{self.y},\nlogarithmic beyond ±{beyond:g}"

    def data(self) -> dict[str, Any]:
        """Return what the page's script draws, as containers for JSON."""
        return {
            "title": self.title, "x": self.x, "y": self.unit, "log": self.is_log, "zero": self.zero,
            "linear_to": self.linear_to, "line": self.line, "references": self.references,
            "curves": [curve.data() for curve in self.curves],
        }  # fmt: skip


def _for_json(values: Iterable[float], not_a_number: Optional[str]) -> list[Any]:
    """Round to six digits; what is not finite becomes a text."""
    return [
        float(f"{value:.6g}") if math.isfinite(value)
        else not_a_number if math.isnan(value) else "∞" if value > 0 else "-∞"
        for value in values
    ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure with the numbers that it shows.

    Attributes:
        name: that of its files.
        title: its heading, such as ``Paper's Figure 1: training dynamics``.
        caption: what it shows, in which units, and what the paper has.
        draw: returns it; called once for each report.
        numbers: the CSV.
        notes: what is missing or left out.
        panels: of curves, which the page's script draws in the picture's place, so that they can
            be questioned; none = the picture alone.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[], Canvas]
    numbers: pd.DataFrame
    notes: tuple[str, ...] = ()
    panels: tuple[Panel, ...] = ()


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        title: its heading.
        text: a paragraph. As in captions and notes, what stands between backticks is code.
        blocks: what it shows, in this order.
        unfolded: whether it is open when the page is.
    """

    title: str
    text: str
    blocks: tuple[Table | Figure, ...]
    unfolded: bool = True
