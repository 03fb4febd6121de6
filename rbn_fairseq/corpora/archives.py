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


def _check(member: tarfile.TarInfo, archive: Path, directory: Path) -> None:
    try:
        if PurePosixPath(member.name).is_absolute():
            raise ValueError("its name is absolute")
        tarfile.data_filter(member, str(directory.resolve()))
    except (tarfile.FilterError, ValueError) as error:
        raise ValueError(
            f"--archive: `{archive}` was refused, its member {member.name!r} is not safe to "
            f"unpack ({error}). It is not the archive it should be; get it anew."
        ) from error


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
                _check(member, archive, directory)
                name = PurePosixPath(member.name).name
                content = tar.extractfile(member) if member.isreg() and name in wanted else None
                if content is not None:
                    with (directory / name).open("wb") as file:
                        shutil.copyfileobj(content, file)
                    missing.discard(name)
    except _DAMAGED as error:
        raise ValueError(
            f"--archive: `{archive}` cannot be read to its end: it is no tar archive, or damaged, "
            "or its download was cut short. Get it anew."
        ) from error
    if missing:
        raise ValueError(
            f"--archive: `{archive}` lacks {', '.join(sorted(missing))}: it is not the archive it "
            "should be."
        )
