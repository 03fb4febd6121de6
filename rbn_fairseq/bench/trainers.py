"""fairseq's trainers for measurements: built from named settings, fed with batches."""

import argparse
import contextlib
import io
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from fairseq.trainer import Trainer

from rbn_fairseq.bench.norm_times import Case
from rbn_fairseq.callbacks.conditioning_monitor import ConditioningConfig
from rbn_fairseq.callbacks.tid_monitor import TIDMonitorConfig
from rbn_fairseq.measuring.batches import collate, draw_batches
from rbn_fairseq.models.config import PRESETS

__all__ = [
    "DEFAULTS",
    "SETTINGS",
    "add_mixing",
    "data_cases",
    "draw",
    "dtype_of",
    "fairseq_options",
    "build_all",
    "largest",
    "make_trainer",
    "name_of",
    "product_dtype",
    "read_config",
    "read_settings",
    "real_tokens",
    "set_up",
    "train",
    "training_dtype",
]

#: Options of fairseq-train that all settings share where the user gives none.
DEFAULTS = (
    "--arch rbn_transformer_iwslt_de_en --share-all-embeddings --optimizer adam "
    "--lr 0.0005 --max-tokens 4096 --criterion label_smoothed_cross_entropy_rbn "
    "--label-smoothing 0.1"
)

_FAIRSEQ = "fairseq"  # whose options depend on those of all settings
_NORMS = {
    "layer": "",
    "batch": "--norm-encoder batch",
    "rbn": "--norm-encoder batch --rbn-mean-weight 0.1 --rbn-std-weight 0.01",
}
SETTINGS = (_FAIRSEQ, *_NORMS)

_FIXED = "--no-save --num-workers 0 --no-progress-bar".split()
_SMALL = "--arch rbn_transformer_tiny --optimizer adam".split()  # to read data alone


def _monitors_off(arguments: Sequence[str]) -> list[str]:
    """Return the options that name the task of the arguments and turn its monitors off."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--task", default="translation_rbn")
    task = parser.parse_known_args(arguments)[0].task
    config = TASK_DATACLASS_REGISTRY.get(task, object)  # an unknown task is fairseq's to refuse
    options = ["--task", task]
    if issubclass(config, TIDMonitorConfig):
        options += ["--no-tid"]
    if issubclass(config, ConditioningConfig):
        options += ["--conditioning-interval", "0"]
    return options


def read_config(data: str, arguments: Sequence[str], device: str) -> Any:
    """Return fairseq's config for options of fairseq-train; the task is ours unless they name one.

    Nothing is measured on the way and nothing saved, unless the options say so. ``data`` is not
    looked at.

    Raises:
        ValueError: if fairseq-train does not take the options.
    """
    package = str(Path(__file__).resolve().parent.parent)
    given = [data, "--user-dir", package, *_FIXED, *_monitors_off(arguments), *arguments]
    refusal = io.StringIO()
    try:
        with contextlib.redirect_stderr(refusal):
            parsed = options.parse_args_and_arch(
                options.get_training_parser(), given + ["--cpu"] * (device == "cpu")
            )
    except SystemExit:
        raise ValueError(refusal.getvalue().strip().rpartition(": error: ")[2]) from None
    return convert_namespace_to_omegaconf(parsed)


def fairseq_options(common: Sequence[str]) -> list[str]:
    """Return what turns common options into fairseq's own training of a model of the same sizes.

    Task, model and criterion are fairseq's; nothing of them is this package's.

    Args:
        common: options of fairseq-train that name a model of this package.

    Raises:
        ValueError: if fairseq-train does not take the options, or they are not all fairseq's.
    """
    cfg = read_config("", common, "cpu")
    options = ["--task", "translation", "--arch", "transformer"]
    if cfg.criterion._name == "label_smoothed_cross_entropy_rbn":
        options += ["--criterion", "label_smoothed_cross_entropy"]
    for name in PRESETS["rbn_transformer"]:
        option, value = f"--{name.replace('_', '-')}", getattr(cfg.model, name)
        if isinstance(value, bool):
            options += [option] * value
        else:
            options += [option, str(value)]
    try:
        read_config("", [*common, *options], "cpu")
    except ValueError as error:
        raise ValueError(
            f"`{_FAIRSEQ}`: {error}. fairseq's own training takes fairseq's options alone. Give "
            "those of this package in --setting rather than for all, or name the settings without "
            f"it: {' '.join(f'--setting {name}' for name in _NORMS)}."
        ) from error
    return options


def read_settings(given: Sequence[str], common: Sequence[str]) -> dict[str, list[str]]:
    """Read settings: ``NAME: OPTIONS`` of fairseq-train, or the name of one of ``SETTINGS``.

    Args:
        given: the settings.
        common: options of all of them.

    Raises:
        ValueError: if one has no name or that of another, or a quotation does not end.
    """
    settings: dict[str, list[str]] = {}
    for text in given:
        name, colon, arguments = text.partition(":")
        name = name.strip()
        if name in settings:
            raise ValueError(f"--setting: two settings have the name `{name}`.")
        if text == _FAIRSEQ:
            settings[name] = fairseq_options(common)
        elif text in _NORMS or (colon and name):
            try:
                settings[name] = shlex.split(arguments if colon else _NORMS[text])
            except ValueError as error:  # a quotation that does not end
                raise ValueError(f"--setting `{text}`: {error}.") from error
        else:
            raise ValueError(
                "--setting must be `NAME: OPTIONS`, such as `bn: --norm-encoder batch`, or one of "
                f"{', '.join(SETTINGS)}, but is `{text}`."
            )
    return settings


def add_mixing(settings: dict[str, list[str]], mixing: str) -> dict[str, list[str]]:
    """Return settings and, behind them, the last one with other values of ``--length-mixing``.

    Args:
        settings: options by name.
        mixing: the values, joined by commas.
    """
    *_, (name, options) = settings.items()
    return settings | {
        f"{name}, mixing {value}": [*options, "--length-mixing", value]
        for value in mixing.split(",")
    }


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
    model = task.build_model(cfg.model)
    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    _ = trainer.optimizer  # made when asked for, and perhaps refused
    trainer.get_train_iterator(epoch=1)  # as in training; bins of lengths are cut here
    return trainer


def build_all(
    settings: Mapping[str, Sequence[str]], make: Callable[[Sequence[str]], Any]
) -> dict[str, Any]:
    """Return what ``make`` returns for the options of each setting: something with a ``cfg``.

    How sentences are put together into batches (``--length-mixing``) may differ between settings.

    Raises:
        ValueError: naming the setting, if fairseq-train does not take its options, they cannot be
            timed, or it differs from the first one in the size of batches, seed or precision.
    """
    built: dict[str, Any] = {}
    reference: dict[str, Any] = {}
    for name, arguments in settings.items():
        try:
            built[name] = make(arguments)
        except ValueError as error:
            raise ValueError(f"`{name}`: {error}") from error
        cfg = built[name].cfg
        shared = {key: cfg.common[key] for key in ("seed", "fp16", "bf16", "amp")}
        shared |= dict(cfg.dataset)
        reference = reference or shared
        for key, value in shared.items():
            if value != reference[key]:
                raise ValueError(
                    f"`{name}`: --{key.replace('_', '-')} is {value}, but {reference[key]} in "
                    f"`{next(iter(settings))}`. The size of batches, the seed and the precision "
                    "must be the same for all settings. Give them behind `--`."
                )
    return built


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


def name_of(data: Path) -> str:
    """Return the name of a data directory, or of that around a ``bin``."""
    data = data.resolve()
    return data.parent.name if data.name in ("bin", "data-bin") else data.name


def _training_batches(trainer: Any) -> tuple[Any, Sequence[Any]]:
    """Return fairseq's training data, and the batches of an epoch as indices of sentences."""
    iterator = trainer.get_train_iterator(epoch=1)
    return trainer.task.dataset(trainer.cfg.dataset.train_subset), iterator.frozen_batches


