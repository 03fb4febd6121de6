"""Rounds of interleaved times, and the rows of a table that they become."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Optional

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

__all__ = ["FLOOR", "Row", "milliseconds", "quartiles", "summarise", "take_turns"]

FLOOR = "floor"  # name of the lower bound among the times of a round


def milliseconds(action: Callable[[], Any], device: str) -> float:
    """Return how long an action takes; on a GPU, between events around the work it queues."""
    if device == "cpu":
        start = time.perf_counter()
        action()
        return 1000 * (time.perf_counter() - start)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    action()
    last.record()
    last.synchronize()
    return first.elapsed_time(last)


def take_turns(
    actions: Mapping[str, Callable[[], float]], rounds: int, label: str
) -> list[dict[str, float]]:
    """Time all actions in each round.

    Each round has an order of its own, so that none always follows the same other; the orders
    are drawn alike in every process. A first round, not counted, warms up.

    Args:
        actions: what returns the milliseconds it took, by name.
        rounds: how many are counted.
        label: of the progress bar on stderr; none where it is empty.

    Returns:
        Milliseconds by name, round by round.
    """
    names = list(actions)
    turns = range(rounds + 1)
    draw = random.Random(1)
    timings = []
    console = Console(stderr=True, quiet=not label)
    for _ in track(turns, label, console=console, transient=True):
        times = {name: actions[name]() for name in draw.sample(names, len(names))}
        timings.append({name: times[name] for name in names})
    return timings[1:]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement.

    Attributes:
        bench: the verb, or what else it measured (``memory``, ``penalty``).
        norm: a norm's name, or a setting's.
        device: ``cpu`` or ``cuda``.
        threads: of torch, on the CPU.
        dtype: of the activations.
        case: what it was measured on.
        ms: milliseconds, the median over rounds; None of what is no time.
        ratio_to_layer: to the first of the norms or settings (of norms alone that is layer norm),
            in the same round; the median over rounds. Where there are ``tokens``, of the times
            per token.
        floor_ratio: likewise, to the floor's time.
        n: rounds.
        spread: first and third quartile, over rounds, of ``ratio_to_layer``; of ``share`` where
            that is given.
        floor: what the floor is, in words.
        share: part of a training update that this takes.
        channels: C, of benchmarks of norms alone.
        bytes: peak of live memory.
        tokens: real ones of a training update, source and target, the mean over its batches;
            ``ms`` is the time of so many.
    """

    bench: str
    norm: str
    device: str
    threads: int
    dtype: str
    case: str
    ms: Optional[float] = None
    ratio_to_layer: Optional[float] = None
    floor_ratio: Optional[float] = None
    n: int
    spread: Optional[tuple[float, float]] = None
    floor: Optional[str] = None
    share: Optional[float] = None
    channels: Optional[int] = None
    bytes: Optional[int] = None
    tokens: Optional[float] = None

    @property
    def conditions(self) -> str:
        """Device, threads and dtype in words."""
        return f"{self.device}, {self.threads} thread{'s' * (self.threads > 1)}, {self.dtype}"

    @property
    def us_per_token(self) -> Optional[float]:
        """Microseconds per real token."""
        return 1000 * self.ms / self.tokens if self.ms is not None and self.tokens else None

    def record(self) -> dict[str, Any]:
        """Return the row for JSON, without those of the last fields that are empty."""
        optional = ("floor", "share", "channels", "bytes", "tokens")
        return {
            name: value
            for name, value in asdict(self).items()
            if value is not None or name not in optional
        }


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return first quartile, median, third quartile."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return low, middle, high


def summarise(
    rounds: Sequence[dict[str, float]],
    bottom: str = FLOOR,
    tokens: Optional[Mapping[str, float]] = None,
    **fields: Any,
) -> list[Row]:
    """Summarise rounds, name by name, against the first one and against the floor.

    Ratios are timings round by round: a slow round is slow for both.

    Args:
        rounds: milliseconds by name.
        bottom: the floor's name in the rounds; if it is not there, there is no floor.
        tokens: real tokens of an update by name, where the rounds' times are those of a token.
        fields: shared by all rows.
    """
    reference, *_ = rounds[0]
    rows = []
    for name in rounds[0]:
        low, ratio, high = quartiles([times[name] / times[reference] for times in rounds])
        number = tokens[name] if tokens else None
        against = [times[name] / times[bottom] for times in rounds if bottom in times]
        rows.append(
            Row(
                norm=name,
                ms=float(np.median([times[name] for times in rounds])) * (number or 1),
                tokens=number,
                ratio_to_layer=ratio,
                floor_ratio=float(np.median(against)) if against else None,
                n=len(rounds),
                spread=(low, high),
                **fields,
            )
        )
    return rows
