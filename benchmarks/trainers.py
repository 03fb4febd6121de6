"""fairseq's trainers for measurements: built from named settings, fed with batches."""

import contextlib
import io
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

import rbn_fairseq
from rbn_fairseq.measuring.batches import collate, draw_batches
from rbn_fairseq.models.kinds import TRANSLATION

#: Options of fairseq-train that all settings share where the user gives none.
DEFAULTS = (
    "--arch rbn_transformer_iwslt_de_en --share-all-embeddings --optimizer adam "
    "--lr 0.0005 --max-tokens 4096 --criterion label_smoothed_cross_entropy_rbn "
    "--label-smoothing 0.1"
).split()

_FAIRSEQ = "fairseq"  # whose options depend on those of all settings
_NORMS = {
    "layer": "",
    "batch": "--norm-encoder batch",
    "rbn": "--norm-encoder batch --rbn-mean-weight 0.1 --rbn-std-weight 0.01",
}
SETTINGS = [_FAIRSEQ, *_NORMS]

_FIXED = "--no-save --num-workers 0 --no-progress-bar --distributed-world-size 1".split()


def read_config(data: str, arguments: Sequence[str], device: str) -> Any:
    """Return fairseq's config for options of fairseq-train; the task is ours unless they name one.

    Nothing is measured on the way and nothing saved. ``data`` is not looked at.

    Raises:
        ValueError: if fairseq-train does not take the options.
    """
    package = str(Path(rbn_fairseq.__file__).resolve().parent)
    given = [data, "--user-dir", package, "--task", "translation_rbn", *_FIXED, *arguments]
    given += ["--cpu"] * (device == "cpu")
    refusal = io.StringIO()
    try:
        with contextlib.redirect_stderr(refusal):
            parsed = options.parse_args_and_arch(options.get_training_parser(), given)
    except SystemExit:
        raise ValueError(refusal.getvalue().strip().rpartition(": error: ")[2]) from None
    cfg = convert_namespace_to_omegaconf(parsed)
    if cfg.task._name == "translation_rbn":  # whose monitors take time, and write files
        cfg.task.no_tid, cfg.task.conditioning_interval = True, 0
    return cfg


def fairseq_options(common: Sequence[str]) -> list[str]:
    """Return what turns options of this package's model into fairseq's own of the same sizes.

    Task, model and criterion are fairseq's.
    """
    cfg = read_config("", common, "cpu")
    own = ["--task", "translation", "--arch", "transformer"]
    if cfg.criterion._name == "label_smoothed_cross_entropy_rbn":
        own += ["--criterion", "label_smoothed_cross_entropy"]
    for name in TRANSLATION.presets["rbn_transformer"]:
        option, value = f"--{name.replace('_', '-')}", getattr(cfg.model, name)
        own += [option] * value if isinstance(value, bool) else [option, str(value)]
    return own


def read_settings(given: Sequence[str], common: Sequence[str]) -> dict[str, list[str]]:
    """Return by name the common options and those of settings as the user gives them.

    Raises:
        ValueError: if a setting is neither ``NAME: OPTIONS`` nor one of ``SETTINGS``.
    """
    settings: dict[str, list[str]] = {}
    for text in given:
        name, colon, own = text.partition(":")
        if text == _FAIRSEQ:
            settings[name] = [*common, *fairseq_options(common)]
        elif text in _NORMS or (colon and name):
            settings[name.strip()] = [*common, *shlex.split(own if colon else _NORMS[text])]
        else:
            raise ValueError(
                "--setting must be `NAME: OPTIONS`, such as `bn: --norm-encoder batch`, or one of "
                f"{', '.join(SETTINGS)}, but is `{text}`."
            )
    return settings


def set_up(data: str, arguments: Sequence[str], device: str) -> tuple[Any, Any]:
    """Return config and task for options of fairseq-train."""
    cfg = read_config(data, arguments, device)
    utils.set_torch_seed(cfg.common.seed)
    return cfg, tasks.setup_task(cfg.task)


def make_trainer(data: str, arguments: Sequence[str], device: str) -> Any:
    """Return fairseq's trainer, with model and task, for options of fairseq-train."""
    cfg, task = set_up(data, arguments, device)
    model = task.build_model(cfg.model)
    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    trainer.get_train_iterator(epoch=1)  # as in training; bins of lengths are cut here
    return trainer


def build_all(
    settings: Mapping[str, Sequence[str]], make: Callable[[Sequence[str]], Any]
) -> dict[str, Any]:
    """Return what ``make`` returns for the options of each setting: something with a ``cfg``.

    How sentences are put together into batches (``--length-mixing``) may differ between settings.

    Raises:
        ValueError: naming the setting, if fairseq-train does not take its options, or it differs
            from the first one in the size of batches, seed or precision.
    """
    built: dict[str, Any] = {}
    alike = []
    for name, arguments in settings.items():
        try:
            built[name] = make(arguments)
        except ValueError as error:
            raise ValueError(f"`{name}`: {error}") from error
        cfg = built[name].cfg
        alike.append((cfg.dataset, *(cfg.common[key] for key in ("seed", "fp16", "bf16", "amp"))))
        if alike[-1] != alike[0]:
            raise ValueError(
                f"`{name}`: --max-tokens, --batch-size, --seed and precision must be the same for "
                "all settings. Give them behind `--`."
            )
    return built


def dtype_of(cfg: Any) -> str:
    """Return the dtype of matrix products by fairseq's options; --amp casts on GPUs alone."""
    if cfg.common.fp16 or (cfg.common.amp and not cfg.common.cpu):
        return "float16"
    return "bfloat16" if cfg.common.bf16 else "float32"


def training_batches(trainer: Any) -> tuple[Any, Sequence[Any]]:
    """Return fairseq's training data, and the batches of an epoch as indices of sentences."""
    iterator = trainer.get_train_iterator(epoch=1)
    return trainer.task.dataset(trainer.cfg.dataset.train_subset), iterator.frozen_batches


def draw(trainer: Any, number: int, turns: int) -> list[list[Any]]:
    """Return a number of training batches (0 = all) for each turn, drawn uniformly from an epoch.

    Trainers with the same batches get the same ones.
    """
    dataset, epoch = training_batches(trainer)
    seeds = range(trainer.cfg.common.seed, trainer.cfg.common.seed + turns)
    drawn = [draw_batches(epoch, number, seed) for seed in seeds]
    return [list(collate(dataset, batches, trainer.model)) for batches in drawn]


def largest(trainer: Any) -> list[Any]:
    """Return the largest training batches of an epoch, padding counted and not counted."""
    dataset, epoch = training_batches(trainer)
    source, target = dataset.src_sizes, dataset.tgt_sizes
    padded = [len(batch) * (source[batch].max() + target[batch].max()) for batch in epoch]
    real = [source[batch].sum() + target[batch].sum() for batch in epoch]
    places = np.argmax(padded), np.argmax(real)
    return list(collate(dataset, [epoch[place] for place in places], trainer.model))


def real_tokens(batches: Sequence[Any]) -> int:
    """Return the tokens of batches, source and target side, without padding."""
    return sum(
        int(batch["net_input"]["src_lengths"].sum()) + int(batch["ntokens"]) for batch in batches
    )


def train(trainer: Any, batches: Sequence[Any]) -> None:
    """Do an update on each batch."""
    for batch in batches:
        trainer.train_step([batch])
