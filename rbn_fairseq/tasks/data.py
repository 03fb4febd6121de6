"""Is this the data directory that the task needs?"""

import hashlib
import os
from typing import Optional

from fairseq.data import Dictionary

__all__ = ["check_data", "fingerprint"]


def check_data(path: Optional[str]) -> None:
    """Refuse a data directory that fairseq-preprocess did not fill.

    Raises:
        ValueError: naming the directory and what is missing.
    """
    first = (path or "").split(os.pathsep)[0]
    if not os.path.isdir(first):
        raise ValueError(
            f"The data directory `{first}` does not exist. Make one with fairseq-preprocess."
        )
    if not any(name.startswith("dict.") for name in os.listdir(first)):
        raise ValueError(
            f"The data directory `{first}` has no dictionary (dict.LANG.txt). Fill it with "
            "fairseq-preprocess --destdir, or name the directory that it filled."
        )


def fingerprint(dictionary: Dictionary) -> str:
    """Return a short hash of a dictionary's symbols, in order."""
    return hashlib.sha256("\n".join(dictionary.symbols).encode()).hexdigest()[:16]
