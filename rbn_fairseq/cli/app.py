"""All verbs of ``rbn``, put together."""

import sys

import typer

from rbn_fairseq.cli import about, doctor

__all__ = ["app"]

_HAS_FAIRSEQ = sys.modules.get("fairseq") is not None
_LACKING = "fairseq cannot be imported, so that most commands are missing: rbn doctor tells why."

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Regularised Batch Normalization for fairseq Transformers.",
    epilog=None if _HAS_FAIRSEQ else _LACKING,
)

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}

app.command("user-dir")(about.user_dir)
app.command("norms")(about.norms)
app.command("doctor")(doctor.doctor)

if _HAS_FAIRSEQ:
    from rbn_fairseq.cli import (
        bench,
        checkpoints,
        fairseq_commands,
        measure,
        prepare,
        reports,
        training_options,
    )

    app.command("train", context_settings=_PASS_ON)(fairseq_commands.train)
    app.command("options")(training_options.options)
    app.command("generate", context_settings=_PASS_ON)(fairseq_commands.generate)
    app.command("tid")(measure.tid)
    app.command("cost")(measure.cost)
    app.command("average")(checkpoints.average)
    app.command("recalibrate")(checkpoints.recalibrate)
    app.command("fold")(checkpoints.fold)
    app.command("score")(reports.score)
    app.command("report")(reports.report)
    app.command("table")(reports.table)
    app.command("quickstart")(reports.quickstart)
    app.add_typer(prepare.app, name="prepare")
    app.add_typer(bench.app, name="bench")
