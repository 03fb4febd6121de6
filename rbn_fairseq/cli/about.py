"""Verbs that tell what there is."""

import argparse
import dataclasses
from pathlib import Path

import typer

import rbn_fairseq
from rbn_fairseq.cli.options import Json, Overwrite, UserDir
from rbn_fairseq.cli.output import check_json, console, write_json

__all__ = ["norms", "options", "user_dir"]


def user_dir() -> None:
    """Print the path for fairseq's --user-dir."""
    typer.echo(Path(rbn_fairseq.__file__).resolve().parent)


def norms(user_dir: UserDir = None, json: Json = None, overwrite: Overwrite = False) -> None:
    """List the norms for --norm-encoder and the other --norm-* options, with their parameters."""
    from rich.table import Table

    from rbn_fairseq.norms import NORMS

    check_json(json, overwrite=overwrite)
    table = Table("norm", "normalises (source)", show_lines=True)
    table.add_column("parameters (default)", no_wrap=True)
    values = []
    for name, entry in NORMS.items():
        parameters = {
            f"--norm-{name}-{option.name.replace('_', '-')}": option.default
            for option in dataclasses.fields(entry.options)
        }
        listed = "\n".join(f"{option} ({default})" for option, default in parameters.items())
        where = "; not in decoders" if entry.leaks else ""
        table.add_row(name, f"{entry.summary}{where} ({entry.source})", listed or "none")
        values.append(
            {
                "norm": name,
                "normalises": entry.summary,
                "source": entry.source,
                "in_decoders": not entry.leaks,
                "parameters": parameters,
            }
        )
    console(json).print(table)
    write_json(json, values)


def options(user_dir: UserDir = None) -> None:
    """List the plugin's options of `rbn train`, which fairseq's --help leaves out."""
    rbn_fairseq.register()
    from fairseq.dataclass.utils import gen_parser_from_dataclass

    from rbn_fairseq.cli.training_options import groups

    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS,
        add_help=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for group in groups():
        shown = parser.add_argument_group(f"{group.title} ({group.owner})")
        for config in group.configs:
            gen_parser_from_dataclass(shown, config())
    typer.echo(parser.format_help().rstrip())
