"""What is in a checkpoint, ours or not, whole or not, without running any of it."""

import argparse
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from rbn_fairseq.checkpoints.files import damage, read_checkpoint
from rbn_fairseq.cli.findings import Findings

__all__ = ["check_checkpoint"]

_STATISTICS = ".population."
_EDGES = f"{_STATISTICS}edges"


def check_checkpoint(findings: Findings, path: Path) -> Optional[dict[str, Any]]:
    """Tell what is in a file; return the content if it is a checkpoint of this plugin."""
    try:
        state = read_checkpoint(path)
    except Exception as error:  # a damaged pickle may raise anything
        findings.bad(_foreign(path) or f"checkpoint `{path}` cannot be read: {error}")
        return None
    cfg, args = _plain(state.get("cfg")), _plain(state.get("args"))
    model = _plain(cfg.get("model")) or args
    name = str(model.get("_name") or model.get("arch") or "unknown")
    ours = name.startswith("rbn_")
    plan = "".join(
        f", --norm-{side} {model.get(f'norm_{side}', 'layer')}" for side in ("encoder", "decoder")
    )
    findings.good(f"checkpoint `{path}`: {name}{plan if ours else ''}, {_progress(state)}")
    _check_weights(findings, state["model"])
    _tell_origin(findings, state)
    if not ours:
        begin = " and `rbn train --task translation_rbn --init-from FILE` begins with its weights"
        findings.note(
            "it was made without this plugin: `rbn generate` translates with it"
            f"{begin if name.startswith('transformer') else ''}. It has no running statistics, "
            "so that `rbn tid`, `rbn cost` and `rbn recalibrate` refuse it."
        )
    return state if ours and "task" in cfg else None


def _plain(settings: Any) -> Mapping[str, Any]:
    """Return settings of whatever kind as they stand, interpolating nothing."""
    if isinstance(settings, DictConfig):
        settings = OmegaConf.to_container(settings, resolve=False)
    if isinstance(settings, argparse.Namespace):
        settings = vars(settings)
    return settings if isinstance(settings, Mapping) else {}


def _progress(state: Mapping[str, Any]) -> str:
    history = state.get("optimizer_history")
    last = _plain(history[-1]) if isinstance(history, list) and history else {}
    iterator = _plain(_plain(state.get("extra_state")).get("train_iterator"))
    told = f"{last.get('num_updates', '?')} updates"
    epoch = iterator.get("epoch")
    if not isinstance(epoch, int):
        return told
    if iterator.get("iterations_in_epoch"):
        return f"{told}, in epoch {epoch}"
    return f"{told}, at the end of epoch {epoch - 1}"


def _tensors(content: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(content, Tensor):
        yield name, content
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from _tensors(value, f"{name}.{key}" if name else str(key))


def _first(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _check_weights(findings: Findings, model: Any) -> None:
    tensors = dict(_tensors(model))
    broken = [name for name, value in tensors.items() if not value.isfinite().all()]
    weights = [value for name, value in tensors.items() if _STATISTICS not in name]
    statistics = {name.partition(_STATISTICS)[0] for name in tensors if _STATISTICS in name}
    bins = {len(value) - 1 for name, value in tensors.items() if name.endswith(_EDGES)}
    by_length = "".join(f", some for {number} bins of sentence lengths" for number in bins)
    kinds = ", ".join(sorted({str(value.dtype).removeprefix("torch.") for value in weights}))
    told = (
        f"{sum(value.numel() for value in weights):,} parameters in {len(weights)} tensors of "
        f"{kinds or 'no dtype'}; running statistics of {len(statistics)} norms{by_length}"
    )
    if broken:
        findings.bad(
            f"{told}; not finite: {_first(broken)} ({len(broken)} tensors). The training diverged "
            "before it was saved: use an earlier checkpoint."
        )
    else:
        findings.good(f"{told}; all finite")


def _tell_origin(findings: Findings, state: Mapping[str, Any]) -> None:
    own = _plain(state.get("rbn_fairseq"))
    recalibrated = _plain(own.get("recalibrated")).get("batches")
    told = []
    if isinstance(own.get("averaged"), list):
        told.append(f"averaged from {len(own['averaged'])} checkpoints")
    if "moving_average" in own:
        told.append("moving average of the weights of one training")
    if recalibrated is not None:
        told.append(f"running statistics estimated from {recalibrated} batches")
    elif told and any(_STATISTICS in name for name, _ in _tensors(state["model"])):
        told.append(
            "its running statistics are averages, too, which do not belong to averaged weights: "
            "`rbn recalibrate`"
        )
    match own.get("folded"):
        case {"vanished": list(vanished), "left": list(left), **others}:
            stay = others.get("by_length") or ()
            told.append(
                f"folded: {len(vanished)} norms are in linear layers, {len(left)} are one "
                f"multiply-add{f', {len(stay)} with bins of lengths stay' if stay else ''}; it is "
                "for translating alone"
            )
    if told:
        findings.note("; ".join(told))


def _foreign(path: Path) -> Optional[str]:
    """Describe what torch reads safely, but is no checkpoint that can be used here."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:
        return None
    wrong = damage(path)
    if wrong is not None and zipfile.is_zipfile(path):
        return f"`{path}` is damaged: {wrong}. Use an earlier file."
    if wrong is not None:
        return (
            f"`{path}` is in torch's format from before 1.6, or damaged behind its tensors. If it "
            "is old, write it anew: torch.save(torch.load(FILE, weights_only=True), NEW)."
        )
    tensors = dict(_tensors(content))
    return (
        f"`{path}` is no fairseq checkpoint: it has no `model`. It holds {len(tensors)} tensors"
        + (f": {_first(tensors)}." if tensors else f" ({type(content).__name__}).")
    )
