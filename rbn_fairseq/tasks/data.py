"""Is this the data directory that the task needs?"""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Optional

from fairseq.data import Dictionary

__all__ = ["check_data", "fingerprint", "share_a_dictionary"]


def check_data(
    path: Optional[str],
    languages: Iterable[Optional[str]] = (),
    way_out: str = "Make one with fairseq-preprocess.",
) -> None:
    """Refuse a data directory that fairseq-preprocess did not fill.

    Args:
        path: the directory, or several joined by ``:``, of which the first is looked at.
        languages: that it must have dictionaries of, as far as they are known.
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
    if os.path.isfile(first):
        raise ValueError(f"The data directory `{first}` is a file. Name the directory of the data.")
    if not os.path.isdir(first):
        raise ValueError(f"The data directory `{first}` does not exist. {way_out}")
    dictionaries = sorted(re.findall(r"dict\.(\S+)\.txt", "\n".join(os.listdir(first))))
    if not dictionaries:
        raise ValueError(
            f"The data directory `{first}` has no dictionary (dict.LANG.txt). Fill it with "
            "fairseq-preprocess --destdir, or name the directory that it filled."
        )
    missing = [it for it in languages if it is not None and it not in dictionaries]
    if missing:
        raise ValueError(
            f"The data directory `{first}` has no dict.{missing[0]}.txt, but those of "
            f"{', '.join(dictionaries)}. Check --source-lang and --target-lang."
        )


def fingerprint(dictionary: Dictionary) -> str:
    """Return a short hash of a dictionary's symbols, in order."""
    return hashlib.sha256("\n".join(dictionary.symbols).encode()).hexdigest()[:16]


def share_a_dictionary(path: str) -> bool:
    """Tell whether all languages of a data directory have the same dictionary."""
    files = sorted(Path(path.split(os.pathsep)[0]).glob("dict.*.txt"))
    return len(files) > 1 and len({file.read_bytes() for file in files}) == 1
