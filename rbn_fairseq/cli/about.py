"""Verbs that list norms, options and recipes."""

import argparse
import dataclasses
from pathlib import Path
from typing import Annotated, Optional

import typer

import rbn_fairseq
from rbn_fairseq.cli.options import UserDir, console


def user_dir() -> None:
    """Print the path for fairseq's --user-dir."""
    typer.echo(Path(rbn_fairseq.__file__).resolve().parent)


def norms(user_dir: UserDir = None) -> None:
    """List the norms for --norm-encoder and the like; `rbn options` has their parameters."""
    from rich.table import Table

    from rbn_fairseq.norms import NORMS

    table = Table("norm", "normalises", "source", show_lines=True)
    for name, entry in NORMS.items():
        where = "; not in decoders" if entry.leaks else ""
        table.add_row(name, f"{entry.summary}{where}", entry.source)
    console().print(table)


def options(user_dir: UserDir = None) -> None:
    """List the plugin's options of `rbn train`, which fairseq's --help leaves out."""
    rbn_fairseq.register()
    from fairseq.dataclass import FairseqDataclass
    from fairseq.dataclass.utils import gen_parser_from_dataclass

    from rbn_fairseq.callbacks.base import options_of
    from rbn_fairseq.criterions.penalty import RBNPenaltyConfig
    from rbn_fairseq.models.config import norm_fields
    from rbn_fairseq.tasks.callbacks import CALLBACKS

    # With the options of norms that a user registered.
    norms = dataclasses.make_dataclass("norms", [*norm_fields()], bases=(FairseqDataclass,))
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS,
        add_help=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for title, configs in (
        ("norms (--arch rbn_transformer...)", (norms,)),
        ("penalty (--criterion ..._rbn)", (RBNPenaltyConfig,)),
        ("training (--task ..._rbn)", options_of(CALLBACKS)),
    ):
        group = parser.add_argument_group(title)
        for config in configs:
            gen_parser_from_dataclass(group, config())
    typer.echo(parser.format_help().rstrip())


def recipes(
    name: Annotated[
        Optional[str], typer.Argument(metavar="NAME", help="Print this recipe, to be changed.")
    ] = None,
) -> None:
    """List the recipes of `rbn train --recipe`, and what --norm and --preset choose in them.

    `rbn recipes default > mine.yaml` copies one, which `rbn train DATA-BIN --recipe mine.yaml`
    takes.
    """
    from rich.table import Table

    from rbn_fairseq.recipes import GROUPS, directory, find, names, summary

    if name is not None:
        typer.echo(find(name, option="NAME").read_text(encoding="utf-8"), nl=False)
        return
    table = Table("option", "name", "what it is")
    for group in ("", *GROUPS):
        for file in names(group):
            about = summary(directory() / group / f"{file}.yaml")
            table.add_row(f"--{group or 'recipe'}", file, about)
        table.add_section()
    console().print(table)
