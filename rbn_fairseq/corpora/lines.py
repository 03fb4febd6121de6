"""Files of one sentence a line; a line ends at a line feed and nowhere else."""

import gzip
import hashlib
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

__all__ = [
    "SPLITS",
    "Pair",
    "Say",
    "announced",
    "check_pairs",
    "count_pairs",
    "find_text",
    "read_lines",
    "sha256",
    "write_lines",
    "write_pairs",
]

Pair = tuple[str, str]
Say = Callable[[str], None]
SPLITS = ("train", "valid", "test")


def find_text(option: str, directory: Path, name: str) -> Path:
    """Return the file ``name`` of a directory, or ``name.gz``.

    Raises:
        ValueError: if neither is there; the message names the option.
    """
    for path in (directory / name, directory / f"{name}.gz"):
        if path.is_file():
            return path
    raise ValueError(f"{option}: there is no file `{directory / name}`, nor one with .gz behind.")


def read_lines(path: Path) -> Iterator[str]:
    """Read a file of UTF-8, compressed if its name ends in ``.gz``, line by line.

    Raises:
        ValueError: if it is not UTF-8, or the compressed file is damaged or cut short.
    """
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield line.removesuffix(b"\n").decode("utf-8")
                except UnicodeDecodeError as error:
                    raise ValueError(f"Line {number} of `{path}` is not UTF-8.") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"`{path}` cannot be decompressed to its end ({error}): it is damaged or cut short."
        ) from error


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a file of UTF-8, one sentence a line."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)


def write_pairs(directory: Path, split: str, langs: Sequence[str], pairs: Iterable[Pair]) -> None:
    """Write the two sides of ``pairs`` as ``SPLIT.LANG``."""
    first, second = (directory / f"{split}.{lang}" for lang in langs)
    with (
        first.open("w", encoding="utf-8", newline="\n") as left,
        second.open("w", encoding="utf-8", newline="\n") as right,
    ):
        for source, target in pairs:
            left.write(source + "\n")
            right.write(target + "\n")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def announced(lines: Iterable[str], what: str, say: Say, interval: float = 30.0) -> Iterator[str]:
    """Hand ``lines`` through, and say now and then how many there were.

    Args:
        lines: any lines.
        what: is being done with them.
        say: takes a line for the user.
        interval: seconds between two such lines.
    """
    said = time.monotonic()
    for number, line in enumerate(lines, 1):
        yield line
        if time.monotonic() - said > interval:
            said = time.monotonic()
            say(f"  {what}: {number:,} lines so far")


def _count(path: Path) -> int:
    number = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):  # noqa: B007
            if b"\r" in line:
                raise ValueError(
                    f"Line {number} of `{path.name}` holds a carriage return, where fairseq would "
                    "end the line. Take them out: sed -i 's/\\r//g'."
                )
    return number


def count_pairs(directory: Path, split: str, langs: Sequence[str]) -> int:
    """Count the pairs of ``SPLIT.{source,target}``.

    Raises:
        ValueError: if the two sides are not equally long, or fairseq would see other lines.
    """
    source, target = (_count(directory / f"{split}.{lang}") for lang in langs)
    if source != target:
        raise ValueError(
            f"{split}.{langs[0]} has {source:,} lines, {split}.{langs[1]} {target:,}. Line k of "
            "one must translate line k of the other."
        )
    return source


def check_pairs(directory: Path, langs: Sequence[str]) -> dict[str, int]:
    """Count the pairs of ``{train,valid,test}.{source,target}``.

    Raises:
        ValueError: as ``count_pairs``, or if a part is empty.
    """
    pairs = {split: count_pairs(directory, split, langs) for split in SPLITS}
    for split, number in pairs.items():
        if number == 0:
            raise ValueError(f"{split}.{langs[0]} and {split}.{langs[1]} have no lines.")
    return pairs
