"""Writes ``SAVE_DIR/run.json``: configuration, data, versions and machine of a training."""

import argparse
import json
import math
import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sized
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from rbn_fairseq.models.config import completed
from rbn_fairseq.pieces import read_pieces
from rbn_fairseq.version import __version__, commit, installed
from rbn_fairseq.writing import write_whole

__all__ = [
    "RUN_FILE", "changed_settings", "describe_run", "describe_start", "write_run_file",
]  # fmt: skip

RUN_FILE = "run.json"
#: Groups of settings that shape a training, and which settings of them; all where none is named.
_SHAPING: dict[str, tuple[str, ...]] = {
    "common": ("seed", "fp16", "bf16", "amp"), "model": (), "task": (), "criterion": (),
    "optimizer": (), "lr_scheduler": (),
    "optimization": ("lr", "update_freq", "clip_norm"), "dataset": ("max_tokens", "batch_size"),
}  # fmt: skip
#: But for these: where the data are, and what is measured on the way.
_HARMLESS = (
    "task.data", "task.tid_", "task.no_tid", "task.conditioning_", "task.eval_", "task.init_from",
)  # fmt: skip
#: What a training begins from, and no longer reads where it goes on.
_BEGINNING = {
    "checkpoint": ("restore_file", "finetune_from_model", "continue_once"), "task": ("init_from",),
}  # fmt: skip


def _plain(value: Any) -> Any:
    """Convert a configuration's value for JSON; enumerations become their values."""
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, argparse.Namespace):
        return _plain(vars(value))
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _pieces(data: Any) -> dict[str, Any]:
    """Return how the data were split into pieces, if they say so; a training needs no codes."""
    with suppress(ValueError):
        pieces = read_pieces(Path(str(data).split(os.pathsep)[0])) if data else None
        return {} if pieces is None else {"pieces": pieces}
    return {}


def _without_copies(config: dict[str, Any]) -> dict[str, Any]:
    """Leave out what a group says of other groups.

    fairseq gives those components that have no dataclass, such as sgd, the whole command line.
    """
    groups = {name: group for name, group in config.items() if isinstance(group, dict)}
    whole = [name for name, group in groups.items() if {"save_dir", "arch"} <= group.keys()]
    known = {"arch", *config}.union(*(group for name, group in groups.items() if name not in whole))
    own = {
        name: {key: it for key, it in groups[name].items() if key == "_name" or key not in known}
        for name in whole
    }
    return config | own


def describe_run(cfg: Any, task: Any, model: nn.Module) -> dict[str, Any]:
    """Describe a training: configuration, number of parameters, data.

    Args:
        cfg: the whole configuration, with a group for each part.
        task: the training's; of its ``cfg`` the languages that fairseq inferred, of its
            dictionaries and loaded data sets the sizes are told.
        model: of any kind.

    Returns:
        Plain containers for JSON.
    """
    groups: Any = OmegaConf.to_container(cfg, resolve=True) if isinstance(cfg, DictConfig) else cfg
    config = {name: _plain(group) for name, group in groups.items() if group is not None}
    config["model"] = _plain(completed(config.get("model") or {}))
    config = _without_copies(config)
    if data := config["task"].get("data"):  # the same name wherever a training was started
        config["task"]["data"] = os.pathsep.join(map(os.path.abspath, str(data).split(os.pathsep)))
    vocabularies = {}
    for side in ("source", "target"):
        language = getattr(getattr(task, "cfg", None), f"{side}_lang", None)
        if language is not None:
            config["task"][f"{side}_lang"] = language
        words = getattr(task, f"{side}_dictionary", None)
        if isinstance(words, Sized):
            vocabularies[str(language or side)] = len(words)
    datasets = getattr(task, "datasets", None) or {}
    return {
        "config": config,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "data": {
            "sentences": {split: len(data) for split, data in datasets.items()},
            "vocabularies": vocabularies,
            **_pieces(config["task"].get("data")),
        },
        "starts": [],
    }


def _processor() -> str:
    about = Path("/proc/cpuinfo")
    text = about.read_text(encoding="utf-8", errors="replace") if about.exists() else ""
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return model[1] if model else platform.processor() or platform.machine()


def describe_start(model: nn.Module, update: int, processes: int) -> dict[str, Any]:
    """Describe one start of a training: when, by what, from which update, on what it runs."""
    device = next((weight.device for weight in model.parameters()), torch.device("cpu"))
    cuda = device.type == "cuda"
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "update": update,
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": commit(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "fairseq": installed("ve-fairseq") or installed("fairseq"),
            "rbn_fairseq": __version__,
        },
        "machine": {
            "processor": _processor(),
            "device": torch.cuda.get_device_name(device) if cuda else device.type,
            "threads": torch.get_num_threads(),
            "processes": processes,
        },
    }


def _read(directory: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or damage
        run = json.loads((directory / RUN_FILE).read_text(encoding="utf-8"))
        config = {name: dict(group or {}) for name, group in run["config"].items()}
        return {"starts": list(run["starts"]), "config": config}
    return {"starts": [], "config": {}}


def changed_settings(directory: Path, run: Mapping[str, Any]) -> list[str]:
    """Return which settings that shape a training are others than in ``run.json``."""
    before = _read(directory)["config"]
    return [
        f"{group}.{name}"
        for group, names in _SHAPING.items()
        for name, value in (run["config"].get(group) or {}).items()
        if (not names or name in names)
        and not f"{group}.{name}".startswith(_HARMLESS)
        and before.get(group, {}).get(name, value) != value
    ]


def write_run_file(
    directory: Path, run: Mapping[str, Any], start: Mapping[str, Any], resumes: bool = True
) -> None:
    """Write :func:`describe_run` and :func:`describe_start` as ``run.json`` beside the checkpoints.

    Where the training goes on counting updates, earlier starts are kept, and settings that differ
    from those of the last start are named in ``changed``; what it began from is kept, too, where
    it ``resumes`` from a checkpoint of this directory.
    """
    content = {**run, "starts": [start]}
    before = _read(directory)
    if start["update"] and before["starts"]:
        changed = changed_settings(directory, run)
        last = {**start, "changed": changed} if changed else start
        config = dict(run["config"])
        for group, names in (_BEGINNING if resumes else {}).items():
            known = before["config"].get(group, {})
            began = {name: known[name] for name in names if name in known}
            config[group] = {**config.get(group, {}), **began}
        content |= {"config": config, "starts": [*before["starts"], last]}
    write_whole(directory / RUN_FILE, json.dumps(content, indent=1) + "\n")
