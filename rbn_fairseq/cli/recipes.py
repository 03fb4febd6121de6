"""Verbs that show the recipes, and copy one out."""

import shutil
from pathlib import Path
from typing import Annotated, Optional

import typer

from rbn_fairseq.cli.options import Json, Overwrite
from rbn_fairseq.cli.output import check_json, console, write_json
from rbn_fairseq.files import check_output

__all__ = ["app"]

app = typer.Typer(
    invoke_without_command=True,
    help="List the recipes of `rbn train --recipe`, and copy one out.",
)


@app.callback()
def recipes(context: typer.Context, json: Json = None, overwrite: Overwrite = False) -> None:
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


@app.command()
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
