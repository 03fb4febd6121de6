"""The verbs of ``rbn``."""

from typing import Annotated

import typer

from rbn_fairseq.cli import (
    about,
    benchmark,
    checkpoints,
    doctor,
    fairseq_commands,
    measure,
    prepare,
    reports,
    train,
    translate,
    watch,
)
from rbn_fairseq.version import __version__

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"rbn_fairseq {__version__}")
        raise typer.Exit


@app.callback()
def rbn(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Regularised Batch Normalization for fairseq Transformers."""


for name, verb in (
    ("train", train.train),
    ("generate", fairseq_commands.generate),
    ("interactive", fairseq_commands.interactive),
    ("validate", fairseq_commands.validate),
):
    app.command(name, options_metavar="DATA-BIN [OPTIONS]", context_settings=_PASS_ON)(verb)
app.command("hydra-train", context_settings=_PASS_ON)(fairseq_commands.hydra_train)
app.add_typer(about.recipes, name="recipes")
app.command("translate")(translate.translate)
app.command("watch")(watch.watch)
app.command("options")(about.options)
app.command("norms")(about.norms)
app.command("tid")(measure.tid)
app.command("cost")(measure.cost)
app.command("average")(checkpoints.average)
app.command("recalibrate")(checkpoints.recalibrate)
app.command("fold")(checkpoints.fold)
app.command("run")(benchmark.run)
app.command("evaluate")(benchmark.evaluate)
app.command("score")(reports.score)
app.command("report")(reports.report)
app.command("table")(reports.table)
app.command("quickstart")(reports.quickstart)
app.add_typer(prepare.app, name="prepare")
app.command("doctor")(doctor.doctor)
app.command("user-dir")(about.user_dir)
