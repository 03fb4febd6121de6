"""A save directory after an interruption: what a kill, a full disk or a power cut left of it.

fairseq writes a checkpoint under one name and copies it to the others, ``checkpoint_last.pt`` at
the end. Each copy is a file of half the length for a while, and a power cut may take the end of
every file that was written shortly before.
"""

import logging
import shutil
from pathlib import Path

from rbn_fairseq.checkpoints.files import is_whole
from rbn_fairseq.checkpoints.saves import BEST, LAST, Saved, oldest_first

__all__ = ["mend", "newest_whole", "remove_unfinished"]

logger = logging.getLogger(__name__)

# What a save takes, and the minute in which a system writes to the disk what it holds in memory.
_SECONDS = 600


def newest_whole(directory: Path) -> Path | None:
    """Return the whole checkpoint with the most updates to resume from, if there is any."""
    saved = oldest_first(directory.glob("checkpoint*.pt"))
    return saved[-1].path if saved else None


def remove_unfinished(directory: Path) -> None:
    """Remove checkpoints that were being written."""
    for path in directory.glob("checkpoint*.pt.tmp"):
        path.unlink()


def mend(directory: Path) -> None:
    """Complete a save that was interrupted, from its own files or from those of the one before.

    Where a file that was written lately is damaged, or ``checkpoint_last.pt`` is missing or behind
    a checkpoint that was written after it, the newest whole checkpoint gets the names that fairseq
    would have copied it to, and damaged files that were a copy of a whole one become it again.
    Else every checkpoint stays as it is: whoever copies an older one to ``checkpoint_last.pt`` goes
    back to it.

    Raises:
        ValueError: if ``checkpoint_last.pt`` is damaged and no checkpoint is whole.
    """
    remove_unfinished(directory)
    last = directory / LAST
    files = filter(Path.is_file, directory.glob("checkpoint*.pt"))
    written = {path: path.stat().st_mtime for path in files}
    since = written.get(last, max(written.values(), default=0)) - _SECONDS
    damaged = [path for path in written if written[path] >= since and not is_whole(path)]
    # What is older than a whole last one may be another training's.
    begin = 0 if last in damaged else written.get(last, 0)
    later = [path for path in written if written[path] >= begin]
    saved = oldest_first(written if damaged else later)
    newest = next((s for s in reversed(saved) if s.path in later), None)
    if newest is None:
        if last not in damaged:  # nothing was saved yet, or what to resume from is no one's save
            return
        raise ValueError(
            f"`{last}` is damaged and `{directory}` has no whole checkpoint to resume from. "
            "Remove the file to start anew."
        )
    updates = {s.path: s.updates for s in saved}
    if not damaged and updates.get(last, -1) >= newest.updates:
        return
    whole = {path: time for path, time in written.items() if path not in damaged}
    sources = [s for s in saved if s.updates <= newest.updates]
    copies = (directory / name for name in newest.copies)
    for path in dict.fromkeys([directory / BEST, *damaged, *copies]):
        source = _source(path.name, sources)
        if source is None:
            if path in damaged:
                logger.warning("%s is damaged, and no other file holds the same", path)
        elif updates.get(path, -1) < source.updates and whole.get(path, 0) <= written[source.path]:
            logger.warning(
                "%s is missing, damaged or behind: it becomes a copy of %s", path, source.path
            )
            shutil.copyfile(source.path, path)


def _source(name: str, sources: list[Saved]) -> Saved | None:
    """Return the checkpoint that fairseq saved last under a name."""
    found = [s for s in sources if name in s.names]
    if name == BEST:
        found = [s for s in found if s.best == sources[-1].best]
    return found[-1] if found else None
