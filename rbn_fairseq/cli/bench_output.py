"""Prints the rows of `rbn bench` as tables and writes them as JSON."""

import itertools
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Optional

from rich.table import Table

from rbn_fairseq.bench.machine import describe
from rbn_fairseq.bench.rounds import Row
from rbn_fairseq.cli.options import console, write_json

__all__ = ["quiet", "show"]

# Heading, and the cell of a row; a column that no row of a table fills is left out.
_COLUMNS = {
    "norm": lambda row: row.norm,
    "case": lambda row: row.case,
    "ms": lambda row: None if row.ms is None else f"{row.ms:,.{3 if row.ms < 100 else 0}f}",
    "us/token": lambda row: None if row.us_per_token is None else f"{row.us_per_token:,.1f}",
    "MiB": lambda row: None if row.bytes is None else f"{row.bytes / 2**20:,.1f}",
    "ratio": lambda row: None if row.ratio_to_layer is None else f"{row.ratio_to_layer:.3f}",
    "share": lambda row: None if row.share is None else f"{100 * row.share:.2f} %",
    "quartiles": lambda row: _quartiles(row),
    "x floor": lambda row: None if row.floor_ratio is None else f"{row.floor_ratio:.2f}",
}


def _quartiles(row: Row) -> Optional[str]:
    if row.spread is None:
        return None
    if row.share is None:
        return "{:.3f} to {:.3f}".format(*row.spread)
    return "{:.2f} to {:.2f} %".format(*(100 * part for part in row.spread))


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out what fairseq tells of every model, and Hydra's warnings of what fairseq does."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _table(rows: Sequence[Row], about: dict[str, str]) -> Table:
    title = f"{rows[0].bench}: {rows[0].conditions}"
    floors = dict.fromkeys(row.floor for row in rows if row.floor)
    caption = [*(f"floor: {floor}" for floor in floors), *about.values()]
    table = Table(title=title, caption="\n".join(caption))
    cells = {heading: [cell(row) for row in rows] for heading, cell in _COLUMNS.items()}
    shown = {heading: column for heading, column in cells.items() if any(column)}
    for heading in shown:
        table.add_column(heading, justify="left" if heading in ("norm", "case") else "right")
    for number, line in enumerate(zip(*shown.values(), strict=True), 1):
        ends = rows[number - 1].case != rows[number % len(rows)].case
        table.add_row(*(cell or "" for cell in line), end_section=ends)
    return table


def show(rows: Sequence[Row], path: Optional[Path], device: str) -> None:
    """Print a table for each bench and setting, and write the rows if asked to."""
    about = describe(device)
    out = console(path)
    for _, group in itertools.groupby(rows, key=lambda row: (row.bench, row.threads, row.dtype)):
        out.print(_table(list(group), about))
    write_json(path, [row.record() | about for row in rows])
