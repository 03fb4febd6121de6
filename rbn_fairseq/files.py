"""Files that are there whole or not at all."""

from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file (text as UTF-8) under another name first: half of it is never taken for it."""
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
    unfinished.replace(path)
