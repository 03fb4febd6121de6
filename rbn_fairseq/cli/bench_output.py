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


def _cells(row: Row) -> dict[str, str]:
    """Return the cells of a row by heading; what it does not have is empty."""

    def cell(value: Optional[float], form: str) -> str:
        return "" if value is None else form.format(value)

    percent = row.share is not None
    form = "{:.2f} to {:.2f} %" if percent else "{:.3f} to {:.3f}"
    factor = 100 if percent else 1
    return {
        "norm": row.norm,
        "case": row.case,
        "ms": cell(row.ms, "{:,.3f}" if (row.ms or 0) < 100 else "{:,.0f}"),
        "us/token": cell(row.us_per_token, "{:,.1f}"),
        "MiB": cell(row.bytes and row.bytes / 2**20, "{:,.1f}"),
        "ratio": cell(row.ratio_to_layer, "{:.3f}"),
        "share": cell(row.share, "{:.2%}").replace("%", " %"),
        "quartiles": form.format(*(factor * end for end in row.spread)) if row.spread else "",
        "x floor": cell(row.floor_ratio, "{:.2f}"),
    }


@contextmanager
def quiet() -> Iterator[None]:
    """Silence fairseq's log of every model, and Hydra's warnings about fairseq."""
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
    cells = [_cells(row) for row in rows]
    headings = [heading for heading in cells[0] if any(line[heading] for line in cells)]
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("norm", "case") else "right")
    for number, line in enumerate(cells, 1):
        ends = line["case"] != cells[number % len(cells)]["case"]
        table.add_row(*(line[heading] for heading in headings), end_section=ends)
    return table


def show(rows: Sequence[Row], path: Optional[Path], device: str) -> None:
    """Print a table for each bench and setting, and write the rows if asked to."""
    about = describe(device)
    out = console(path)
    for _, group in itertools.groupby(rows, key=lambda row: (row.bench, row.threads, row.dtype)):
        out.print(_table(list(group), about))
    write_json(path, [row.record() | about for row in rows])
