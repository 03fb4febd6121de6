"""Findings of `rbn doctor` in checkpoints and data; nothing of a file is run."""

import argparse
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

import numpy as np
from fairseq.data import Dictionary, data_utils
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from rbn_fairseq.checkpoints.files import read_checkpoint
from rbn_fairseq.measuring.data_bin import check_data, fingerprint

__all__ = ["check_checkpoint", "check_data_directory"]

_STATISTICS = ".population."
_EDGES = f"{_STATISTICS}edges"
_READ = 1000  # sentences of a file, evenly spread, the last among them


Findings = Iterator[tuple[str, str]]  # kind (ok, note, problem) and text


def check_checkpoint(path: Path) -> Generator[tuple[str, str], None, Optional[dict[str, Any]]]:
    """Yield findings about a file; return its content if it is a checkpoint of this plugin."""
    try:
        state = read_checkpoint(path)
    except Exception as error:  # a damaged pickle may raise anything
        yield "problem", f"checkpoint `{path}` cannot be read: {error}"
        return None
    cfg, args = _plain(state.get("cfg")), _plain(state.get("args"))
    model = _plain(cfg.get("model")) or args
    name = str(model.get("_name") or model.get("arch") or "unknown")
    ours = name.startswith("rbn_")
    plan = "".join(
        f", --norm-{side} {model.get(f'norm_{side}', 'layer')}" for side in ("encoder", "decoder")
    )
    yield "ok", f"checkpoint `{path}`: {name}{plan if ours else ''}, {_progress(state)}"
    yield from _check_weights(state["model"])
    yield from _check_origin(state)
    if not ours:
        begin = " and `rbn train --task translation_rbn --init-from FILE` begins with its weights"
        yield (
            "note",
            "it was made without this plugin: `rbn generate` translates with it"
            f"{begin if name.startswith('transformer') else ''}. It has no running statistics, "
            "so that `rbn tid`, `rbn cost` and `rbn recalibrate` refuse it.",
        )
    return state if ours and "task" in cfg else None


def _plain(settings: Any) -> Mapping[str, Any]:
    """Return settings of any kind as a mapping, without interpolation."""
    if isinstance(settings, DictConfig):
        settings = OmegaConf.to_container(settings, resolve=False)
    if isinstance(settings, argparse.Namespace):
        settings = vars(settings)
    return settings if isinstance(settings, Mapping) else {}


def _progress(state: Mapping[str, Any]) -> str:
    history = state.get("optimizer_history")
    last = _plain(history[-1]) if isinstance(history, list) and history else {}
    iterator = _plain(_plain(state.get("extra_state")).get("train_iterator"))
    updates, epoch = f"{last.get('num_updates', '?')} updates", iterator.get("epoch")
    if not isinstance(epoch, int):
        return updates
    within = iterator.get("iterations_in_epoch")
    return f"{updates}, " + (f"in epoch {epoch}" if within else f"at the end of epoch {epoch - 1}")


