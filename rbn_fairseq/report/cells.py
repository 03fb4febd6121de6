"""Cells of tables from numbers."""

from typing import Optional

from rbn_fairseq.report.blocks import Cell
from rbn_fairseq.report.series import Mean

__all__ = ["empty", "mean_cell", "number_cell", "paper_cell"]


def number_cell(value: Optional[float], digits: int, note: str = "", sign: bool = False) -> Cell:
    """Return a number with so many digits; an empty cell with the note where there is none."""
    if value is None:
        return Cell("", note=note)
    return Cell(f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}", value)


def mean_cell(mean: Optional[Mean], digits: int, runs: int, note: str = "") -> Cell:
    """Return mean ± standard deviation over seeds; a note where some of the runs lack it."""
    if mean is None:
        return Cell("", note=note)
    text = f"{mean.value:.{digits}f}"
    if mean.deviation is not None:
        text += f" ± {mean.deviation:.{digits}f}"
    part = f"{mean.number} of {runs} seeds" if mean.number < runs else ""
    values = (("", mean.value), ("standard deviation", mean.deviation), ("seeds", mean.number))
    return Cell(text, mean.value, note="; ".join(filter(None, (part, mean.note))), csv=values)


def paper_cell(value: Optional[float], sign: bool = False) -> Cell:
    """Return the paper's number with its one digit."""
    if value is None:
        return Cell("", paper=True)
    return Cell(f"{value:+.1f}" if sign else f"{value:.1f}", value, paper=True)


def empty(note: str = "") -> Cell:
    """Return a cell without content; ``note`` tells why, or the command that would fill it."""
    return Cell("", note=note)
