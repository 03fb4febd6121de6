"""The verb that trains."""

import logging
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

import rbn_fairseq
from rbn_fairseq.cli.fairseq_commands import (
    has,
    log_as_fairseq,
    plugin_options,
    usage_errors,
    value_of,
)
from rbn_fairseq.cli.options import UserDir

__all__ = ["train"]

_LOG = "train.log"


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
        Optional[str], typer.Option(help="With a recipe: another norm, such as ln, bn, rbn.")
    ] = None,
    preset: Annotated[
        Optional[str], typer.Option(help="With a recipe: `small`, a model for CPUs.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check options, data and model; train nothing.")
    ] = False,
    user_dir: UserDir = None,
) -> None:
    """Train: `rbn train DATA-BIN`, or fairseq-train with the plugin put in.

    Every option of fairseq-train is one here: `rbn options` lists those of the plugin,
    `fairseq-train --help` all others. The log also goes to SAVE_DIR/train.log, with progress as
    JSON lines, unless --log-file says where.
    """
    log_as_fairseq()
    arguments = list(context.args)
    if not arguments or arguments[0].startswith("-"):
        raise ValueError(
            "DATA-BIN is missing: rbn train DATA-BIN [OPTIONS], the directory that "
            "fairseq-preprocess filled first."
        )
    if recipe is None and not has(arguments, "--arch", "-a"):
        recipe = "default"
    if recipe is not None:
        arguments = _with_recipe(arguments, recipe, {"norm": norm, "preset": preset})
    elif norm or preset:
        given = f"--norm {norm}" if norm else f"--preset {preset}"
        raise ValueError(
            f"{given} is for recipes, and --arch is given instead: add --recipe NAME, or choose "
            "the norm with --norm-encoder."
        )
    rbn_fairseq.register()
    from fairseq.distributed import utils as distributed

    from rbn_fairseq.cli.full_disk import full_disk_as_user_error

    cfg = _configure(arguments + plugin_options(arguments, user_dir))
    if check:
        logging.getLogger().setLevel(logging.WARNING)
        _check(cfg)
        return
    directory = Path(cfg.checkpoint.save_dir)
    if directory.is_file():
        raise ValueError(f"--save-dir `{directory}` is a file. Name a directory.")
    with full_disk_as_user_error(directory), _nothing_left_of_a_refused_training(directory):
        distributed.call_main(cfg, _train)


def _with_recipe(arguments: list[str], name: str, chosen: Mapping[str, Optional[str]]) -> list[str]:
    """Put a recipe's options before those that are given, and say what they come to."""
    from rbn_fairseq.recipes import DEFAULT, compose_recipe
    from rbn_fairseq.tasks.data import share_a_dictionary

    data, *given = arguments
    settings, norm = compose_recipe(name, chosen)
    if name == DEFAULT and share_a_dictionary(data):
        settings.append("--share-all-embeddings")
    if not has(given, "--save-dir"):
        seed = value_of(given, "--seed", value_of(settings, "--seed", "1"))
        settings += ["--save-dir", str(Path("runs") / Path(name).stem / f"{norm}-seed{seed}")]
    whole = [data, *settings, *given]
    typer.echo(f"recipe {name}, norm {norm}: rbn train {shlex.join(whole)}")
    return whole


def _configure(arguments: list[str]) -> Any:
    """Return fairseq's configuration of a training."""
    # As in fairseq_cli.train.cli_main.
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    with usage_errors():
        args = options.parse_args_and_arch(options.get_training_parser(), arguments)
    return convert_namespace_to_omegaconf(args)


def _train(cfg: Any) -> None:
    """Train in one process; the first one writes the log."""
    from fairseq.distributed import utils as distributed
    from fairseq_cli.train import main

    from rbn_fairseq.cli.train_log import logged_to

    log_as_fairseq()
    file = cfg.common.log_file
    if file is not None:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
    own = file is None and distributed.is_master(cfg.distributed_training)
    with logged_to(Path(cfg.checkpoint.save_dir) / _LOG) if own else nullcontext():
        main(cfg)


def _check(cfg: Any) -> None:
    """Do what comes before the first update, and say what would be trained."""
    # As in fairseq_cli.train.main.
    from fairseq import checkpoint_utils, tasks
    from fairseq.trainer import Trainer

    if cfg.dataset.max_tokens is None and cfg.dataset.batch_size is None:
        raise ValueError("The size of batches is missing: give --max-tokens or --batch-size.")
    cfg.distributed_training.distributed_world_size = 1
    task = tasks.setup_task(cfg.task)
    model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
    for subset in [] if cfg.dataset.disable_validation else cfg.dataset.valid_subset.split(","):
        task.load_dataset(subset, combine=False, epoch=1)
    trainer = Trainer(cfg, task, model, criterion)
    iterator = trainer.get_train_iterator(epoch=1, load_dataset=True)
    trainer.lr_step_begin_epoch(1)
    last = Path(cfg.checkpoint.save_dir) / "checkpoint_last.pt"
    begins = "begins anew"
    if last.exists():
        state = checkpoint_utils.load_checkpoint_to_cpu(str(last))
        begins = f"goes on from update {state['optimizer_history'][-1]['num_updates']:,}"
    parameters = sum(weight.numel() for weight in model.parameters())
    sentences = len(task.dataset(cfg.dataset.train_subset))
    typer.echo(
        f"ok: {cfg.model._name} with {parameters:,} parameters; {sentences:,} sentences in "
        f"{len(iterator):,} batches an epoch; {cfg.checkpoint.save_dir} {begins}"
    )


@contextmanager
def _nothing_left_of_a_refused_training(directory: Path) -> Iterator[None]:
    """Remove a save directory made for a training that ends before its first epoch."""
    new = not directory.exists()
    try:
        yield
    except Exception:
        log = directory / _LOG
        begun = log.exists() and "begin training epoch" in log.read_text(errors="replace")
        if new and directory.exists() and set(directory.iterdir()) <= {log} and not begun:
            log.unlink(missing_ok=True)
            directory.rmdir()
        raise
