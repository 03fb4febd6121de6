"""The verbs of ``rbn``."""

import sys
from typing import Annotated

import typer

from rbn_fairseq.cli import (
    about,
    checkpoints,
    doctor,
    evaluate,
    fairseq_commands,
    hydra_train,
    measure,
    prepare,
    reports,
    train,
    translate,
)
from rbn_fairseq.cli.options import Verbs
from rbn_fairseq.version import __version__

app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Elsewhere, without colours, Markdown would lose its marks.
    rich_markup_mode="markdown" if sys.stdout.isatty() else None,
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


for verb in (
    train.train,
    fairseq_commands.generate,
    fairseq_commands.interactive,
    fairseq_commands.validate,
):
    app.command(options_metavar="DATA-BIN [OPTIONS]", context_settings=_PASS_ON)(verb)
app.command(context_settings=_PASS_ON)(hydra_train.hydra_train)
_PLAIN = (
    *(about.recipes, translate.translate, about.options, about.norms),
    *(measure.tid, measure.cost, checkpoints.average, checkpoints.recalibrate, checkpoints.fold),
    *(evaluate.evaluate, reports.score, reports.report, reports.table, reports.quickstart),
    *(doctor.doctor, about.user_dir),
)
for verb in _PLAIN:
    app.command()(verb)
app.add_typer(prepare.app, name="prepare")