def _tensors(content: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(content, Tensor):
        yield name, content
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from _tensors(value, f"{name}.{key}" if name else str(key))


def _check_weights(model: Any) -> Findings:
    tensors = dict(_tensors(model))
    broken = [name for name, value in tensors.items() if not value.isfinite().all()]
    weights = [value for name, value in tensors.items() if _STATISTICS not in name]
    norms = {name.partition(_STATISTICS)[0] for name in tensors if _STATISTICS in name}
    bins = {len(value) - 1 for name, value in tensors.items() if name.endswith(_EDGES)}
    by_length = "".join(f", some for {number} bins of sentence lengths" for number in bins)
    kinds = ", ".join(sorted({str(value.dtype).removeprefix("torch.") for value in weights}))
    text = (
        f"{sum(value.numel() for value in weights):,} parameters in {len(weights)} tensors of "
        f"{kinds or 'no dtype'}; running statistics of {len(norms)} norms{by_length}"
    )
    if not broken:
        yield "ok", f"{text}; all finite"
        return
    names = ", ".join(broken[:3]) + (", …" if len(broken) > 3 else "")
    yield (
        "problem",
        f"{text}; not finite: {names} ({len(broken)} tensors). The training diverged before it "
        "was saved: use an earlier checkpoint.",
    )


def _check_origin(state: Mapping[str, Any]) -> Findings:
    note = _plain(state.get("rbn_fairseq"))
    recalibrated = _plain(note.get("recalibrated")).get("batches")
    facts = []
    if isinstance(note.get("averaged"), list):
        facts.append(f"averaged from {len(note['averaged'])} checkpoints")
    if "moving_average" in note:
        facts.append("moving average of the weights of one training")
    if recalibrated is not None:
        facts.append(f"running statistics estimated from {recalibrated} batches")
    elif facts and any(_STATISTICS in name for name, _ in _tensors(state["model"])):
        facts.append(
            "its running statistics are averages, too, which do not belong to averaged weights: "
            "`rbn recalibrate`"
        )
    match note.get("folded"):
        case {"vanished": list(vanished), "left": list(left), **others}:
            stay = others.get("by_length") or ()
            facts.append(
                f"folded: {len(vanished)} norms are in linear layers, {len(left)} are one "
                f"multiply-add{f', {len(stay)} with bins of lengths stay' if stay else ''}; it is "
                "for translating alone"
            )
    if facts:
        yield "note", "; ".join(facts)


def check_data_directory(data: Path, state: Optional[dict[str, Any]]) -> Findings:
    """Yield findings about a data directory, and whether a checkpoint was trained with it.

    Args:
        data: the directory.
        state: content of the checkpoint; ``None`` without one.
    """
    try:
        check_data(str(data))
    except ValueError as error:
        yield "problem", str(error)
        return
    dictionaries = {}
    for path in sorted(data.glob("dict.*.txt")):
        try:
            dictionaries[path.name[len("dict.") : -len(".txt")]] = Dictionary.load(str(path))
        except Exception as error:  # fairseq raises Exception itself, too
            yield "problem", f"`{path}` cannot be read: {error}"
    if not dictionaries:
        return
    sizes = ", ".join(f"{lang} {len(words)} types" for lang, words in dictionaries.items())
    yield "ok", f"data `{data}`: {sizes}"
    yield from _check_parts(data, dictionaries)
    if state is not None:
        yield from _check_fit(data, state, dictionaries, sizes)


def _check_parts(data: Path, dictionaries: dict[str, Dictionary]) -> Findings:
    """Read a part of each file, and count the pairs."""
    languages = defaultdict(list)  # by split and pair, such as train.de-en
    for path in sorted(data.glob("*.*-*.*.idx")):
        part, _, lang = path.stem.rpartition(".")
        languages[part].append(lang)
    pairs = []
    for part, sides in languages.items():
        numbers = {}
        for lang in sides:
            prefix = data / f"{part}.{lang}"
            try:
                numbers[lang] = _read(prefix, dictionaries.get(lang))
            except Exception as error:  # of many kinds: whatever a damaged file makes numpy say
                yield (
                    "problem",
                    f"`{prefix}.bin` and .idx cannot be read ({error}): truncated, or of different "
                    "calls of fairseq-preprocess. Make them again.",
                )
        if len(sides) < 2:
            yield "problem", f"{part} has one side alone, {', '.join(sides)}. Make it again."
        elif len(set(numbers.values())) > 1:
            counts = " and ".join(f"{number:,} of {lang}" for lang, number in numbers.items())
            yield "problem", f"{part} has {counts}: sentences that are no pairs. Make it again."
        elif len(numbers) == 2:
            pairs.append(f"{part} {min(numbers.values()):,}")
    if pairs:
        yield "ok", f"pairs: {', '.join(pairs)}"
    for split in {"train", "valid"} - {part.partition(".")[0] for part in languages}:
        yield (
            "problem",
            f"no part `{split}` in `{data}`: fairseq-preprocess --{split}pref makes it "
            "(translating needs none).",
        )


def _read(prefix: Path, dictionary: Optional[Dictionary]) -> int:
    """Read some sentences of a file; return how many it has."""
    if dictionary is None:
        raise ValueError("its language has no readable dictionary")
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
    data: Path,
    state: dict[str, Any],
    dictionaries: dict[str, Dictionary],
    sizes: str,
) -> Findings:
    saved = (state.get("task_state") or {}).get("dictionaries")
    task = state["cfg"]["task"]
    languages = [task.get("source_lang"), task.get("target_lang")]
    if None in languages:  # not given in training: fairseq inferred them from the data
        languages = list(data_utils.infer_language_pair(str(data)))
    if any(language not in dictionaries for language in languages):
        pair = "-".join(str(language) for language in languages)
        yield "problem", f"the checkpoint translates {pair}; the data has {sizes}."
    elif saved is not None and saved != [fingerprint(dictionaries[lang]) for lang in languages]:
        yield (
            "problem",
            "the data's dictionaries are not those that the checkpoint was trained with.",
        )
    else:
        yield "ok", "data and checkpoint fit each other"
