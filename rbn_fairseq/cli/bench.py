"""Verbs that measure speed."""

import csv
import logging
import platform
import shlex
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Optional

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from rbn_fairseq.cli.errors import plain_errors
from rbn_fairseq.cli.options import check_output

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Measure speed: ratios, interleaved in one run.")


def _read_setting(text: str) -> tuple[str, list[str]]:
    name, colon, arguments = text.partition(":")
    try:
        given = shlex.split(arguments)
    except ValueError:  # a quotation that does not end
        colon = ""
    if not (colon and name.strip()):
        raise ValueError(
            "--setting must be `NAME: OPTIONS`, such as `bn: --norm-encoder batch`, but is "
            f"`{text}`."
        )
    return name.strip(), given


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what fairseq tells of every model, and Hydra's warnings of what fairseq does."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _table(first: str) -> Table:
    """Return a table that names the machine."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    threads = f"{torch.get_num_threads()} threads"
    return Table(first, title=f"{device or 'CPU'}, {threads}, torch {torch.__version__}")


def _write(
    output: Optional[Path], header: Sequence[str], rows: Sequence[tuple[str, *tuple[float, ...]]]
) -> None:
    if output is None:
        return
    with plain_errors(), output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for name, *figures in rows:
            writer.writerow([name, *(f"{figure:.5g}" for figure in figures)])


@app.command(context_settings={"allow_extra_args": True})
def updates(
    context: typer.Context,
    data: Annotated[Path, typer.Argument(metavar="DATA-BIN", help="Training data.")],
    setting: Annotated[
        list[str],
        typer.Option(
            help="`NAME: OPTIONS` of fairseq-train (repeatable); the first is the reference."
        ),
    ],
    rounds: Annotated[int, typer.Option(min=1, help="Turns of every setting.")] = 20,
    updates: Annotated[int, typer.Option(min=1, help="Updates a turn.")] = 5,
    output: Annotated[Optional[Path], typer.Option(help="Also write the table as CSV.")] = None,
) -> None:
    """Time training updates of several settings, in turn, on the same batches.

    What follows `--` are options of fairseq-train for all settings, in the place of
    `--arch rbn_transformer_tiny --share-all-embeddings --optimizer adam --max-tokens 2000
    --criterion label_smoothed_cross_entropy_rbn --label-smoothing 0.1`.
    """
    from rbn_fairseq.bench.training import DEFAULTS
    from rbn_fairseq.bench.updates import compare_updates, time_updates
    from rbn_fairseq.tasks.data import check_data

    check_data(str(data))
    settings = dict(map(_read_setting, setting))
    if len(settings) < len(setting):
        raise ValueError("--setting: two settings have the same name.")
    check_output(output)
    with _quiet():
        common = context.args or DEFAULTS.split()
        turns = time_updates(str(data), settings, common, rounds, updates)
        progress = track(turns, "timing", rounds, console=Console(stderr=True), transient=True)
        results = compare_updates(list(progress))
    table = _table("setting")
    for column in ("seconds per update", f"ratio to {results[0].name}", "quartiles"):
        table.add_column(column, justify="right")
    for row in results:
        low, high = row.quartiles
        table.add_row(
            row.name, f"{row.seconds:.4g}", f"{row.ratio:.3f}", f"{low:.3f} to {high:.3f}"
        )
    Console().print(table)
    header = ("setting", "seconds", "ratio", "first_quartile", "third_quartile")
    _write(output, header, [(row.name, row.seconds, row.ratio, *row.quartiles) for row in results])


@app.command(context_settings={"allow_extra_args": True})
def tid(
    context: typer.Context,
    data: Annotated[Path, typer.Argument(metavar="DATA-BIN", help="Training data.")],
    rounds: Annotated[int, typer.Option(min=1, help="Turns of training and of measuring.")] = 10,
    batches: Annotated[int, typer.Option(min=2, help="Batches a turn.")] = 20,
    output: Annotated[Optional[Path], typer.Option(help="Also write the table as CSV.")] = None,
) -> None:
    """Time what is measured during training, beside the training itself.

    TID in one pass over training batches, and in two as the paper tells; the monitors' defaults.
    What follows `--` are options of fairseq-train, in the place of those that `rbn bench updates`
    names and `--norm-encoder batch`.
    """
    from rbn_fairseq.bench.tid import time_measuring, total_costs
    from rbn_fairseq.bench.training import DEFAULTS
    from rbn_fairseq.tasks.data import check_data

    check_data(str(data))
    check_output(output)
    options = context.args or [*DEFAULTS.split(), "--norm-encoder", "batch"]
    with _quiet(), TemporaryDirectory() as directory:
        epoch, turns = time_measuring(str(data), directory, options, rounds, batches)
        progress = track(turns, "timing", rounds, console=Console(stderr=True), transient=True)
        results = total_costs(list(progress), epoch)
    table = _table("an epoch's")
    for column in ("seconds", "share of training %", "quartiles"):
        table.add_column(column, justify="right")
    *rows, ratio = results
    for row in rows:
        low, high = (f"{100 * part:.2f}" for part in row.quartiles)
        table.add_row(row.name, f"{row.seconds:.3g}", f"{100 * row.share:.2f}", f"{low} to {high}")
    Console().print(table)
    low, high = ratio.quartiles
    typer.echo(f"{ratio.name}: {ratio.share:.3f} (quartiles {low:.3f} to {high:.3f})")
    header = ("what", "seconds", "share", "first_quartile", "third_quartile")
    _write(output, header, [(row.name, row.seconds, row.share, *row.quartiles) for row in results])
