"""JSON that anybody may have written."""

import json
from typing import Any

__all__ = ["parse_json"]

_DIGITS = 18  # that an integer of 64 bits has at least


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= _DIGITS else float(text)


def parse_json(text: str) -> Any:
    """Read JSON; integers of more than 18 characters become floats, the largest infinite.

    Raises:
        ValueError: if it is none, or nested more deeply than Python reads.
    """
    try:
        return json.loads(text, parse_int=_integer)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
