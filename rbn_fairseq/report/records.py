"""The files of JSON lines beside a run's checkpoints: TID, conditioning, discrepancy cost."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Optional, TypeVar

__all__ = ["Conditioning", "Cost", "LayerTID", "TIDPoint", "read_lines", "tid_points"]

_Record = TypeVar("_Record")
_NUMBERS = {"mean_tid", "var_tid", "c_50", "c_80", "c_max", "nll", "cost"}


@dataclass(frozen=True)
class LayerTID:
    """One batch norm at one measurement; ``None`` where a quantity was not measured.

    Attributes:
        layer: name of the module.
        mean_tid, var_tid: TID, fractions (paper, Definition 1).
        mean_tid_error, var_tid_error: their standard errors over the sampled batches.
        mean_deviation, var_deviation: E||mu_B - mu|| / ||mu|| and E||v_B - v|| / ||v||, fractions.
        mean_drift, var_drift: movement of the running mean and standard deviation since the
            measurement before, relative to ||sigma||.
        mean_lag, var_lag: their distance from the measured population, relative to ||sigma||.
        near_eps: share of channels whose population variance is below 10 eps.
        spread: largest standard deviation of a channel / median one.
        independent_mean_tid, independent_var_tid: TID of independent Gaussian tokens.
    """

    layer: str
    mean_tid: float
    var_tid: float
    mean_tid_error: Optional[float] = None
    var_tid_error: Optional[float] = None
    mean_deviation: Optional[float] = None
    var_deviation: Optional[float] = None
    mean_drift: Optional[float] = None
    var_drift: Optional[float] = None
    mean_lag: Optional[float] = None
    var_lag: Optional[float] = None
    near_eps: Optional[float] = None
    spread: Optional[float] = None
    independent_mean_tid: Optional[float] = None
    independent_var_tid: Optional[float] = None


@dataclass(frozen=True)
class TIDPoint:
    """All batch norms at one measurement, in the model's order; epoch 0 = before training.

    ``batches`` of ``total_batches`` were used, made by ``batching``; ``population`` names the
    estimate that they are compared with.
    """

    epoch: int
    update: int
    layers: tuple[LayerTID, ...]
    batches: Optional[int] = None
    total_batches: Optional[int] = None
    population: str = "mean-of-batches"
    batching: str = "as-trained"
    dropout: bool = False

    @property
    def last(self) -> LayerTID:
        """The last layer."""
        return self.layers[-1]

    @property
    def average(self) -> LayerTID:
        """The average over layers of every quantity that all of them have."""
        number = len(self.layers)
        names = [item.name for item in fields(LayerTID) if item.name != "layer"]
        columns = {name: [getattr(layer, name) for layer in self.layers] for name in names}
        means = {
            name: sum(values) / number for name, values in columns.items() if None not in values
        }
        return LayerTID(f"average of {number} layers", **means)


@dataclass(frozen=True)
class Conditioning:
    """Singular values of an encoder layer's input X, tokens x channels (paper, section 4.3).

    C_p = sigma_1 / sigma_ceil(p d); C_max = sigma_1. Infinite where X is singular, NaN where X is
    not finite. ``layer`` counts from 1; ``place`` is ``stream`` or ``normalised``.
    """

    epoch: int
    update: int
    layer: int
    place: str
    c_50: float
    c_80: float
    c_max: float


@dataclass(frozen=True)
class Cost:
    """Validation nll with one way of normalising, in bits per target token.

    ``cost`` is what it has more than the batches' own statistics, ``cost_random`` more than those
    of random batches.
    """

    statistics: str
    nll: float
    cost: float
    cost_random: Optional[float] = None


def read_lines(
    path: Path, make: Callable[..., _Record], problems: list[str]
) -> list[tuple[_Record, Mapping[str, Any]]]:
    """Read JSON lines as records, each with the line that it came from.

    Keys that a record does not know are left out. Lines that are not whole, or lack what a record
    must have, are counted in ``problems``; an absent file has none.
    """
    if not path.is_file():
        return []
    known = {item.name for item in fields(make)}  # type: ignore[arg-type]
    records, bad = [], []
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            own = {name: value for name, value in values.items() if name in known}
            if not all(_is_number(own[name]) for name in own if name in _NUMBERS):
                raise TypeError(line)
            records.append((make(**own), values))
        except (ValueError, TypeError, AttributeError):
            bad.append(number)
    if bad:
        which = f"line {bad[0]}" if len(bad) == 1 else f"{len(bad)} lines, the first is {bad[0]}"
        problems.append(
            f"`{path.name}`: left out {which}: half-written, or without what every line must have. "
            "Measure again to have them."
        )
    return records


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def tid_points(
    records: Sequence[tuple[LayerTID, Mapping[str, Any]]], problems: list[str], name: str
) -> tuple[TIDPoint, ...]:
    """Group lines into measurements, in their order; of a layer's two lines the later counts."""
    # What lines of an older version do not say.
    usual = {"population": "mean-of-batches", "batching": "as-trained", "dropout": False}
    points: dict[tuple[Any, ...], dict[str, LayerTID]] = {}
    heads: dict[tuple[Any, ...], dict[str, Any]] = {}
    unplaced = 0
    for layer, line in records:
        epoch, update = line.get("epoch"), line.get("update")
        if not _is_number(update) or not math.isfinite(update):
            unplaced += 1
            continue
        how = {item: line.get(item, value) for item, value in usual.items()}
        key = (int(epoch) if _is_number(epoch) else 0, int(update), *how.values())
        points.setdefault(key, {})[layer.layer] = layer
        heads[key] = how | {item: line.get(item) for item in ("batches", "total_batches")}
    if unplaced:
        problems.append(f"`{name}`: left out {unplaced} lines that name no update.")
    return tuple(
        TIDPoint(key[0], key[1], tuple(layers.values()), **heads[key])
        for key, layers in points.items()
    )
