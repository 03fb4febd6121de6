"""Verbs that list norms, options and recipes."""

import argparse
import dataclasses
import shutil
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

import rbn_fairseq
from rbn_fairseq.cli.options import Json, Overwrite, UserDir, check_json, console, write_json
from rbn_fairseq.writing import check_output

__all__ = ["norms", "option_groups", "options", "recipes", "user_dir"]

recipes = typer.Typer(
    invoke_without_command=True,
    help="List the recipes of `rbn train --recipe`, and copy one out.",
)


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
            for option in dataclasses.fields(entry.options_type)
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


def option_groups() -> list[tuple[str, str, tuple[type[Any], ...]]]:
    """Return the plugin's options of a training, also those of norms that a user registered.

    Returns:
        For each group what it is about, what has to be given so that fairseq knows its options,
        and their dataclasses, in which a field without a help text is no option.
    """
    from fairseq.dataclass import FairseqDataclass

    from rbn_fairseq.callbacks.base import options_of
    from rbn_fairseq.criterions.options import RBNPenaltyConfig
    from rbn_fairseq.models.config import norm_fields
    from rbn_fairseq.tasks.translation_rbn import CALLBACKS

    norms = dataclasses.make_dataclass("norms", [*norm_fields()], bases=(FairseqDataclass,))
    return [
        ("norms", "--arch rbn_transformer...", (norms,)),
        ("penalty", "--criterion label_smoothed_cross_entropy_rbn", (RBNPenaltyConfig,)),
        ("training", "--task translation_rbn", options_of(CALLBACKS)),
    ]


def options(user_dir: UserDir = None) -> None:
    """List the plugin's options of `rbn train`, which fairseq's --help leaves out."""
    rbn_fairseq.register()
    from fairseq.dataclass.utils import gen_parser_from_dataclass

    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS,
        add_help=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for title, component, configs in option_groups():
        group = parser.add_argument_group(f"{title} ({component})")
        for config in configs:
            gen_parser_from_dataclass(group, config())
    typer.echo(parser.format_help().rstrip())


@recipes.callback()
def list_recipes(context: typer.Context, json: Json = None, overwrite: Overwrite = False) -> None:
    """List the recipes of `rbn train --recipe`, and what --norm and --preset choose in them."""
    if context.invoked_subcommand is not None:
        return
    from rich.table import Table

    from rbn_fairseq.recipes import GROUPS, directory, names, summary

    check_json(json, overwrite=overwrite)
    table = Table("option", "name", "what it is")
    values = []
    for group in ("", *GROUPS):
        for name in names(group):
            about = summary(directory() / group / f"{name}.yaml")
            table.add_row(f"--{group or 'recipe'}", name, about)
            values.append({"option": f"--{group or 'recipe'}", "name": name, "about": about})
        table.add_section()
    console(json).print(table)
    write_json(json, values)


@recipes.command()
def copy(
    name: Annotated[str, typer.Argument(help="Of a recipe.")],
    output: Annotated[
        Optional[Path], typer.Option(help="File to write.", show_default="NAME.yaml")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Copy a recipe, to change it: `rbn train DATA-BIN --recipe FILE` takes the copy."""
    from rbn_fairseq.recipes import find

    source = find(name, option="NAME")
    path = output or Path(source.name)
    check_output("--output", path, [source], overwrite)
    shutil.copyfile(source, path)
    typer.echo(f"wrote {path}")
