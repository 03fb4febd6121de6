"""What a report consists of, before it becomes HTML, LaTeX, Markdown, CSV, SVG and PNG."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from matplotlib.figure import Figure as Canvas

__all__ = ["Cell", "Figure", "Section", "Sentences", "Table"]


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: what is read.
        value: what the column is sorted by, and what CSV has; ``None`` = the text.
        csv: what CSV has instead: values by name, a column each, such as the ends of an interval;
            an empty name is the column's own.
        paper: it is the paper's own number, not measured here: grey and labelled.
        note: what is told of it, such as the command that would fill an empty cell.
        colour: a dot before the text, the run's colour in every figure.
    """

    text: str
    value: Optional[float] = None
    paper: bool = False
    note: str = ""
    colour: str = ""
    csv: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Table:
    """A table; ``name`` is that of its files, ``notes`` stand below it."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure:
    """A figure with the numbers that it shows.

    Attributes:
        name: that of its files.
        title: its heading, such as ``Figure 1: training dynamics``.
        caption: what it shows, in which units, and what the paper has.
        draw: makes it; called once for each file.
        header: names of the columns of its CSV.
        rows: the CSV.
        notes: what is missing, and the command that would fill it.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[], Canvas]
    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sentences:
    """Sentences side by side, such as a source, its reference and what the runs made of it.

    Attributes:
        title: its heading.
        translations: a mapping of a label to a text for each sentence, in the order to be shown.
        colours: of the labels that are runs: the dot before a run's name.
        notes: stand below it.
    """

    title: str
    translations: tuple[Mapping[str, str], ...]
    colours: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        title: its heading.
        text: paragraphs, an empty line between them; lines that begin with ``- `` are a list. As in
            captions and notes, what stands between backticks is code, such as a command.
        blocks: what it shows, in this order.
    """

    title: str
    text: str
    blocks: tuple[Table | Figure | Sentences, ...]
