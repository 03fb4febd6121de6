"""Verbs that tell what there is."""

import dataclasses
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

import rbn_fairseq
from rbn_fairseq.norms import NORMS

__all__ = ["norms", "user_dir"]


def user_dir() -> None:
    """Print the path for fairseq's --user-dir."""
    typer.echo(Path(rbn_fairseq.__file__).resolve().parent)


def norms() -> None:
    """List the norms that --norm-encoder and its sisters know, with their parameters."""
    table = Table("norm", "normalises (source)", show_lines=True)
    table.add_column("parameters (default)", no_wrap=True)
    for name, entry in NORMS.items():
        parameters = "\n".join(
            f"--norm-{name}-{option.name.replace('_', '-')} ({option.default})"
            for option in dataclasses.fields(entry.options)
        )
        where = "; not in decoders" if entry.leaks else ""
        table.add_row(name, f"{entry.summary}{where} ({entry.source})", parameters or "none")
    Console().print(table)
