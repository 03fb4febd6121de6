"""A save directory while a training writes to it."""

import fcntl
import os
from pathlib import Path
from typing import Optional

__all__ = ["hold", "let_go"]

_held: Optional[tuple[Path, int]] = None  # the directory, opened


def hold(directory: Path) -> None:
    """Keep other processes of this machine from training in a directory.

    Until this process ends, lets go or holds another one. Trainings of one process follow each
    other.

    Raises:
        ValueError: if another process holds it.
    """
    global _held
    path = directory.resolve()
    if _held is not None and _held[0] == path:
        return
    let_go()
    opened = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        raise ValueError(
            f"`{directory}`: another process trains there, and two would destroy each other's "
            "files. Wait for its end, or give --save-dir another directory."
        ) from None
    except OSError:
        pass  # of a file system without such locks
    _held = path, opened


def let_go() -> None:
    """Let other processes train in the directory that is held."""
    global _held
    if _held is not None:
        os.close(_held[1])
        _held = None


# A loader of data has a copy of what is open, and may outlive a training that is killed.
os.register_at_fork(after_in_child=let_go)
