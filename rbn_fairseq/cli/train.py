"""The verb that trains."""

import logging
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Optional
from unittest import mock

import typer

import rbn_fairseq
from rbn_fairseq.cli.errors import MISSING_DATA
from rbn_fairseq.cli.fairseq_commands import log_as_fairseq, plugin_options, value_of
from rbn_fairseq.cli.options import UserDir
from rbn_fairseq.cli.recipe_options import PROCESSES, parse_training, with_recipe


def train(
    context: typer.Context,
    recipe: Annotated[
        Optional[str],
        typer.Option(
            help="Settings to begin with, of `rbn recipes` or a file; options that you give "
            "override them.",
            show_default="`default`, where there is no --arch",
        ),
    ] = None,
    norm: Annotated[
        Optional[str],
        typer.Option(
            help="With a recipe: another norm, such as ln, bn, rbn. With --norm-encoder, "
            "--norm-decoder or --norm-placement it is ln, so without a penalty.",
            show_default="the recipe's",
        ),
    ] = None,
    preset: Annotated[
        Optional[str],
        typer.Option(
            help="With a recipe for translation: `small`, a model for CPUs; `mixed`, batches of 16 "
            "lengths."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check options, data and model; train nothing.")
    ] = False,
    user_dir: UserDir = None,
) -> None:
    """Train: `rbn train DATA-BIN`, or fairseq-train with the plugin put in.

    Without options it trains the paper's RBN, on batches sorted by length. To translate well, take
    `--norm ln --length-mixing 16`.

    Every option of fairseq-train is one here: `rbn options` lists those of the plugin,
    `fairseq-train --help` general ones, and `rbn recipes NAME` what a recipe sets, those of the
    model, the criterion and the optimizer among them. Training takes one GPU unless options say
    more. The log also goes to SAVE_DIR/train.log, with progress as JSON lines, unless --log-file
    says where.
    """
    log_as_fairseq()
    arguments = list(context.args)
    if not arguments:
        raise ValueError(MISSING_DATA)
    rbn_fairseq.register()
    if recipe is None and not value_of(arguments, "--arch", "-a"):
        recipe = "default"
    if recipe is not None:
        chosen = {"norm": norm, "preset": preset}
        arguments = with_recipe(arguments, user_dir, recipe, chosen)
    elif norm or preset:
        given = f"--norm {norm}" if norm else f"--preset {preset}"
        raise ValueError(
            f"{given} is for recipes, and --arch is given instead: add --recipe NAME, or give "
            f"{'--norm-encoder' if norm else 'its options one by one'}."
        )
    if not any(value_of(arguments, option) for option in PROCESSES):  # fairseq takes every GPU
        arguments += ["--distributed-world-size", "1"]
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.distributed import utils as distributed

    parsed = parse_training(arguments + plugin_options(arguments, user_dir))
    cfg = convert_namespace_to_omegaconf(parsed)
    if check:
        logging.getLogger().setLevel(logging.WARNING)
        _check(cfg)
        return
    distributed.call_main(cfg, _train)


def _train(cfg: Any) -> None:
    """Train in this process; the first process writes the log."""
    from fairseq.distributed import utils as distributed
    from fairseq_cli.train import main

    from rbn_fairseq.cli.train_log import logged_to

    log_as_fairseq()
    first = distributed.is_master(cfg.distributed_training)
    if not first:  # as fairseq has it
        logging.getLogger().setLevel(logging.WARNING)
    log = Path(cfg.checkpoint.save_dir) / "train.log"
    shown_there = log.exists() and os.path.samestat(log.stat(), os.fstat(1))  # by the shell's >
    elsewhere = cfg.common.log_file is not None or shown_there
    with logged_to(log) if first and not elsewhere else nullcontext():
        main(cfg)


def _check(cfg: Any) -> None:
    """Run fairseq's training up to its first update, and describe it; nothing is written."""
    from fairseq import checkpoint_utils
    from fairseq.trainer import Trainer
    from fairseq_cli.train import main

    from rbn_fairseq.callbacks import resume, start
    from rbn_fairseq.checkpoints.files import read_checkpoint
    from rbn_fairseq.checkpoints.mending import LAST

    load, iterate = checkpoint_utils.load_checkpoint, Trainer.get_train_iterator
    last = Path(cfg.checkpoint.save_dir) / LAST
    processes = cfg.distributed_training.distributed_world_size

    def share(trainer: Any, *arguments: Any, **settings: Any) -> Any:
        _ = trainer.model  # is made for one process
        with mock.patch.object(Trainer, "data_parallel_world_size", processes):
            return iterate(trainer, *arguments, **settings)

    def describe(checkpoint: Any, trainer: Any, **settings: Any) -> None:
        _, iterator = load(checkpoint, trainer, **settings)
        each = f" on each of {processes} processes" if processes > 1 else ""
        typer.echo(
            f"ok: {cfg.model._name}, {len(iterator):,} batches an epoch{each}; "
            f"{trainer.get_num_updates():,} updates so far in {last.parent}"
        )
        raise typer.Exit

    cfg.distributed_training.distributed_world_size = 1
    cfg.common.log_file = None
    if last.exists():
        read_checkpoint(last, mmap=True)  # refuses a damaged one
    with (
        mock.patch.object(checkpoint_utils, "load_checkpoint", describe),
        mock.patch.object(Trainer, "get_train_iterator", share),
        mock.patch.object(checkpoint_utils, "verify_checkpoint_directory"),
        mock.patch.object(resume, "mend"),
        mock.patch.object(start, "hold"),
    ):
        main(cfg)
