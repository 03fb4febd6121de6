"""What a benchmark found: one row a norm and case, from rounds of interleaved times."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Optional

import numpy as np

__all__ = ["FLOOR", "Row", "quartiles", "summarise"]

FLOOR = "floor"  # the name, among those of a round, of what the others are measured against


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
        collectives: calls of other processes per norm, forward and backward.
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
    collectives: Optional[tuple[int, int]] = None

    @property
    def conditions(self) -> str:
        """Device, threads and dtype in words."""
        return f"{self.device}, {self.threads} thread{'s' * (self.threads > 1)}, {self.dtype}"

    @property
    def us_per_token(self) -> Optional[float]:
        """Microseconds per real token."""
        return 1000 * self.ms / self.tokens if self.ms is not None and self.tokens else None

    def record(self) -> dict[str, Any]:
        """Return the row for JSON, without those of the last fields that say nothing."""
        optional = ("floor", "share", "channels", "bytes", "tokens", "collectives")
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
    **same: Any,
) -> list[Row]:
    """Summarise rounds, name by name, against the first one and against the floor.

    Ratios are taken round by round: a slow round is slow for both.

    Args:
        rounds: milliseconds by name.
        bottom: the floor's name in the rounds; if it is not there, there is no floor.
        tokens: real tokens of an update by name, where the rounds' times are those of a token.
        same: fields that all rows share.
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
                **same,
            )
        )
    return rows
