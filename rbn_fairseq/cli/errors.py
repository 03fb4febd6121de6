"""Refusals of the system as errors of the user."""

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["plain_errors"]


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn the system's refusal of a file, such as a full disk, into a user's error."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{error.strerror or error}: `{error.filename or 'a file'}`.") from error
