"""Data directories that fairseq-preprocess fills, and the dictionaries in them."""

import fnmatch
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from fairseq.data import Dictionary

__all__ = [
    "WAY_OUT", "check_data", "fingerprint", "refuse_other_dictionaries", "share_a_dictionary",
]  # fmt: skip

WAY_OUT = "Make one with fairseq-preprocess."


def check_data(
    path: Optional[str], files: Iterable[str] = ("dict.*.txt",), way_out: str = WAY_OUT
) -> None:
    """Refuse a data directory that fairseq-preprocess did not fill.

    Args:
        path: the directory, or several joined by ``:``, of which the first is looked at.
        files: the dictionaries that it must have, as patterns of names.
        way_out: what to do where there is no such directory.

    Raises:
        ValueError: naming the directory and what is missing.
    """
    if not path:
        raise ValueError(
            "The data directory is missing: name the one that fairseq-preprocess filled, as the "
            "first argument (Hydra: task.data=DIR)."
        )
    first = path.split(os.pathsep)[0]
    if not os.path.isdir(first):
        raise ValueError(f"There is no data directory `{first}`. {way_out}")
    there = sorted(file.name for file in Path(first).glob("dict*.txt"))
    missing = [pattern for pattern in files if not fnmatch.filter(there, pattern)]
    if missing:
        raise ValueError(
            f"The data directory `{first}` has no {missing[0]}; its dictionaries: "
            f"{', '.join(there) or 'none'}. "
            "Check that the data, --source-lang, --target-lang and --recipe (`rbn recipes`) belong "
            "together, or fill it with fairseq-preprocess --destdir."
        )


def fingerprint(dictionary: Dictionary) -> str:
    """Return a short hash of a dictionary's symbols, in order."""
    return hashlib.sha256("\n".join(dictionary.symbols).encode()).hexdigest()[:16]


def refuse_other_dictionaries(task: Any, state: dict[str, Any]) -> None:
    """Refuse a checkpoint that says it was trained with other dictionaries (``ValueError``)."""
    theirs = (state.get("task_state") or {}).get("dictionaries")
    ours = [fingerprint(dictionary) for dictionary in task.adapter.dictionaries(task)]
    if theirs is not None and theirs != ours:
        raise ValueError(
            "The dictionaries of the data directory are not those that the checkpoint was "
            "trained with. Give the directory that it was trained on, or preprocess the text "
            "with its dictionaries (fairseq-preprocess --srcdict, --tgtdict)."
        )


def share_a_dictionary(path: str) -> bool:
    """Tell whether all languages of a data directory have the same dictionary."""
    files = sorted(Path(path.split(os.pathsep)[0]).glob("dict.*.txt"))
    return len(files) > 1 and len({file.read_bytes() for file in files}) == 1
