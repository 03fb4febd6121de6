"""What the scripts have in common: arguments, the start, the output."""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Optional

import torch
import typer

from machine import describe, keep_freed_memory
from rbn_fairseq.cli.options import STDOUT, check_json, write_json
from rbn_fairseq.measuring.data_bin import check_data
from rounds import Row
from table import markdown

DEVICE: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"

Data = Annotated[Path, typer.Argument(metavar="DATA-BIN", help="Data for fairseq.")]
Device = Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to compute.")]
Options = Annotated[
    list[str],
    typer.Argument(metavar="[-- OPTIONS]", help="Options of fairseq-train, in place of these."),
]
Rounds = Annotated[
    int, typer.Option(min=1, help="Number of rounds that are counted; one more warms up.")
]
Threads = Annotated[int, typer.Option(min=1, help="Number of torch's threads on the CPU.")]


def begin(
    data: Path, json: Optional[Path], overwrite: bool, threads: int, keep_freed: bool = True
) -> None:
    """Check data and output before any work; set torch's threads and memory; silence fairseq.

    Raises:
        ValueError: naming what is wrong with the data or with --json.
    """
    check_data(str(data))
    check_json(json, overwrite=overwrite)
    torch.set_num_threads(threads)
    if keep_freed:
        keep_freed_memory()
    logging.basicConfig(level=logging.ERROR, force=True)
    warnings.simplefilter("ignore")  # Hydra's about fairseq


def show(rows: Sequence[Row], json: Optional[Path], device: str) -> None:
    """Print rows as tables, with what they were measured on, and write them if asked to."""
    about = describe(device)
    described = [row | about for row in rows]
    typer.echo(markdown(described), err=json == STDOUT)
    write_json(json, described)
