"""Chosen files out of a tar archive that is not trusted."""

import shutil
import tarfile
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Optional, Self

__all__ = ["extract"]

_MOST = 64 << 30  # bytes of all members together: several times what a corpus has
_LONGEST = 1 << 20  # bytes of a long name or other attributes, which tarfile reads in one piece


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
