"""Findings of `rbn doctor` in checkpoints and data, none of which is run."""

import argparse
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from fairseq.data import Dictionary, data_utils
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from rbn_fairseq.checkpoints.files import damage, read_checkpoint
from rbn_fairseq.cli.findings import Findings
from rbn_fairseq.measuring.data_bin import check_data, fingerprint

__all__ = ["check_checkpoint", "check_data_directory"]

_STATISTICS = ".population."
_EDGES = f"{_STATISTICS}edges"
_READ = 1000  # sentences of a file, evenly spread, the last among them


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


def check_data_directory(findings: Findings, data: Path, state: Optional[dict[str, Any]]) -> None:
    """Tell what is in a data directory, and whether it is what a checkpoint was trained with.

    Args:
        findings: where to.
        data: the directory.
        state: content of the checkpoint; ``None`` without one.
    """
    try:
        check_data(str(data))
    except ValueError as error:
        findings.bad(str(error))
        return
    dictionaries = {}
    for path in sorted(data.glob("dict.*.txt")):
        try:
            dictionaries[path.name[len("dict.") : -len(".txt")]] = Dictionary.load(str(path))
        except Exception as error:  # fairseq raises Exception itself, too
            findings.bad(f"`{path}` cannot be read: {error}")
    if not dictionaries:
        return
    sizes = ", ".join(f"{lang} {len(it)} types" for lang, it in dictionaries.items())
    findings.good(f"data `{data}`: {sizes}")
    _check_parts(findings, data, dictionaries)
    if state is not None:
        _check_fit(findings, data, state, dictionaries, sizes)


def _check_parts(findings: Findings, data: Path, dictionaries: dict[str, Dictionary]) -> None:
    """Read a part of each file; tell how many pairs there are."""
    parts: dict[str, dict[str, Optional[int]]] = {}  # None: cannot be read
    named = (re.fullmatch(r"(\w+)\.(\w+-\w+)\.(\w+)\.idx", path.name) for path in data.iterdir())
    for split, pair, lang in sorted(found.groups() for found in named if found):
        prefix = data / f"{split}.{pair}.{lang}"
        sides = parts.setdefault(f"{split} ({pair})", {})
        sides[lang] = None
        if lang not in dictionaries:
            findings.bad(f"`{prefix}.idx` has no readable dictionary dict.{lang}.txt.")
            continue
        try:
            sides[lang] = _read(prefix, dictionaries[lang])
        except Exception as error:  # of many kinds: whatever a damaged file makes numpy say
            findings.bad(
                f"`{prefix}.bin` and .idx cannot be read ({error}): truncated, or of different "
                "calls of fairseq-preprocess. Make them again."
            )
    pairs = []
    for name, sides in parts.items():
        numbers = {lang: number for lang, number in sides.items() if number is not None}
        if len(sides) < 2:
            findings.bad(f"{name} has one side alone, {', '.join(sides)}. Make it again.")
        elif len(set(numbers.values())) > 1:
            told = " and ".join(f"{number:,} of {lang}" for lang, number in numbers.items())
            findings.bad(f"{name} has {told}: sentences that are no pairs. Make it again.")
        elif len(numbers) == 2:
            pairs.append(f"{name} {min(numbers.values()):,}")
    if pairs:
        findings.good(f"pairs: {', '.join(pairs)}")
    for split in ("train", "valid"):
        if not any(name.startswith(f"{split} ") for name in parts):
            findings.bad(
                f"no part `{split}` in `{data}`: fairseq-preprocess --{split}pref makes it "
                "(translating needs none)."
            )


def _read(prefix: Path, dictionary: Dictionary) -> int:
    """Read some sentences of a file; return how many it has."""
    dataset = data_utils.load_indexed_dataset(str(prefix), dictionary)
    if dataset is None:
        raise ValueError("no such file")
    number = len(dataset)
    for index in np.unique(np.linspace(0, number - 1, min(number, _READ)).astype(int)):
        sentence = dataset[int(index)]
        if len(sentence) != dataset.sizes[index]:
            raise ValueError(f"sentence {index} is not as long as the index says")
        if len(sentence) and not 0 <= int(sentence.max()) < len(dictionary):
            raise ValueError(f"sentence {index} has types that the dictionary lacks")
    return number


def _check_fit(
    findings: Findings,
    data: Path,
    state: dict[str, Any],
    dictionaries: dict[str, Dictionary],
    sizes: str,
) -> None:
    saved = (state.get("task_state") or {}).get("dictionaries")
    task = state["cfg"]["task"]
    languages = [task.get("source_lang"), task.get("target_lang")]
    if None in languages:  # not given in training: fairseq inferred them from the data
        languages = list(data_utils.infer_language_pair(str(data)))
    if any(language not in dictionaries for language in languages):
        pair = "-".join(str(language) for language in languages)
        findings.bad(f"the checkpoint translates {pair}; the data has {sizes}.")
    elif saved is not None and saved != [fingerprint(dictionaries[it]) for it in languages]:
        findings.bad("the data's dictionaries are not those that the checkpoint was trained with.")
    else:
        findings.good("data and checkpoint fit each other")
