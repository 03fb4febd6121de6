"""A save directory after an interruption: a kill, a full disk or a power cut.

fairseq writes a checkpoint under one name and copies it to the others, ``checkpoint_last.pt`` at
the end, so that this one may be missing, cut off, or behind a checkpoint that was written later.
"""

import logging
import re
import shutil
from pathlib import Path
from typing import Optional

from rbn_fairseq.checkpoints.files import is_whole, read_checkpoint
from rbn_fairseq.writing import unfinished

__all__ = ["LAST", "mend"]

logger = logging.getLogger(__name__)

LAST = "checkpoint_last.pt"

# The names that fairseq saves under; an average is no training's state.
_NAME = re.compile(r"checkpoint(\d+|_\d+_\d+|_best|_last|\.best_.*)\.pt")


def _progress(path: Path) -> tuple[int, int]:
    """Return how often the training of a checkpoint was started, and its updates; else 0, 0.

    A start may count updates anew. Checksums are not looked at.
    """
    try:
        history = read_checkpoint(path, mmap=True)["optimizer_history"]  # an entry a start
        return len(history), int(history[-1]["num_updates"])
    except (ValueError, LookupError, TypeError):
        return 0, 0


def _newest(directory: Path, after: float) -> Optional[Path]:
    """Return the whole checkpoint of the most progress; ``None`` = there is none.

    Of those that were written later than ``after``, in seconds since 1970.
    """
    saved = [path for path in sorted(directory.glob("*.pt")) if _NAME.fullmatch(path.name)]
    later = [path for path in saved if path.is_file() and path.stat().st_mtime > after]
    read = {path: made for path in later if any(made := _progress(path))}
    return next(filter(is_whole, sorted(read, key=read.__getitem__, reverse=True)), None)


def mend(directory: Path, chosen: Optional[Path] = None) -> None:
    """Make ``checkpoint_last.pt`` the newest whole checkpoint, if a save was cut off.

    A whole one stays unless a checkpoint was written after it and has more updates, or is of a
    later start: an older checkpoint that was copied to ``checkpoint_last.pt`` is gone back to.
    Where there is none, and the training is to begin from ``chosen``, another of the directory's,
    none is made.

    Raises:
        ValueError: if ``checkpoint_last.pt`` is damaged and no checkpoint is whole.
    """
    for path in directory.glob("checkpoint*.pt.tmp"):
        path.unlink()
    last = directory / LAST
    if chosen and not last.exists() and _NAME.fullmatch(chosen.name):
        if chosen.resolve().parent == directory.resolve():
            return
    whole = is_whole(last)
    newest = _newest(directory, after=last.stat().st_mtime if whole else 0)
    if newest is None and last.exists() and not whole:
        raise ValueError(
            f"`{last}` is damaged and `{directory}` has no whole checkpoint to resume from. "
            "Remove the file to start anew."
        )
    if newest is not None and (not whole or _progress(newest) > _progress(last)):
        logger.warning(
            f"{last} is missing, damaged or behind: the training resumes from {newest}, update "
            f"{_progress(newest)[1]}"
        )
        with unfinished(last) as part:
            shutil.copyfile(newest, part)
