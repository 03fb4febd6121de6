"""How the cost of norms grows: with tokens, channels, layers, processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rbn_fairseq.bench.cases import fixed_case
from rbn_fairseq.bench.norms import Conditions, time_norms
from rbn_fairseq.bench.processes import time_processes
from rbn_fairseq.bench.rows import Row

__all__ = ["SWEEPS", "Sweep", "sweep"]

_NORMS_A_LAYER = 2  # of an encoder


@dataclass(frozen=True)
class Sweep:
    """What grows.

    Attributes:
        values: that it takes by default.
        label: of the figure's x axis.
        cost: label of its y axis.
        time: ``(value, tokens, how) -> rows``.
    """

    values: Sequence[int]
    label: str
    time: Callable[[int, int, Conditions], list[Row]]
    cost: str = "milliseconds of a norm, forward and backward"


def _tokens(value: int, tokens: int, how: Conditions) -> list[Row]:
    return time_norms(fixed_case(value, how.channels), how, f"{value} tokens")


def _channels(value: int, tokens: int, how: Conditions) -> list[Row]:
    how = replace(how, channels=value)
    return time_norms(fixed_case(tokens, value), how, f"{value} channels")


def _layers(value: int, tokens: int, how: Conditions) -> list[Row]:
    norms = _NORMS_A_LAYER * value
    case = fixed_case(tokens, how.channels)
    rows = time_norms(case, replace(how, depth=norms), f"{value} layers")
    return [replace(row, ms=norms * row.ms) for row in rows if row.ms is not None]


def _processes(value: int, tokens: int, how: Conditions) -> list[Row]:
    return time_processes(fixed_case(tokens, how.channels), how, value)


SWEEPS = {
    "tokens": Sweep((1024, 4096, 16384, 65536), "tokens of a batch", _tokens),
    "channels": Sweep((128, 256, 512, 1024), "channels C", _channels),
    "layers": Sweep(
        (1, 2, 6, 12), "layers of an encoder", _layers, "milliseconds of all norms of the layers"
    ),
    "processes": Sweep((1, 2), "processes, each with a batch of its own", _processes),
}


def sweep(what: str, values: Sequence[int], tokens: int, how: Conditions) -> dict[int, list[Row]]:
    """Time norms while one thing grows and all others stay.

    Args:
        what: a name of ``SWEEPS``.
        values: that it takes.
        tokens: of a batch, where they do not grow.
        how: channels, depth and the like, where they do not grow.

    Returns:
        Rows by value; a row's case begins with what grows and its value.

    Raises:
        ValueError: if a value does not fit.
    """
    return {
        value: [
            replace(row, bench="scaling", case=f"{what}-{value}/{row.case}")
            for row in SWEEPS[what].time(value, tokens, how)
        ]
        for value in values
    }
