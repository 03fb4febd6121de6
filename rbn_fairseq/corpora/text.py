"""Text of one sentence a line: reading, writing, taking it out of archives.

A line ends at a line feed and nowhere else. Of carriage returns, at which fairseq ends lines, those
at a line's end are left out, and any other is read as a space.
"""

import gzip
import hashlib
import shutil
import tarfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

__all__ = [
    "SPLITS", "Pair", "check_tokens", "check_text", "extract", "lower_case", "read_lines",
    "sha256", "write_lines", "write_pairs",
]  # fmt: skip

Pair = tuple[str, str]
SPLITS = ("train", "valid", "test")


def read_lines(path: Path) -> Iterator[str]:
    """Read a file of UTF-8, or one compressed by gzip (``.gz``), line by line, without a BOM.

    Raises:
        ValueError: if there is no such file, it is not UTF-8, or compressed data are damaged.
    """
    if not path.is_file():
        raise ValueError(f"There is no file `{path}`.")
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for number, line in enumerate(file, 1):
                try:
                    line = line.rstrip(b"\r\n").replace(b"\r", b" ")
                    yield line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise ValueError(
                        f"Line {number} of `{path}` is not UTF-8. Convert it: iconv -f LATIN1 -t "
                        "UTF-8 FILE."
                    ) from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(
                f"`{path}` cannot be read to its end: it is not compressed by gzip, or damaged."
            ) from error


def check_tokens(path: Path, number: int, tokens: Iterable[str]) -> None:
    """Refuse (``ValueError``) tokens of a file's line that fairseq takes for something else.

    ``<unk>`` may be one: as fairseq reads it, it stands for words that are not told apart.
    """
    if reserved := {"<s>", "<pad>", "</s>"}.intersection(tokens):
        raise ValueError(
            f"Line {number} of `{path}` has the token `{min(reserved)}`, which fairseq uses for "
            "something else: expected is another spelling."
        )


def check_text(path: Path) -> int:
    """Check the tokens of a tokenised text; return its number of lines."""
    number = 0
    for number, line in enumerate(read_lines(path), 1):
        check_tokens(path, number, line.split())
    return number


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a file of UTF-8, one sentence a line."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)


def write_pairs(directory: Path, split: str, langs: Sequence[str], pairs: Sequence[Pair]) -> None:
    """Write the two sides of ``pairs`` as ``SPLIT.LANG``."""
    for side, lang in enumerate(langs):
        write_lines(directory / f"{split}.{lang}", (pair[side] for pair in pairs))


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lower_case(line: str) -> str:
    """Return ``line`` in lower case as Perl has it, which knows no final sigma."""
    return line.replace("Σ", "σ").lower()


def extract(archive: Path, wanted: Collection[str], directory: Path) -> None:
    """Write the files called ``wanted``, in whatever folder of a tar archive, to ``directory``.

    Nothing else of the archive is written; links and devices are not followed.

    Raises:
        ValueError: if the archive cannot be read to its end, or a file that is wanted is missing.
    """
    missing = set(wanted)
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                content = tar.extractfile(member) if member.isreg() and name in missing else None
                if content is not None:
                    missing.remove(name)
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
    if missing:
        raise ValueError(
            f"--archive: `{archive}` lacks {', '.join(sorted(missing))}: it is not the archive it "
            "should be."
        )
