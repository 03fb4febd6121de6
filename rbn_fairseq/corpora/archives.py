"""Chosen files out of a tar archive that is not trusted."""

import gzip
import lzma
import shutil
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath

__all__ = ["extract"]

_DAMAGED = (tarfile.ReadError, EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)


def _check(member: tarfile.TarInfo, archive: Path) -> None:
    # Not by tarfile's own filters: the first releases of Python 3.11 lack them.
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        reason = "it leads out of the directory"
    elif not (member.isreg() or member.isdir()):
        reason = "it is a link or a device"
    else:
        return
    raise ValueError(
        f"--archive: `{archive}` was refused, its member {member.name!r} is not safe to unpack "
        f"({reason}). It is not the archive it should be; remove it and get it anew."
    )


def extract(archive: Path, wanted: Collection[str], directory: Path) -> None:
    """Write the members called ``wanted``, in whatever folder of the archive, to ``directory``.

    Raises:
        ValueError: if the archive cannot be read to its end, any member would leave the directory,
            or one that is wanted is missing.
    """
    if not archive.is_file():
        raise ValueError(f"--archive: there is no file `{archive}`.")
    missing = set(wanted)
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                _check(member, archive)
                name = PurePosixPath(member.name).name
                content = tar.extractfile(member) if member.isreg() and name in wanted else None
                if content is not None:
                    with (directory / name).open("wb") as file:
                        shutil.copyfileobj(content, file)
                    missing.discard(name)
    except _DAMAGED as error:
        raise ValueError(
            f"--archive: `{archive}` cannot be read to its end: it is no tar archive, or damaged, "
            "or its download was cut short. Remove it and get it anew."
        ) from error
    if missing:
        raise ValueError(
            f"--archive: `{archive}` lacks {', '.join(sorted(missing))}: it is not the archive it "
            "should be."
        )
