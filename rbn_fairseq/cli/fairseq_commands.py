"""fairseq's commands with the plugin put in."""

import argparse
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import typer

from rbn_fairseq.checkpoints.files import read_checkpoint
from rbn_fairseq.cli.full_disk import full_disk_as_user_error

__all__ = ["generate", "train"]

logger = logging.getLogger(__name__)


def _option(arguments: list[str], name: str, default: str) -> str:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(name, dest="value", default=default)
    value: str = parser.parse_known_args(arguments)[0].value
    return value


def _has(arguments: list[str], name: str) -> bool:
    return any(argument == name or argument.startswith(name + "=") for argument in arguments)


def _run(main: Callable[[], None], name: str, arguments: list[str]) -> None:
    plugin = ["--user-dir", str(Path(__file__).resolve().parent.parent)]
    task = [] if _has(arguments, "--task") else ["--task", "translation_rbn"]
    # As fairseq's commands do themselves where they come first; see `main` of this package.
    logging.basicConfig(
        format="%(asctime)s | %(levelname)s | %(name)s | %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        level=os.environ.get("LOGLEVEL", "INFO").upper(),
        stream=sys.stdout,
        force=True,
    )
    before, sys.argv = sys.argv, [name, *arguments, *plugin, *task]
    try:
        main()
    finally:
        sys.argv = before


def train(context: typer.Context) -> None:
    """Train: fairseq-train with --user-dir and --task put in; every option is fairseq-train's.

    `rbn options` lists those of the plugin, `fairseq-train --help` all others.
    """
    from fairseq_cli.train import cli_main

    arguments = list(context.args)
    with full_disk_as_user_error(Path(_option(arguments, "--save-dir", "checkpoints"))):
        _run(cli_main, "rbn train", arguments)


def generate(context: typer.Context) -> None:
    """Translate: fairseq-generate with --user-dir and --task put in; its options are the same.

    `fairseq-generate --help` lists them.
    """
    from fairseq_cli.generate import cli_main

    for path in filter(None, _option(context.args, "--path", "").split(":")):
        read_checkpoint(Path(path))
    _run(cli_main, "rbn generate", list(context.args))
