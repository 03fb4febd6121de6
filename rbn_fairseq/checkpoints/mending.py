"""A save directory after an interruption: what a kill, a full disk or a power cut left of it.

fairseq writes a checkpoint under one name and copies it to the others, ``checkpoint_last.pt`` at
the end. Each copy is a file of half the length for a while, and a power cut may take the end of
every file that was written shortly before.
"""

import logging
import shutil
from collections.abc import Iterable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data.data_utils import numpy_seed

from rbn_fairseq.checkpoints.files import is_whole, read_checkpoint

__all__ = ["mend", "newest_whole", "remove_unfinished"]

logger = logging.getLogger(__name__)

LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"
# What a save takes, and the minute in which a system writes to the disk what it holds in memory.
_SECONDS = 600


@dataclass(frozen=True)
class _Saved:
    """A whole checkpoint of a training, and the names that fairseq saved it under."""

    path: Path
    updates: int
    best: Any
    names: Set[str]


def _saved(path: Path) -> _Saved | None:
    """Read what a file is; ``None`` if fairseq did not save a training under that name."""
    if not is_whole(path):
        return None
    try:
        state = read_checkpoint(path, mmap=True)
        extra, history = state["extra_state"], state["optimizer_history"]
        epoch, done = (extra["train_iterator"][k] for k in ("epoch", "iterations_in_epoch"))
        updates = int(history[-1]["num_updates"])
    except (ValueError, LookupError, TypeError):  # no checkpoint, or not of a training
        return None
    best, score = extra.get("best"), extra.get("val_loss")
    # As in fairseq's checkpoint_utils.save_checkpoint.
    options = state["cfg"]["checkpoint"]
    names = {f"checkpoint_{epoch}_{updates}.pt" if done else f"checkpoint{epoch - 1}.pt"}
    if score is not None and score == best:
        names.add(BEST)
    if score is not None and options["keep_best_checkpoints"] > 0:
        with numpy_seed(epoch if done else epoch - 1, updates, score):
            digit = np.random.randint(0, options["keep_best_checkpoints"])  # noqa: NPY002
        metric = options["best_checkpoint_metric"]
        names.add(f"checkpoint.best_{metric}_{score:.3f}{digit}.pt")
    if not options["no_last_checkpoints"]:
        names.add(LAST)
    return _Saved(path, updates, best, names) if path.name in names else None


def _oldest_first(paths: Iterable[Path]) -> list[_Saved]:
    return sorted(filter(None, map(_saved, paths)), key=lambda saved: saved.updates)


def newest_whole(directory: Path) -> Path | None:
    """Return the whole checkpoint with the most updates to resume from, if there is any."""
    saved = _oldest_first(directory.glob("checkpoint*.pt"))
    return saved[-1].path if saved else None


def remove_unfinished(directory: Path) -> None:
    """Remove checkpoints that were being written."""
    for path in directory.glob("checkpoint*.pt.tmp"):
        path.unlink()


def mend(directory: Path) -> None:
    """Complete a save that was interrupted, from its own files or from those of the one before.

    Where a file that was written lately is damaged, the newest whole checkpoint becomes
    ``checkpoint_last.pt``, and damaged files that were a copy of a whole one become it again.
    Without damage every checkpoint stays as it is.

    Raises:
        ValueError: if ``checkpoint_last.pt`` is damaged and no checkpoint is whole.
    """
    remove_unfinished(directory)
    last = directory / LAST
    files = filter(Path.is_file, directory.glob("checkpoint*.pt"))
    written = {path: path.stat().st_mtime for path in files}
    since = written.get(last, max(written.values(), default=0)) - _SECONDS
    damaged = [path for path in written if written[path] >= since and not is_whole(path)]
    if not damaged:
        return
    saved = _oldest_first(written)
    # What is older than a whole last one may be another training's.
    since = 0 if last in damaged else written.get(last, 0)
    newest = next((s for s in reversed(saved) if written[s.path] >= since), None)
    if newest is None:
        if last not in damaged:  # nothing was saved yet, or what to resume from is no one's save
            return
        raise ValueError(
            f"`{last}` is damaged and `{directory}` has no whole checkpoint to resume from. "
            "Remove the file to start anew."
        )
    updates = {s.path: s.updates for s in saved}
    sources = [s for s in saved if s.updates <= newest.updates]
    for path in dict.fromkeys([directory / BEST, *damaged, last]):
        source = _source(path.name, sources)
        if source is not None and updates.get(path, -1) < source.updates:
            logger.warning("%s is damaged or behind: it becomes a copy of %s", path, source.path)
            shutil.copyfile(source.path, path)
        elif path in damaged:
            logger.warning("%s is damaged, and no other file holds the same", path)


def _source(name: str, sources: list[_Saved]) -> _Saved | None:
    """Return the checkpoint that fairseq saved last under a name."""
    found = [s for s in sources if name in s.names]
    if name == BEST:
        found = [s for s in found if s.best == sources[-1].best]
    return found[-1] if found else None
