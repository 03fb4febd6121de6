"""Text of one sentence a line: reading, writing, cleaning, mapping; archives of it.

A line ends at a line feed and nowhere else.
"""

import gzip
import hashlib
import re
import shutil
import tarfile
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Optional, Self

__all__ = [
    "SPLITS",
    "Pair",
    "Say",
    "announced",
    "check_pairs",
    "clean_pair",
    "count_pairs",
    "extract",
    "find_text",
    "lower_case",
    "map_chunks",
    "read_lines",
    "sha256",
    "write_lines",
    "write_pairs",
]

Pair = tuple[str, str]
Say = Callable[[str], None]
SPLITS = ("train", "valid", "test")

_CHUNK = 5_000  # lines
# What Perl calls white space; Python also counts four control characters.
_SPACE = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
_LONGEST_WORD = 1_000  # characters
_MOST = 64 << 30  # bytes of all members of an archive: several times what a corpus has
_LONGEST = 1 << 20  # bytes of a long name or other attributes, which tarfile reads in one piece


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
    reported = time.monotonic()
    for number, line in enumerate(lines, 1):
        yield line
        if time.monotonic() - reported > interval:
            reported = time.monotonic()
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


def map_chunks(
    function: Callable[[list[str]], list[str]],
    lines: Iterable[str],
    executor: Executor,
    ahead: int,
    size: int = _CHUNK,
) -> Iterator[str]:
    """Apply ``function`` to runs of ``size`` lines.

    Args:
        function: makes a list of a list, equally long.
        lines: are read no further ahead than needed, because they may not fit in memory.
        executor: runs the function.
        ahead: chunks that may wait for their turn.
        size: lines of a chunk.
    """
    rest = iter(lines)
    waiting: deque[Future[list[str]]] = deque()
    while chunk := list(islice(rest, size)):
        waiting.append(executor.submit(function, chunk))
        if len(waiting) > ahead:
            yield from waiting.popleft().result()
    while waiting:
        yield from waiting.popleft().result()


def _tidy(line: str) -> str:
    # The script keeps "|" where the first line has one: text with factors. Ours never has any,
    # because the tokeniser escapes it.
    return _SPACE.sub(" ", line.replace("|", "")).strip(" ")


def clean_pair(source: str, target: str, longest: int, ratio: float) -> Optional[Pair]:
    """Tidy a tokenised pair; ``None`` = not to be trained on.

    Follows ``scripts/training/clean-corpus-n.perl`` of Moses: both sides must have 1 to
    ``longest`` tokens, neither more than ``ratio`` times as many as the other, and no token of
    more than 1,000 characters.
    """
    source, target = _tidy(source), _tidy(target)
    if not source or not target:
        return None
    sides = source.split(" "), target.split(" ")
    shorter, longer = sorted(map(len, sides))
    if longer > longest or longer / shorter > ratio:
        return None
    if any(len(word) > _LONGEST_WORD for side in sides for word in side):
        return None
    return source, target


def lower_case(line: str) -> str:
    """Return ``line`` in lower case as Perl has it, which knows no final sigma."""
    return line.replace("Σ", "σ").lower()


class _Header(tarfile.TarInfo):
    """A header whose size neither fills the memory nor leads tarfile back to where it was."""

    @classmethod
    def frombuf(cls, buf: bytes, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0 or (header.size > _LONGEST and not header.isreg()):
            raise tarfile.ReadError(f"the size of {header.name!r} is {header.size}")
        return header


def _fault(member: tarfile.TarInfo, room: int) -> Optional[str]:
    # Not by tarfile's own filters: the first releases of Python 3.11 lack them.
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        return "it leads out of the directory"
    if not (member.isreg() or member.isdir()):
        return "it is a link or a device"
    if not 0 <= member.size <= room:
        return f"its size is {member.size:,} bytes, of at most {_MOST:,} for all members together"
    return None


def _take(
    tar: tarfile.TarFile, wanted: Collection[str], missing: set[str], directory: Path
) -> Optional[str]:
    """Write members up to the first that is not safe; return which that is, and why."""
    room = _MOST
    for member in tar:
        fault = _fault(member, room)
        if fault is not None:
            return f"{member.name!r} is not safe to unpack ({fault})"
        room -= member.size
        name = PurePosixPath(member.name).name
        content = tar.extractfile(member) if member.isreg() and name in wanted else None
        if content is not None:
            with (directory / name).open("wb") as file:
                shutil.copyfileobj(content, file)
            missing.discard(name)
    while tar.fileobj is not None and tar.fileobj.read(1 << 20):
        pass  # to the checksum of what was compressed, which is behind the last member
    return None


def extract(archive: Path, wanted: Collection[str], directory: Path) -> None:
    """Write the members called ``wanted``, in whatever folder of the archive, to ``directory``.

    Raises:
        ValueError: if the archive cannot be read to its end, any member would leave the directory,
            they are together larger than any corpus, or one that is wanted is missing.
    """
    if not archive.is_file():
        raise ValueError(f"--archive: there is no file `{archive}`.")
    missing = set(wanted)
    try:
        with tarfile.open(archive, "r:*", tarinfo=_Header) as tar:
            unsafe = _take(tar, wanted, missing, directory)
    except Exception as error:  # tarfile and what decompresses have many words for damage
        if isinstance(error, OSError) and error.errno is not None:  # the system's: a full disk
            raise
        raise ValueError(
            f"--archive: `{archive}` cannot be read to its end: it is no tar archive, or damaged, "
            "or its download was cut short. Remove it and get it anew."
        ) from error
    if unsafe is not None:
        raise ValueError(
            f"--archive: `{archive}` was refused, its member {unsafe}. It is not the archive it "
            "should be; remove it and get it anew."
        )
    if missing:
        raise ValueError(
            f"--archive: `{archive}` lacks {', '.join(sorted(missing))}: it is not the archive it "
            "should be."
        )
