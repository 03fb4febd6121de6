"""A save directory while a training writes to it."""

import fcntl
import os
from pathlib import Path
from weakref import WeakValueDictionary, finalize

__all__ = ["Hold", "hold"]


class Hold:
    """What keeps other processes from training in a directory, as long as it exists."""

    def __init__(self, directory: Path) -> None:
        opened = os.open(directory, os.O_RDONLY)  # closed and unlocked with this process, too
        finalize(self, os.close, opened)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"`{directory}`: another training is running there, and two would destroy each "
                "other's files. Wait for its end, or give --save-dir another directory."
            ) from None
        except OSError:
            pass  # of a file system without such locks


_held: WeakValueDictionary[Path, Hold] = WeakValueDictionary()


def hold(directory: Path) -> Hold:
    """Hold a directory for this process, in which trainings may follow each other.

    Raises:
        ValueError: if a training of another process does.
    """
    path = directory.resolve()
    held = _held.get(path)
    if held is None:
        _held[path] = held = Hold(path)
    return held
