"""A disk that fills up while a training writes to it."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rbn_fairseq.checkpoints.mending import newest_whole, remove_unfinished

__all__ = ["full_disk_as_user_error"]

# No space, no quota, a file above the limit.
_FULL = [f"[Errno {number}]" for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]


@contextmanager
def full_disk_as_user_error(directory: Path) -> Iterator[None]:
    """Tell of a full disk in one message, and remove the files that did not fit.

    Args:
        directory: where the training saves.
    """
    try:
        yield
    except Exception as error:
        refusal = _refusal(error)
        if refusal is None:
            raise
        remove_unfinished(directory)
        newest = newest_whole(directory)
        whole = f"The newest whole checkpoint is `{newest}`" if newest else "Nothing was saved yet"
        raise ValueError(
            f"The training could not write to `{directory}`: {refusal}. Its disk or quota is full, "
            f"or a limit on the size of files (ulimit -f) is reached. {whole}. Make room and "
            f"give the same command again: it {'resumes' if newest else 'starts anew'}."
        ) from error


def _refusal(error: BaseException | None) -> str | None:
    """Find the system's refusal among an exception and those it covers.

    It is in their text alone where torch, or a process that it started, made another error of it.
    """
    while error is not None:
        for line in str(error).splitlines():
            for number in _FULL:
                if number in line:
                    return line[line.index(number) :]
        error = error.__cause__ or error.__context__
    return None
