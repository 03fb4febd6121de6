"""Text of one sentence a line: reading, writing, cleaning, mapping; archives of it.

A line ends at a line feed and nowhere else.
"""

import gzip
import hashlib
import re
import shutil
import signal
import tarfile
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Optional

__all__ = [
    "SPLITS",
    "Pair",
    "Say",
    "announced",
    "clean_pair",
    "count_pairs",
    "extract",
    "find_text",
    "lower_case",
    "map_chunks",
    "process_pool",
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
_MOST = 64 << 30  # bytes that are taken from an archive: several times what a corpus has


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


def announced(lines: Iterable[str], task: str, say: Say, interval: float = 30.0) -> Iterator[str]:
    """Yield ``lines``, and every ``interval`` seconds say how many of them ``task`` has done."""
    reported = time.monotonic()
    for number, line in enumerate(lines, 1):
        yield line
        if time.monotonic() - reported > interval:
            reported = time.monotonic()
            say(f"  {task}: {number:,} lines so far")


def _count_lines(path: Path) -> int:
    number = 0
    for number, line in enumerate(read_lines(path), 1):
        if "\r" in line:
            raise ValueError(
                f"Line {number} of `{path.name}` holds a carriage return, where fairseq would end "
                "the line. Take them out: sed -i 's/\\r//g'."
            )
    return number


def count_pairs(directory: Path, split: str, langs: Sequence[str]) -> int:
    """Count the pairs of ``SPLIT.{source,target}``.

    Raises:
        ValueError: if there are none, the two sides are not equally long, or fairseq would end
            lines elsewhere.
    """
    source, target = (_count_lines(directory / f"{split}.{lang}") for lang in langs)
    if source != target:
        raise ValueError(
            f"{split}.{langs[0]} has {source:,} lines, {split}.{langs[1]} {target:,}. Line k of "
            "one must translate line k of the other."
        )
    if source == 0:
        raise ValueError(f"{split}.{langs[0]} and {split}.{langs[1]} have no lines.")
    return source


def process_pool(jobs: int) -> ProcessPoolExecutor:
    """Return a pool of processes that leave the user's interrupt to this one."""
    ignore = (signal.SIGINT, signal.SIG_IGN)
    return ProcessPoolExecutor(jobs, initializer=signal.signal, initargs=ignore)


def map_chunks(
    function: Callable[[list[str]], list[str]],
    lines: Iterable[str],
    executor: Executor,
    ahead: int,
    size: int = _CHUNK,
) -> Iterator[str]:
    """Apply ``function``, which keeps the number of lines, to chunks of ``size`` lines in order.

    At most ``ahead`` chunks wait for their turn, because a corpus may not fit in memory.
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


def extract(archive: Path, wanted: Collection[str], directory: Path) -> None:
    """Write the files called ``wanted``, in whatever folder of a tar archive, to ``directory``.

    Nothing else of the archive is written; links and devices are not followed.

    Raises:
        ValueError: if the archive cannot be read to its end, a file that is wanted is missing, or
            they are together larger than any corpus.
    """
    missing, size = set(wanted), 0
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                if not member.isreg() or name not in missing:
                    continue
                missing.discard(name)
                size += member.size
                content = tar.extractfile(member)
                if size <= _MOST and content is not None:
                    with (directory / name).open("wb") as file:
                        shutil.copyfileobj(content, file)
            while tar.fileobj is not None and tar.fileobj.read(1 << 20):
                pass  # to the checksum of compressed data, which is behind the last member
    except Exception as error:  # tarfile and what decompresses have many words for damage
        if isinstance(error, OSError) and error.errno is not None:  # the system's: a full disk
            raise
        raise ValueError(
            f"--archive: `{archive}` cannot be read to its end: it is no tar archive, or damaged, "
            "or its download was cut short. Remove it and get it anew."
        ) from error
    problem = f"lacks {', '.join(sorted(missing))}" if missing else ""
    if size > _MOST:
        problem = f"holds {size:,} bytes of text, of at most {_MOST:,}"
    if problem:
        raise ValueError(f"--archive: `{archive}` {problem}: it is not the archive it should be.")
