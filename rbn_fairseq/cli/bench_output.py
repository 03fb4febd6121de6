"""What the verbs of `rbn bench` share: their options, and what becomes of the rows."""

import itertools
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Optional

import torch
import typer
from rich.console import Console
from rich.table import Table

from rbn_fairseq.bench.machine import describe
from rbn_fairseq.bench.rows import Row
from rbn_fairseq.cli.errors import plain_errors
from rbn_fairseq.files import write_whole

__all__ = [
    "Device",
    "Json",
    "Rounds",
    "Threads",
    "check_figure",
    "check_json",
    "choose_device",
    "numbers",
    "quiet",
    "show",
]

Device = Annotated[
    Optional[str],
    typer.Option(help="`cpu` or `cuda`. (default: cuda if there is one)", show_default=False),
]
Json = Annotated[
    Optional[Path],
    typer.Option(
        "--json",
        metavar="FILE",
        help="Also write the rows as a JSON list; `-` writes them to stdout, the table to stderr.",
    ),
]
Rounds = Annotated[
    int, typer.Option(min=1, help="Turns of each that are counted; one more warms up.")
]
Threads = Annotated[int, typer.Option(min=1, help="Of torch, on the CPU.")]

_STDOUT = Path("-")
# Heading, and the cell of a row; a column that no row of a table fills is left out.
_COLUMNS = {
    "norm": lambda row: row.norm,
    "case": lambda row: row.case,
    "ms": lambda row: None if row.ms is None else f"{row.ms:,.{3 if row.ms < 100 else 0}f}",
    "MiB": lambda row: None if row.bytes is None else f"{row.bytes / 2**20:,.1f}",
    "ratio": lambda row: None if row.ratio_to_layer is None else f"{row.ratio_to_layer:.3f}",
    "share": lambda row: None if row.share is None else f"{100 * row.share:.2f} %",
    "quartiles": lambda row: _quartiles(row),
    "x floor": lambda row: None if row.floor_ratio is None else f"{row.floor_ratio:.2f}",
    "collectives": lambda row: (
        None if row.collectives is None else "{} + {}".format(*row.collectives)
    ),
}


def _quartiles(row: Row) -> Optional[str]:
    if row.spread is None:
        return None
    if row.share is None:
        return "{:.3f} to {:.3f}".format(*row.spread)
    return "{:.2f} to {:.2f} %".format(*(100 * part for part in row.spread))


def choose_device(device: Optional[str]) -> str:
    """Return the device to measure on.

    Raises:
        ValueError: if it is unknown or not there.
    """
    there = torch.cuda.is_available()
    if device is None:
        return "cuda" if there else "cpu"
    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device must be `cpu` or `cuda`, but is `{device}`.")
    if device == "cuda" and not there:
        raise ValueError("--device cuda: torch finds no such GPU here. Leave it out, or take cpu.")
    return device


def numbers(option: str, text: str, least: int = 1) -> list[int]:
    """Read whole numbers joined by commas.

    Raises:
        ValueError: if one is no whole number, or too small.
    """
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [least - 1]
    if min(found) < least:
        raise ValueError(
            f"{option} must be whole numbers from {least} on, joined by commas, but is `{text}`."
        )
    return found


def check_json(path: Optional[Path]) -> None:
    """Refuse, before any work, a file in no directory.

    Raises:
        ValueError: naming the directory.
    """
    if path is not None and not path.parent.is_dir():
        raise ValueError(f"--json: the directory `{path.parent}` does not exist.")


def check_figure(path: Optional[Path]) -> None:
    """Refuse, before any work, a figure in no directory or of an unknown format.

    Raises:
        ValueError: naming what is wrong with it.
    """
    if path is None:
        return
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--figure must end with .png, .svg or .pdf, but is `{path}`.")
    if not path.parent.is_dir():
        raise ValueError(f"--figure: the directory `{path.parent}` does not exist.")


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
    first = rows[0]
    title = f"{first.bench}: {first.device}, {first.threads} threads, {first.dtype}"
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
    console = Console(stderr=path == _STDOUT)
    if not console.is_terminal:
        console.width = 120  # a file has no lines to end
    for _, group in itertools.groupby(rows, key=lambda row: (row.bench, row.threads, row.dtype)):
        console.print(_table(list(group), about))
    if path is None:
        return
    text = json.dumps([row.record() | about for row in rows], indent=1) + "\n"
    if path == _STDOUT:
        typer.echo(text, nl=False)
    else:
        with plain_errors():
            write_whole(path, text)
