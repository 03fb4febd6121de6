"""Figures that have no data, and the commands that would give them some."""

from dataclasses import dataclass

from rbn_fairseq.report.blocks import Figure

__all__ = ["Drawn", "Missing", "or_missing"]


@dataclass(frozen=True)
class Missing:
    """A figure or a table that is not drawn.

    Attributes:
        title: its heading.
        reason: what there is none of.
        command: what would fill it.
    """

    title: str
    reason: str
    command: str


Drawn = Figure | Missing


def or_missing(figure: Figure | None, title: str, reason: str, command: str) -> Drawn:
    """Return the figure, or what stands for it."""
    return figure or Missing(title, reason, command)
