"""What a table has in each of its forms: letters for notes, alignment, code in its texts."""

from collections.abc import Sequence
from itertools import count, islice, product
from string import ascii_lowercase

from rbn_fairseq.report.blocks import Cell, Table

__all__ = ["PAPER", "check_table", "has_paper", "is_long", "letters", "right_aligned", "split_code"]

#: What is said of cells that are not ours.
PAPER = "the paper’s own numbers, not measured here"
_LONG = 40  # characters


def check_table(table: Table) -> None:
    """Refuse a table whose rows and columns do not match.

    Raises:
        ValueError: if a row has more or fewer cells than there are columns.
    """
    for number, row in enumerate(table.rows, 1):
        if len(row) != len(table.columns):
            raise ValueError(
                f"Table `{table.name}`: row {number} has {len(row)} cells, but there are "
                f"{len(table.columns)} columns. Give every row a cell for every column; an empty "
                "one is `Cell('')`."
            )


def letters(table: Table) -> dict[str, str]:
    """Return a letter for each note of a cell, in reading order; equal notes share a letter."""
    notes = dict.fromkeys(cell.note for row in table.rows for cell in row if cell.note)
    names = ("".join(it) for size in count(1) for it in product(ascii_lowercase, repeat=size))
    return dict(zip(notes, islice(names, len(notes)), strict=True))


def has_paper(table: Table) -> bool:
    """Return whether some of its numbers are the paper's."""
    return any(cell.paper for row in table.rows for cell in row)


def is_long(cell: Cell) -> bool:
    """Return whether its text is so long that it had better have several lines."""
    return len(cell.text) > _LONG


def right_aligned(table: Table) -> tuple[bool, ...]:
    """Return for each column whether it stands at the right: neither the first nor one of text."""

    def numeric(column: int) -> bool:
        cells = [row[column] for row in table.rows]
        return any(cell.value is not None for cell in cells) or not any(it.text for it in cells)

    return tuple(column > 0 and numeric(column) for column in range(len(table.columns)))


def split_code(text: str) -> Sequence[tuple[str, bool]]:
    """Split a text at its backticks.

    Returns:
        Pairs of a text and whether it is code. A backtick without a partner is an ordinary
        character.
    """
    parts = text.split("`")
    if len(parts) % 2 == 0:
        parts[-2:] = ["`".join(parts[-2:])]
    return [(part, number % 2 == 1) for number, part in enumerate(parts) if part]
