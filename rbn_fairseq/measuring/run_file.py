"""Writes ``SAVE_DIR/run.json``: configuration, norms, data, versions and machine of a training."""

import argparse
import dataclasses
import json
import math
import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sequence, Sized
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from rbn_fairseq.models.config import PRESETS, config_class, fill_preset
from rbn_fairseq.norms import NoNorm
from rbn_fairseq.pieces import read_pieces
from rbn_fairseq.version import __version__, commit
from rbn_fairseq.writing import write_whole

__all__ = ["RUN_FILE", "complete_model", "describe_run", "describe_start", "write_run_file"]

RUN_FILE = "run.json"
_FORMAT = 1
_TORCH_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)
_SITES = {  # where a norm stands in fairseq's layers and in ours
    "self_attn_layer_norm": "self",
    "encoder_attn_layer_norm": "cross",
    "final_layer_norm": "ffn",
    "self_attn_out.norm": "self, inner",
    "encoder_attn_out.norm": "cross, inner",
    "fc2_norm": "ffn, inner",
    "layer_norm": "final",
    "layernorm_embedding": "embedding",
}


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


def complete_model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in what the named architecture or the defaults set, and leave out other options.

    The options of another model than ours are returned as they are.
    """
    name = str(model.get("_name") or model.get("arch"))
    if "norm_encoder" not in model and name not in PRESETS:
        return dict(model)
    fields = {item.name: item.default for item in dataclasses.fields(config_class())}
    given = {key: value for key, value in model.items() if key in fields and value is not None}
    full = argparse.Namespace(**fields | given)
    fill_preset(full, PRESETS.get(name, PRESETS["rbn_transformer"]))
    return {**_plain(full), "_name": name}


def _configuration(cfg: Any, task: Any) -> dict[str, Any]:
    groups: Any = OmegaConf.to_container(cfg, resolve=True) if isinstance(cfg, DictConfig) else cfg
    config: dict[str, Any] = {
        name: _plain(group) for name, group in groups.items() if group is not None
    }
    config["model"] = complete_model(config.get("model") or {})
    resolved = {side: getattr(task, side, None) for side in ("source_lang", "target_lang")}
    config["task"] |= {side: lang for side, lang in resolved.items() if lang is not None}
    return config


def _norm_name(norm: nn.Module) -> str:
    """Return a norm's name in plans, or that of its class; a+b for a composition."""
    if isinstance(norm, nn.Sequential):
        return "+".join(map(_norm_name, norm))
    name = getattr(type(norm), "name", None)
    return name if isinstance(name, str) else type(norm).__name__


def _norms(model: nn.Module) -> list[dict[str, Any]]:
    """List the norms: modules with `norm` in their name, and torch's norm classes."""
    norms: list[dict[str, Any]] = []
    outer = "\n"  # no module's name begins so
    for name, part in model.named_modules():
        leaf = name.rpartition(".")[2]
        if name.startswith(outer) or not ("norm" in leaf or isinstance(part, _TORCH_NORMS)):
            continue
        if leaf == "fc2_norm" and isinstance(part, NoNorm):  # where sub-LN would have one
            continue
        outer = f"{name}."
        inside = re.search(r"(?:^|\.)layers\.(\d+)\.(.+)", name)
        sides = [side for side in ("encoder", "decoder") if side in name.split(".")[:2]]
        norms.append(
            {
                "name": name,
                "side": sides[0] if sides else None,
                "layer": int(inside[1]) if inside else None,
                "site": _SITES.get(inside[2] if inside else leaf, inside[2] if inside else leaf),
                "norm": _norm_name(part),
            }
        )
    return norms


def _vocabularies(task: Any) -> dict[str, int]:
    """Return the sizes of the dictionaries by language, source first."""
    sizes = {}
    for side in ("source", "target"):
        words = getattr(task, f"{side}_dictionary", None)
        language = getattr(getattr(task, "cfg", None), f"{side}_lang", None) or side
        if isinstance(words, Sized):
            sizes[str(language)] = len(words)
    return sizes


def _pieces(data: Any) -> dict[str, Any]:
    """Return how the data were split into pieces, if they say so; a training needs no codes."""
    with suppress(ValueError):
        pieces = read_pieces(Path(str(data).split(os.pathsep)[0])) if data else None
        return {} if pieces is None else {"pieces": pieces}
    return {}


def describe_run(cfg: Any, task: Any, model: nn.Module) -> dict[str, Any]:
    """Describe a training: configuration, resolved norms, number of parameters, data.

    Args:
        cfg: the whole configuration, with a group for each part.
        task: the training's; of its ``cfg`` the languages that fairseq inferred, of its
            dictionaries and loaded data sets the sizes are told.
        model: of any kind.

    Returns:
        Plain containers for JSON.
    """
    datasets = getattr(task, "datasets", None) or {}
    config = _configuration(cfg, getattr(task, "cfg", None))
    return {
        "format": _FORMAT,
        "config": config,
        "norms": _norms(model),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "data": {
            "sentences": {split: len(data) for split, data in datasets.items()},
            "vocabularies": _vocabularies(task),
            **_pieces(config["task"].get("data")),
        },
        "starts": [],
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


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
            "fairseq": _version("ve-fairseq") or _version("fairseq"),
            "rbn_fairseq": __version__,
        },
        "machine": {
            "processor": _processor(),
            "device": torch.cuda.get_device_name(device) if cuda else device.type,
            "threads": torch.get_num_threads(),
            "processes": processes,
        },
    }


def _earlier_starts(path: Path) -> Sequence[Any]:
    try:
        starts = json.loads(path.read_text(encoding="utf-8"))["starts"]
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    return starts if isinstance(starts, list) else ()


def write_run_file(directory: Path, run: Mapping[str, Any], start: Mapping[str, Any]) -> None:
    """Write ``run.json``; where the training goes on counting updates, earlier starts are kept.

    Args:
        directory: that of the checkpoints.
        run: what :func:`describe_run` returned.
        start: what :func:`describe_start` returned.
    """
    path = directory / RUN_FILE
    starts = [*_earlier_starts(path), start] if start["update"] else [start]
    write_whole(path, json.dumps({**run, "starts": starts}, indent=1) + "\n")
