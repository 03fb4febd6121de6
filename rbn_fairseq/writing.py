"""Writes files atomically, and refuses to overwrite files unasked."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["check_output", "unfinished", "write_whole"]


def check_output(
    option: str, path: Path, inputs: Iterable[Path] = (), overwrite: bool = False
) -> None:
    """Refuse an output that cannot be written, before any work (``ValueError``).

    A file that is there is replaced with ``overwrite`` only, and one of ``inputs`` never.
    """
    if path.is_dir():
        raise ValueError(f"{option} `{path}` is a directory. Name a file in it.")
    if not path.parent.is_dir():
        raise ValueError(f"{option}: the directory `{path.parent}` does not exist. Make it first.")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"{option}: the directory `{path.parent}` is not yours to write to.")
    if not path.exists():
        return
    if any(source.exists() and path.samefile(source) for source in inputs):
        raise ValueError(f"{option} `{path}` is what is read. Name another file.")
    if not overwrite:
        raise ValueError(
            f"{option} `{path}` exists. Name another file, or give --overwrite to replace it."
        )


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, which replaces it at the end.

    The directory is made if need be. The file is on the disk before it gets its name; after an
    error it is removed, and ``path`` stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".unfinished")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file (text as UTF-8) atomically."""
    with unfinished(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
