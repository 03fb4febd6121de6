"""A table as Markdown, as GitHub reads it."""

import re

from rbn_fairseq.report.blocks import Cell, Table
from rbn_fairseq.report.layout import PAPER, has_paper, letters, right_aligned, split_code

__all__ = ["to_markdown"]


def _text(text: str) -> str:
    return "".join(
        f"`{part}`" if code else re.sub(r"[\\*_<`&\[\]]", r"\\\g<0>", part)
        for part, code in split_code(text.replace("\n", " "))
    )


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _in_table(text: str) -> str:
    return _text(text).replace("|", r"\|")


def to_markdown(table: Table) -> str:
    """Return the table between its title and its notes; the paper's numbers are in italics."""
    marks = letters(table)

    def cell(it: Cell) -> str:
        text = _in_table(it.text)
        text = f"*{text}*" if it.paper and text else text
        return text + (f"<sup>{marks[it.note]}</sup>" if it.note else "")

    below = [f"<sup>{mark}</sup> {_text(note)}" for note, mark in marks.items()]
    below += [f"*Italics*: {PAPER}."] * has_paper(table)
    below += map(_text, table.notes)
    lines = [
        f"**{_text(table.title)}**",
        "",
        _row([_in_table(column) for column in table.columns]),
        _row(["---:" if right else ":---" for right in right_aligned(table)]),
        *(_row([cell(it) for it in row]) for row in table.rows),
    ]
    return "\n".join([*lines, *(f"\n{note}" for note in below)]) + "\n"
