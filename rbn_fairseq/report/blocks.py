"""The parts of a report: tables and figures, in sections."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Canvas

from rbn_fairseq.report.figures.panels import Panel

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
        if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
            return ""
        if isinstance(value, str):
            return value
        digits = 1 if self.is_paper(place, column) else self.digits.get(column)
        if digits is None:
            return f"{value:z.0f}" if value % 1 == 0 else f"{value:g}"
        sign = "+" if column in self.signed else ""
        text = f"{value:{sign}z.{digits}f}"  # z: no negative zero
        spread, seeds = row.get(column + SPREAD), row.get(column + SEEDS)
        if spread is not None and not math.isnan(spread):
            text += f" ± {spread:.{digits}f}"
        if pd.notna(seeds) and pd.notna(row.get("n")) and seeds != row["n"]:
            text += f" (n = {seeds})"
        return text

    def is_paper(self, row: int, column: str) -> bool:
        """Return whether a cell is the paper's own number, not measured here."""
        return row in self.paper or column.startswith(_PAPER)

    @property
    def has_paper(self) -> bool:
        """Whether some of its numbers are the paper's."""
        return bool(self.paper) or any(column.startswith(_PAPER) for column in self.columns)

    def is_number(self, column: str) -> bool:
        """Return whether a column stands at the right: it has numbers."""
        return bool(pd.api.types.is_numeric_dtype(self.numbers[column])) or column in self.digits


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
