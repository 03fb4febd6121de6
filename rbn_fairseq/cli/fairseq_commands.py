"""fairseq's commands with the plugin put in, and their errors in plain words."""

import argparse
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any, TextIO
from unittest import mock

import typer

import rbn_fairseq
from rbn_fairseq.cli.errors import explain_usage
from rbn_fairseq.cli.options import STDOUT, Json, Overwrite, UserDir, check_json, write_json

# Deprecations of Hydra and torch in fairseq's code, which no user can fix.
_KNOWN_WARNINGS = (
    r"hydra\.experimental\.\w+\(\) is no longer experimental",
    r"The version_base parameter is not specified|version_base=\"1\.1\" selects",
    r"In '.*': Usage of deprecated keyword in package header",
    r"'.*' is validated against ConfigStore schema with the same name",
    r"The strict flag in the compose API is deprecated",
    r"'pin_memory' argument is set as true but no accelerator is found",
    r"`torch\.cuda\.amp\.\w+\(args\.\.\.\)` is deprecated",
    r"Using (?:a )?non-full backward hooks? ",
    r"Support for mismatched key_padding_mask and attn_mask is deprecated",
)

LOG_FORMAT = "%(asctime)s | %(levelname)s | %(name)s | %(message)s"
LOG_DATES = "%Y-%m-%d %H:%M:%S"


def value_of(arguments: list[str], *names: str, default: str = "") -> str:
    """Return the value of an option, which may have several names; of several values the last."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(*names, dest="value", nargs="?", default=default)
    return parser.parse_known_args(arguments)[0].value or default


@contextmanager
def usage_errors() -> Iterator[None]:
    """Raise what fairseq's parser refuses as ValueErrors, without its 150 lines of usage."""

    def error(parser: argparse.ArgumentParser, message: str) -> None:
        raise ValueError(explain_usage(parser, message))

    with mock.patch.object(argparse.ArgumentParser, "error", error):
        yield


def hide_known_warnings() -> None:
    """Hide deprecation warnings that no user can do anything about."""
    for message in _KNOWN_WARNINGS:
        warnings.filterwarnings("ignore", message=rf"\s*(?:{message})")


def log_as_fairseq() -> None:
    """Set up logging as fairseq's commands do, and hide known deprecation warnings."""
    logging.basicConfig(
        format=LOG_FORMAT,
        datefmt=LOG_DATES,
        level=os.environ.get("LOGLEVEL", "INFO").upper(),
        stream=sys.stdout,
        force=True,
    )
    hide_known_warnings()


@contextmanager
def _settings_beside_translations() -> Iterator[None]:
    """Write settings into the file of --results-path, too, as fairseq-generate does.

    Its log goes there; here the log is on stdout.
    """
    from fairseq_cli import generate

    main = generate._main

    def write_settings(cfg: Any, file: TextIO) -> Any:
        if file is not sys.stdout:
            file.write(f"{cfg}\n")
        return main(cfg, file)

    with mock.patch.object(generate, "_main", write_settings):
        yield


def run_fairseq(name: str, arguments: list[str]) -> None:
    """Run a command of fairseq's, which reads its arguments from ``sys.argv``."""
    rbn_fairseq.register()
    main = importlib.import_module(f"fairseq_cli.{name}").cli_main
    log_as_fairseq()
    with usage_errors(), mock.patch.object(sys, "argv", [f"rbn {name}", *arguments]):
        main()


def plugin_options(arguments: list[str], user_dir: Path | None) -> list[str]:
    """Return the options that put the plugin in, or the user's own code, which comes on top.

    Raises:
        ValueError: if the architecture is for another of the plugin's tasks than the given one.
    """
    from rbn_fairseq.models.kinds import KINDS, TRANSLATION, kind_of

    package = Path(rbn_fairseq.__file__).resolve().parent
    architecture, task = value_of(arguments, "--arch", "-a"), value_of(arguments, "--task")
    kind = kind_of(architecture)
    if kind is not None and task != kind.task and task in {k.task for k in KINDS.values()}:
        raise ValueError(
            f"--arch {architecture} is for --task {kind.task}, not {task}: leave --task out, as "
            "the architecture chooses it, or take a --recipe for such a model (`rbn recipes`)."
        )
    of_model = [] if task else ["--task", (kind or TRANSLATION).task]
    return ["--user-dir", str(user_dir or package), *of_model]


