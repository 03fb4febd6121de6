"""Imported by a process whose forks run commands: does once what each of them would do first."""

import contextlib
import io

import fairseq_cli.hydra_train
import fairseq_cli.train  # noqa: F401
import torch._dynamo  # noqa: F401  (the first optimizer imports it)

import composing
import runs
from rbn_fairseq.cli.app import app

_remembered = composing.remembered()
_remembered.__enter__()
composing.options_of(runs.train_arguments("DATA", "CHECKPOINTS"))
with contextlib.redirect_stdout(io.StringIO()):
    app(["user-dir"], standalone_mode=False)  # the first command imports what typer needs
