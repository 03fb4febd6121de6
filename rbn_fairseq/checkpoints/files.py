"""Reading, finding and writing checkpoint files."""

import os
import pickle
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch

__all__ = [
    "epoch_checkpoints",
    "is_whole",
    "mend_last",
    "newest_whole",
    "read_checkpoint",
    "write_checkpoint",
]


def is_whole(path: Path) -> bool:
    """Tell whether a file is a complete torch archive: every member's checksum is right."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def read_checkpoint(path: Path, mmap: bool = False) -> dict[str, Any]:
    """Read a fairseq checkpoint on the CPU without running any code that it may hold.

    Args:
        path: the file.
        mmap: map the tensors instead of reading them; checksums are then not verified.

    Raises:
        ValueError: if the file is missing, damaged, unsafe, or no fairseq checkpoint.
    """
    if not path.is_file():
        raise ValueError(f"There is no checkpoint file `{path}`.")
    if not (zipfile.is_zipfile(path) if mmap else is_whole(path)):
        raise ValueError(
            f"The checkpoint `{path}` is truncated or damaged (or older than torch 1.6). Use an "
            "earlier one; training resumes from it by itself."
        )
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        kind = re.search(r"GLOBAL (\S+)", str(error))
        what = f"the type `{kind[1]}`" if kind else "a type"
        raise ValueError(
            f"The checkpoint `{path}` holds {what} that is not on the list of safe ones; none of "
            "it was run. Do not use the file unless you know who made it."
        ) from error
    except (RuntimeError, EOFError, OSError) as error:
        raise ValueError(f"The checkpoint `{path}` is damaged: {error}.") from error
    if not isinstance(state, dict) or "model" not in state:
        raise ValueError(f"The file `{path}` is no fairseq checkpoint: it has no `model`.")
    return state


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint to a temporary name beside ``path`` and rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        torch.save(state, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def epoch_checkpoints(directory: Path) -> dict[int, Path]:
    """Return ``checkpoint{EPOCH}.pt`` files by epoch, in ascending order.

    Raises:
        ValueError: if the directory does not exist.
    """
    if not directory.is_dir():
        raise ValueError(f"There is no directory `{directory}`.")
    matches = (re.fullmatch(r"checkpoint(\d+)\.pt", path.name) for path in directory.iterdir())
    return {
        int(m[1]): directory / m[0] for m in sorted(filter(None, matches), key=lambda m: int(m[1]))
    }


def newest_whole(directory: Path) -> Path | None:
    """Return the whole checkpoint of a directory with the most updates, if there is any."""

    def updates(path: Path) -> int:
        history = read_checkpoint(path, mmap=True).get("optimizer_history") or [{}]
        return int(history[-1].get("num_updates", 0))

    whole = [path for path in directory.glob("checkpoint*.pt") if is_whole(path)]
    return max(whole, key=lambda path: (updates(path), path.stat().st_mtime), default=None)


def mend_last(directory: Path) -> Path | None:
    """Put the newest whole checkpoint in the place of a damaged ``checkpoint_last.pt``.

    fairseq copies each checkpoint to that name; a training that is killed meanwhile leaves half
    of it behind.

    Returns:
        The checkpoint that took the place; ``None`` if nothing was damaged.

    Raises:
        ValueError: if the directory has no whole checkpoint.
    """
    last = directory / "checkpoint_last.pt"
    if not last.exists() or is_whole(last):
        return None
    found = newest_whole(directory)
    if found is None:
        raise ValueError(
            f"`{last}` is damaged and `{directory}` has no whole checkpoint to resume from. "
            "Remove the file to start anew."
        )
    temporary = last.with_name(last.name + ".tmp")
    shutil.copyfile(found, temporary)
    os.replace(temporary, last)
    return found