def _run_on_checkpoint(name: str, arguments: list[str], user_dir: Path | None) -> None:
    """Run a command of fairseq's on checkpoints, after a check that they can be read.

    Raises:
        ValueError: if one is missing, damaged or unsafe, or does not translate where that is asked.
    """
    from rbn_fairseq.checkpoints.files import plain_settings, read_checkpoint

    paths = value_of(arguments, "--path")
    if not paths:
        raise ValueError(
            "The checkpoint is missing: give --path CHECKPOINT, such as "
            "checkpoints/checkpoint_best.pt."
        )
    rbn_fairseq.register()
    from fairseq.tasks import TASK_REGISTRY

    for path in filter(None, paths.split(":")):
        cfg = read_checkpoint(Path(path)).get("cfg") or {}
        settings = plain_settings(cfg.get("task"))
        task = settings.get("_name")
        trained, translation = TASK_REGISTRY.get(task), TASK_REGISTRY["translation"]
        if not value_of(arguments, "--task") and hasattr(trained, "adapter"):
            if name != "validate" and not issubclass(trained, translation):
                raise ValueError(
                    f"`{path}` was trained for {task}, not to translate: `rbn validate` scores it."
                )
            arguments = [*arguments, "--task", task]  # as it was trained, by this plugin
            for option in ("--source-lang", "--target-lang"):  # fairseq takes the files' direction
                language = settings.get(option[2:].replace("-", "_"))
                if language and not value_of(arguments, option, f"-{option[2]}"):
                    arguments += [option, language]
        if name == "validate" and not value_of(arguments, "--max-tokens", "--batch-size"):
            for option in ("max_tokens", "batch_size"):
                if size := plain_settings(cfg.get("dataset")).get(f"{option}_valid"):
                    arguments = [f"--{option.replace('_', '-')}", str(size), *arguments]
    run_fairseq(name, arguments + plugin_options(arguments, user_dir))


def generate(context: typer.Context, user_dir: UserDir = None) -> None:
    """Translate: fairseq-generate with --user-dir and --task put in; its options are the same."""
    with _settings_beside_translations():
        _run_on_checkpoint("generate", context.args, user_dir)


def interactive(context: typer.Context, user_dir: UserDir = None) -> None:
    """Translate lines of stdin, in pieces: fairseq-interactive with the plugin put in."""
    _run_on_checkpoint("interactive", context.args, user_dir)


def validate(
    context: typer.Context,
    json: Json = None,
    overwrite: Overwrite = False,
    user_dir: UserDir = None,
) -> None:
    """Validate a checkpoint: fairseq-validate with the plugin put in.

    `--valid-subset test --json RUN/score.json` scores a run on its test set, by perplexity,
    accuracy or F1. Batches have the size that validation in training had, unless --max-tokens or
    --batch-size says otherwise.
    """
    from fairseq.logging import progress_bar

    read = value_of(context.args, "--path").split(os.pathsep)
    check_json(json, [Path(path) for path in read if path], overwrite)
    make = progress_bar.progress_bar
    scores: dict[str, dict[str, float]] = {}

    def recorded(*given: Any, **settings: Any) -> Any:
        bar = make(*given, **settings)
        show = bar.print

        def show_and_keep(stats: dict[str, Any], tag: str, step: int) -> None:
            speed = ("wps", "wpb", "bsz")
            scores[tag] = {name: float(stats[name]) for name in stats if name not in speed}
            show(stats, tag=tag, step=step)

        bar.print = show_and_keep
        return bar

    with (
        mock.patch.object(progress_bar, "progress_bar", recorded),
        redirect_stdout(sys.stderr) if json == STDOUT else nullcontext(),
    ):
        _run_on_checkpoint("validate", context.args, user_dir)
    if json is not None and not scores:
        raise ValueError(
            "--json: the scores are those of other processes. Leave --distributed-world-size out."
        )
    write_json(json, scores)
