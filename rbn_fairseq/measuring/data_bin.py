"""Data directories that fairseq-preprocess fills, and the dictionaries in them."""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional

from fairseq.data import Dictionary

__all__ = ["check_data", "fingerprint", "refuse_other_dictionaries", "share_a_dictionary"]


def check_data(
    path: Optional[str],
    languages: Iterable[Optional[str]] = (),
    way_out: str = "Make one with fairseq-preprocess.",
    monolingual: bool = False,
) -> None:
    """Refuse a data directory that fairseq-preprocess did not fill.

    Args:
        path: the directory, or several joined by ``:``, of which the first is looked at.
        languages: that it must have dictionaries of, as far as they are known.
        way_out: what to do where there is no such directory.
        monolingual: whether it is of one text, with ``dict.txt`` alone.

    Raises:
        ValueError: naming the directory and what is missing.
    """
    if not path:
        raise ValueError(
            "The data directory is missing: name the one that fairseq-preprocess filled, as the "
            "first argument (Hydra: task.data=DIR)."
        )
    first = path.split(os.pathsep)[0]
    if os.path.isfile(first):
        raise ValueError(f"The data directory `{first}` is a file. Name the directory of the data.")
    if not os.path.isdir(first):
        raise ValueError(f"The data directory `{first}` does not exist. {way_out}")
    files = os.listdir(first)
    dictionaries = sorted(re.findall(r"dict\.(\S+)\.txt", "\n".join(files)))
    if "dict.txt" not in files if monolingual else not dictionaries:
        name = "dict.txt" if monolingual else "dict.LANG.txt"
        raise ValueError(
            f"The data directory `{first}` has no dictionary ({name}). Fill it with "
            "fairseq-preprocess --destdir, or name the directory that it filled."
        )
    missing = [
        language for language in languages if language is not None and language not in dictionaries
    ]
    if missing:
        raise ValueError(
            f"The data directory `{first}` has no dict.{missing[0]}.txt, but those of "
            f"{', '.join(dictionaries)}. Check --source-lang and --target-lang."
        )


def fingerprint(dictionary: Dictionary) -> str:
    """Return a short hash of a dictionary's symbols, in order."""
    return hashlib.sha256("\n".join(dictionary.symbols).encode()).hexdigest()[:16]


def refuse_other_dictionaries(task: Any, state: dict[str, Any]) -> None:
    """Refuse a checkpoint that was trained with other dictionaries than the task's.

    Args:
        task: with an adapter.
        state: the checkpoint's content.

    Raises:
        ValueError: if it says which, and they are others.
    """
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
