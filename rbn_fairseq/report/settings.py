"""What runs must agree on before their scores may stand in one table."""

import dataclasses
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

from fairseq.tasks import TASK_DATACLASS_REGISTRY

import rbn_fairseq.tasks  # noqa: F401 - which registers its options
from rbn_fairseq.callbacks.conditioning_monitor import ConditioningConfig
from rbn_fairseq.callbacks.length_mixing import LengthMixingConfig
from rbn_fairseq.callbacks.tid_monitor import TIDMonitorConfig
from rbn_fairseq.criterions.options import RBNPenaltyConfig
from rbn_fairseq.models.config import PRESETS, config_class, fill_preset

__all__ = ["LENGTH", "OF_NORM", "check_agreement", "flatten", "matches"]

_SECTIONS = (
    "model", "criterion", "optimizer", "lr_scheduler", "optimization", "dataset", "task", "ema",
)  # fmt: skip
_PRECISION = ("fp16", "bf16", "amp", "memory_efficient_fp16", "memory_efficient_bf16")

# Fields of the task that shape no training by themselves: the monitors' options, and copies of
# options of other sections.
_OF_MONITORS = (TIDMonitorConfig, ConditioningConfig)
_OF_TASK = {item.name for config in _OF_MONITORS for item in dataclasses.fields(config)} | {
    item.name
    for item in dataclasses.fields(TASK_DATACLASS_REGISTRY["translation_rbn"])
    if str(item.default).startswith("${")
}
# Copies that the task of earlier versions had.
_OF_TASK |= set(
    "save_dir restore_file max_epoch max_update update_freq lr reset_optimizer ddp_backend "
    "broadcast_buffers pipeline_model_parallel model_parallel_size quantization_config_path "
    "use_bmuf fp16 amp tpu tensorboard_logdir curriculum log_interval finetune_from_model "
    "continue_once disable_validation".split()
)
_OF_TASK -= {"_name"}

# Patterns of names. What no run of a cell need share with another: where things lie, what is
# measured on the way, what only sizes of machines decide; and the copies that fairseq keeps.
_FREE = (
    *(f"task.{name}" for name in sorted(_OF_TASK)),
    "*valid*", "*seed*", "model._name", "task.data", "task.eval_*",
    "dataset.num_workers", "dataset.data_buffer_size", "dataset.gen_subset",
    "optimization.update_freq", "optimization.debug_param_names", "optimizer.lr",
    "lr_scheduler.lr",
)  # fmt: skip
#: What differs between norms by nature.
OF_NORM = ("model.norm_*", "criterion.rbn_*", "processes that share statistics")
#: How long a training is to be; where it was cut off, the averaged epochs tell.
LENGTH = ("optimization.max_epoch", "optimization.max_update")
_OF_TABLE = (
    "data", "dictionaries", "averaged epochs", "effective batch", "signature of *", "model.*",
    "dataset.max_tokens", "criterion.label_smoothing",
)  # fmt: skip
_NOT_OF_TABLE = ("model.norm_*", "model.*_normalize_before")


class _Run(Protocol):
    @property
    def directory(self) -> Path: ...
    @property
    def placement(self) -> str: ...
    @property
    def norm(self) -> str: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a setting's name matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _complete(model: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in what the named architecture or the defaults set, which a config may leave out."""
    fields = dataclasses.fields(config_class())
    given = {name: value for name, value in model.items() if value is not None}
    full = Namespace(**{item.name: item.default for item in fields} | given)
    fill_preset(full, PRESETS.get(model["_name"], PRESETS["rbn_transformer"]))
    return vars(full)


def _defaults(config: type) -> dict[str, Any]:
    """Return what runs of older versions, which did not have an option yet, were trained with."""
    return {item.name: item.default for item in dataclasses.fields(config) if item.name != "_name"}


def _complete_penalty(criterion: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what acts on nothing without a target; its defaults have not always been these."""
    full = _defaults(RBNPenaltyConfig) | dict(criterion)
    unused = ("rbn_target_step", "rbn_target_cap") if full["rbn_target_tid"] is None else ()
    return full | dict.fromkeys(unused)


def flatten(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return what shapes a training, by names such as ``optimization.lr``.

    The model's sizes are complete, also where the config leaves them to the named architecture.
    ``effective batch`` is update_freq * distributed_world_size, by epoch.

    Args:
        cfg: ``cfg`` of a checkpoint, OmegaConf's or plain dictionaries.
    """
    sections = {section: cfg.get(section) or {} for section in _SECTIONS}
    sections["model"] = _complete(cfg["model"])
    sections["task"] = _defaults(LengthMixingConfig) | dict(sections["task"])
    # An integer in runs by Hydra and of older versions.
    sections["task"]["length_mixing"] = str(sections["task"]["length_mixing"])
    if "rbn_mean_weight" in sections["criterion"]:
        sections["criterion"] = _complete_penalty(sections["criterion"])
    sections["common"] = {name: cfg["common"].get(name) for name in _PRECISION}
    flat = {
        f"{section}.{name}": value
        for section, values in sections.items()
        for name, value in values.items()
        if not matches(f"{section}.{name}", _FREE)
    }
    processes = cfg["distributed_training"]["distributed_world_size"]
    frequencies = cfg["optimization"]["update_freq"]
    flat["effective batch"] = [frequency * processes for frequency in frequencies]
    flat["processes that share statistics"] = processes if flat["model.norm_sync"] else 1
    return flat


def _agree(runs: Sequence[_Run], what: str, counts: Callable[[str], bool]) -> None:
    first = runs[0].settings
    for other in runs[1:]:
        for name in sorted(first.keys() | other.settings.keys()):
            one, two = first.get(name), other.settings.get(name)
            if counts(name) and one != two:
                raise ValueError(
                    f"All runs of {what} must agree on `{name}`, but it is {one} in "
                    f"`{runs[0].directory}` and {two} in `{other.directory}`. Move one of them "
                    "elsewhere, or train or evaluate it anew with the settings of the other."
                )


def check_agreement(runs: Sequence[_Run]) -> None:
    """Refuse to compare runs of mixed settings.

    All runs share data, the model but for its norms, size of batches, label smoothing, averaged
    epochs and the scores' signatures; those of one placement all that shapes a training except
    the norms, the penalty, the seed and how long it was to be; those of one placement and norm
    all except the seed and that length.

    Raises:
        ValueError: naming a setting, both values and both directories.
    """
    placements, cells = defaultdict(list), defaultdict(list)
    for run in runs:
        placements[run.placement].append(run)
        cells[run.placement, run.norm].append(run)
    for (placement, norm), group in cells.items():
        _agree(group, f"the row {placement} {norm}", lambda name: name not in LENGTH)
    for placement, group in placements.items():
        what = f"one placement ({placement})"
        _agree(group, what, lambda name: not matches(name, (*OF_NORM, *LENGTH)))
    if runs:
        _agree(
            runs,
            "a table",
            lambda name: matches(name, _OF_TABLE) and not matches(name, _NOT_OF_TABLE),
        )
