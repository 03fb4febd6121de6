"""Can data that fairseq-preprocess made be read, all of them?"""

import re
from pathlib import Path
from typing import Any, Optional

import numpy as np
from fairseq.data import Dictionary, data_utils

from rbn_fairseq.cli.findings import Findings
from rbn_fairseq.measuring.data_bin import check_data, fingerprint

__all__ = ["check_data_directory"]

_READ = 1000  # sentences of a file, evenly spread, the last among them


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
