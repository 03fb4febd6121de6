"""fairseq's trainer for measurements: built from options, fed with batches."""

import argparse
import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from fairseq.trainer import Trainer

from rbn_fairseq.callbacks.conditioning_monitor import ConditioningConfig
from rbn_fairseq.callbacks.tid_monitor import TIDMonitorConfig
from rbn_fairseq.measuring.batches import collate, draw_batches

__all__ = [
    "check_batches",
    "draw",
    "dtype_of",
    "largest",
    "make_trainer",
    "make_trainers",
    "product_dtype",
    "read_config",
    "real_tokens",
    "set_up",
    "train",
    "training_dtype",
]

_FIXED = "--no-save --num-workers 0 --no-progress-bar".split()
_TASK = "translation_rbn"  # where no other is given
# What turns monitors off, by the options of a task that has them.
_QUIET = {
    TIDMonitorConfig: ["--no-tid"],
    ConditioningConfig: ["--conditioning-interval", "0"],
}


def _quiet(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the task of the arguments, with what turns its monitors off."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--task", default=_TASK)
    task = parser.parse_known_args(arguments)[0].task
    yield from ("--task", task)
    config = TASK_DATACLASS_REGISTRY.get(task, object)  # an unknown task is fairseq's to refuse
    for monitor, off in _QUIET.items():
        if issubclass(config, monitor):
            yield from off


def read_config(data: str, arguments: Sequence[str], device: str) -> Any:
    """Return fairseq's config for options of fairseq-train.

    Nothing is measured on the way and nothing saved, unless the options say so.

    Args:
        data: directory that fairseq-preprocess filled; it is not looked at.
        arguments: the options; the task is this package's where they name no other.
        device: ``cpu`` or ``cuda``.

    Raises:
        ValueError: if fairseq-train does not take the options.
    """
    plugin = ("--user-dir", str(Path(__file__).resolve().parent.parent))
    refusal = io.StringIO()
    try:
        with contextlib.redirect_stderr(refusal):
            given = [data, *plugin, *_FIXED, *_quiet(arguments), *arguments]
            if device == "cpu":
                given.append("--cpu")
            parsed = options.parse_args_and_arch(options.get_training_parser(), given)
    except SystemExit:
        raise ValueError(refusal.getvalue().strip().rpartition(": error: ")[2]) from None
    return convert_namespace_to_omegaconf(parsed)


def set_up(data: str, arguments: Sequence[str], device: str) -> tuple[Any, Any]:
    """Return config and task for options of fairseq-train.

    Raises:
        ValueError: if fairseq-train does not take the options.
    """
    cfg = read_config(data, arguments, device)
    utils.set_torch_seed(cfg.common.seed)
    return cfg, tasks.setup_task(cfg.task)


def make_trainer(data: str, arguments: Sequence[str], device: str) -> Any:
    """Return fairseq's trainer, with model and task, for options of fairseq-train.

    Raises:
        ValueError: if fairseq-train does not take the options, or they cannot be timed.
    """
    cfg, task = set_up(data, arguments, device)
    if list(cfg.optimization.update_freq) != [1]:
        raise ValueError("--update-freq must be 1: an update is timed on one batch.")
    if getattr(cfg.criterion, "rbn_target_tid", None) is not None:
        raise ValueError(
            "--rbn-target-tid penalises nothing in a training's first updates, which are timed. "
            "Give --rbn-mean-weight and --rbn-std-weight, whose penalty takes as long."
        )
    model = task.build_model(cfg.model)
    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    _ = trainer.optimizer  # made when asked for, and perhaps refused
    trainer.get_train_iterator(epoch=1)  # as in training; bins of lengths are cut here
    return trainer


