"""CSV that a spreadsheet may open."""

import csv
import io
from collections.abc import Iterable
from typing import Any

__all__ = ["write_csv"]

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet computes what begins so


def _cell(value: Any) -> Any:
    """Put an apostrophe before a text that would be a formula; numbers stay what they are."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def write_csv(header: Iterable[Any], rows: Iterable[Iterable[Any]]) -> str:
    """Return a table of numbers and texts as CSV."""
    text = io.StringIO()
    lines = (map(_cell, line) for line in (header, *rows))
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