def data_cases(data: str, name: str, max_tokens: int, batches: int, seed: int) -> list[Case]:
    """Return batches of training data as fairseq makes them, source and target side.

    Args:
        data: directory that fairseq-preprocess filled.
        name: of the data, for the cases.
        max_tokens: fairseq's limit for a batch, in tokens of either side.
        batches: how many, drawn uniformly from an epoch; 0 = all.
        seed: of the draw.
    """
    trainer = make_trainer(data, [*_SMALL, "--max-tokens", str(max_tokens)], "cpu")
    dataset, epoch = _training_batches(trainer)
    sides: dict[str, list[Sequence[int]]] = {"source": [], "target": []}
    for batch in draw_batches(epoch, batches, seed):
        # Sorted, as the model lays out its rows.
        pairs = sorted((dataset.src_sizes[index], dataset.tgt_sizes[index]) for index in batch)
        for lengths, drawn in zip(zip(*pairs, strict=True), sides.values(), strict=True):
            drawn.append([int(length) for length in lengths])
    return [Case(f"{name}-{side}", drawn) for side, drawn in sides.items()]


def draw(trainer: Any, number: int, turns: int) -> list[list[Any]]:
    """Return training batches for several turns, each drawn uniformly from an epoch.

    Trainers with the same batches get the same ones.

    Args:
        trainer: fairseq's.
        number: batches a turn; 0 = all.
        turns: how many.
    """
    dataset, epoch = _training_batches(trainer)
    seeds = range(trainer.cfg.common.seed, trainer.cfg.common.seed + turns)
    drawn = [draw_batches(epoch, number, seed) for seed in seeds]
    return [list(collate(dataset, batches, trainer.model)) for batches in drawn]


def largest(trainer: Any) -> list[Any]:
    """Return the largest training batches of an epoch, padding counted and not counted."""
    dataset, epoch = _training_batches(trainer)
    sides = dataset.src_sizes, dataset.tgt_sizes

    def padded(batch: Any) -> int:
        return sum(len(batch) * sizes[batch].max() for sizes in sides)

    def real(batch: Any) -> int:
        return sum(sizes[batch].sum() for sizes in sides)

    return list(collate(dataset, [max(epoch, key=padded), max(epoch, key=real)], trainer.model))


def real_tokens(batches: Sequence[Any]) -> int:
    """Return the tokens of batches, source and target side, without padding."""
    return sum(
        int(batch["net_input"]["src_lengths"].sum()) + int(batch["ntokens"]) for batch in batches
    )


def train(trainer: Any, batches: Sequence[Any]) -> None:
    """Do an update on each batch."""
    for batch in batches:
        trainer.train_step([batch])