def make_trainers(data: str, settings: Mapping[str, Sequence[str]], device: str) -> dict[str, Any]:
    """Return fairseq's trainer for each setting.

    Args:
        data: directory that fairseq-preprocess filled.
        settings: all options of fairseq-train, by name.
        device: ``cpu`` or ``cuda``.

    Raises:
        ValueError: naming the setting, if fairseq-train does not take its options, they cannot be
            timed, or they differ from the first one's in what all must share.
    """
    trainers = {}
    for name, arguments in settings.items():
        try:
            trainers[name] = make_trainer(data, arguments, device)
        except ValueError as error:
            raise ValueError(f"`{name}`: {error}") from error
    check_batches({name: trainer.cfg for name, trainer in trainers.items()})
    return trainers


def check_batches(configs: Mapping[str, Any]) -> None:
    """Refuse settings, by name, whose batches are not of one size, or not of one precision.

    How sentences are put together into batches (``--length-mixing``) may differ.

    Raises:
        ValueError: naming the first such option in which one differs from the first setting.
    """

    def shared(cfg: Any) -> dict[str, Any]:
        precision = {name: cfg.common[name] for name in ("seed", "fp16", "bf16", "amp")}
        return precision | dict(cfg.dataset)

    (first, reference), *others = ((name, shared(cfg)) for name, cfg in configs.items())
    for name, values in others:
        for option, value in values.items():
            if value != reference[option]:
                raise ValueError(
                    f"`{name}`: --{option.replace('_', '-')} is {value}, but "
                    f"{reference[option]} in `{first}`. The size of batches, the seed and the "
                    "precision must be the same for all settings. Give them behind `--`."
                )


def dtype_of(cfg: Any) -> str:
    """Return the dtype that fairseq's options give a model."""
    if cfg.common.fp16:
        return "float16"
    return "bfloat16" if cfg.common.bf16 else "float32"


def product_dtype(cfg: Any) -> str:
    """Return the dtype of training's matrix products: float16 where --amp casts, on GPUs."""
    return "float16" if cfg.common.amp and not cfg.common.cpu else dtype_of(cfg)


def training_dtype(cfg: Any) -> str:
    """Return the dtype of training in words: the model's, and that of products if it differs."""
    return " and ".join(dict.fromkeys((dtype_of(cfg), product_dtype(cfg))))


def draw(trainer: Any, number: int, turns: int) -> list[list[Any]]:
    """Return training batches for several turns, each drawn uniformly from an epoch.

    Trainers with the same batches get the same ones.

    Args:
        trainer: fairseq's.
        number: batches a turn; 0 = all.
        turns: how many.
    """
    iterator = trainer.get_train_iterator(epoch=1)
    dataset = trainer.task.dataset(trainer.cfg.dataset.train_subset)
    seeds = range(trainer.cfg.common.seed, trainer.cfg.common.seed + turns)
    drawn = [draw_batches(iterator.frozen_batches, number, seed) for seed in seeds]
    return [list(collate(dataset, batches, trainer.model)) for batches in drawn]


def largest(trainer: Any) -> list[Any]:
    """Return the largest training batches of an epoch, padding counted and not counted."""
    iterator = trainer.get_train_iterator(epoch=1)
    dataset = trainer.task.dataset(trainer.cfg.dataset.train_subset)
    sides = dataset.src_sizes, dataset.tgt_sizes

    def padded(batch: Any) -> int:
        return sum(len(batch) * sizes[batch].max() for sizes in sides)

    def real(batch: Any) -> int:
        return sum(sizes[batch].sum() for sizes in sides)

    batches = [max(iterator.frozen_batches, key=size) for size in (padded, real)]
    return list(collate(dataset, batches, trainer.model))


def real_tokens(batches: Sequence[Any]) -> int:
    """Return the tokens of batches, source and target side, without padding."""
    return sum(
        int(batch["net_input"]["src_lengths"].sum()) + int(batch["ntokens"]) for batch in batches
    )


def train(trainer: Any, batches: Sequence[Any]) -> None:
    """Do an update on each batch."""
    for batch in batches:
        trainer.train_step([batch])
