"""A save directory after an interruption: a kill, a full disk or a power cut.

fairseq writes a checkpoint under one name and copies it to the others, ``checkpoint_last.pt`` at
the end, so that this one may be missing, cut off, or behind a checkpoint that was written later.
"""

import logging
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Optional

from rbn_fairseq.checkpoints.files import is_whole, read_checkpoint
from rbn_fairseq.writing import unfinished

__all__ = ["LAST", "mend", "newest_whole", "remove_unfinished"]

logger = logging.getLogger(__name__)

LAST = "checkpoint_last.pt"

# The names that fairseq saves under; an average is no training's state.
_NAME = re.compile(r"checkpoint(\d+|_\d+_\d+|_best|_last|\.best_.*)\.pt")


def _saved(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.glob("*.pt")) if _NAME.fullmatch(path.name)]


def _updates(path: Path) -> Optional[int]:
    """Return the updates of a whole checkpoint of a training; ``None`` for any other file."""
    try:
        history = read_checkpoint(path, mmap=True)["optimizer_history"]
        return int(history[-1]["num_updates"]) if is_whole(path) else None
    except (ValueError, LookupError, TypeError):
        return None


def _newest(paths: Iterable[Path]) -> Optional[tuple[int, Path]]:
    whole = ((_updates(path), path) for path in paths)
    return max(
        ((updates, path) for updates, path in whole if updates is not None),
        key=lambda pair: pair[0],
        default=None,
    )


def newest_whole(directory: Path) -> Optional[Path]:
    """Return the whole checkpoint with the most updates to resume from, if there is any."""
    newest = _newest(_saved(directory))
    return newest[1] if newest else None


def remove_unfinished(directory: Path) -> None:
    """Remove checkpoints that were being written."""
    for path in directory.glob("checkpoint*.pt.tmp"):
        path.unlink()


def mend(directory: Path) -> None:
    """Make ``checkpoint_last.pt`` the newest whole checkpoint, if a save was cut off.

    A whole one stays unless a checkpoint was written after it and has more updates: an older
    checkpoint that was copied to ``checkpoint_last.pt`` is gone back to.

    Raises:
        ValueError: if ``checkpoint_last.pt`` is damaged and no checkpoint is whole.
    """
    remove_unfinished(directory)
    last = directory / LAST
    others = [path for path in _saved(directory) if path.is_file()]
    updates = _updates(last)
    if updates is not None or is_whole(last):
        written = last.stat().st_mtime
        others = [path for path in others if path.stat().st_mtime > written]
    newest = _newest(others)
    if newest is not None and newest[0] > (-1 if updates is None else updates):
        logger.warning(
            "%s is missing, damaged or behind: the training resumes from %s, update %d",
            last,
            newest[1],
            newest[0],
        )
        with unfinished(last) as part:
            shutil.copyfile(newest[1], part)
    elif newest is None and last.exists() and not is_whole(last):
        raise ValueError(
            f"`{last}` is damaged and `{directory}` has no whole checkpoint to resume from. "
            "Remove the file to start anew."
        )
