"""Files that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["flush", "unfinished", "write_whole"]


def flush(path: Path) -> None:
    """Wait until a file, or a directory's list of names, would outlast a power cut."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError:
        if not path.is_dir():  # which some network file systems refuse
            raise
    finally:
        os.close(number)


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """Yield another name to write ``path`` under: half of it is never taken for the file.

    At the end the file gets its name, and outlasts a power cut. After an error it is removed.
    """
    part = path.with_name(path.name + ".unfinished")
    try:
        yield part
        flush(part)
        part.replace(path)
        flush(path.parent)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file (text as UTF-8) that is there whole or not at all."""
    with unfinished(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
