"""The files of JSON lines beside a run's checkpoints: TID, conditioning, cost, multipliers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Optional, TypeVar, get_args, get_origin, get_type_hints

from rbn_fairseq.report.parsing import parse_json

__all__ = [
    "Conditioning",
    "Cost",
    "LayerTID",
    "Multipliers",
    "TIDPoint",
    "latest",
    "of_training",
    "read_lines",
    "tid_points",
]

_Record = TypeVar("_Record", "TIDPoint", "Cost")
_hints = cache(get_type_hints)


@dataclass(frozen=True)
class LayerTID:
    """One batch norm at one measurement; ``None`` where a quantity was not measured.

    Attributes:
        layer: name of the module.
        mean_tid, var_tid: TID, fractions (paper, Definition 1).
        mean_tid_error, var_tid_error: their standard errors over the sampled batches.
        mean_conditional_tid, var_conditional_tid: TID against batches of like length, fractions.
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
    mean_conditional_tid: Optional[float] = None
    var_conditional_tid: Optional[float] = None
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

    ``epoch`` is ``None`` where the checkpoint's name does not tell it. ``batches`` of
    ``total_batches`` were used, made by ``batching``; ``population`` names the estimate that they
    are compared with.
    """

    epoch: Optional[int]
    update: int
    layers: tuple[LayerTID, ...] = ()
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
class Multipliers:
    """What ``--rbn-target-tid`` has done to one batch norm by the end of an epoch.

    ``mean_gap`` and ``std_gap`` are the smoothed gaps that are held, fractions; ``None`` where
    none was seen yet.
    """

    epoch: int
    update: int
    layer: str
    mean_multiplier: float
    std_multiplier: float
    mean_gap: Optional[float] = None
    std_gap: Optional[float] = None


@dataclass(frozen=True)
class Cost:
    """Validation nll with one way of normalising, in bits per target token.

    ``cost`` is what it has more than the batches' own statistics, ``cost_random`` more than those
    of random batches.
    """

    statistics: str
    nll: float
    cost: float
    update: int
    cost_random: Optional[float] = None


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value of JSON is of an annotation's type; NaN and infinity are numbers."""
    if type(None) in get_args(kind):
        return value is None or _fits(value, get_args(kind)[0])
    if isinstance(value, bool):  # to Python an int, too
        return kind is bool
    return isinstance(value, (int, float) if kind is float else get_origin(kind) or kind)


def _record(kind: type, values: Mapping[str, Any]) -> Any:
    """Make a record from a line; keys that it does not know are left out.

    Raises:
        TypeError: if a value is not of its field's type, or one is missing.
    """
    own = {name: it for name, it in _hints(kind).items() if name in values}
    wrong = [name for name, it in own.items() if not _fits(values[name], it)]
    if wrong:
        raise TypeError(f"`{'`, `'.join(wrong)}` is of another type")
    return kind(**{name: values[name] for name in own})


def read_lines(path: Path, problems: list[str], *kinds: type) -> list[tuple[Any, ...]]:
    """Read JSON lines, each as a record of every kind.

    Lines that are not whole, or lack what a record must have, or have something of another type,
    are counted in ``problems``; an absent file has none.
    """
    if not path.is_file():
        return []
    records, bad = [], []
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            values = dict(parse_json(line))
            records.append(tuple(_record(kind, values) for kind in kinds))
        except (ValueError, TypeError):
            bad.append(number)
    if bad:
        which = f"line {bad[0]}" if len(bad) == 1 else f"{len(bad)} lines, the first is {bad[0]}"
        problems.append(
            f"`{path.name}`: left out {which}: half-written, or without what every line must have, "
            "or with a value of another type. Measure again to have them."
        )
    return records


def latest(records: Sequence[_Record]) -> list[_Record]:
    """Return the records of the last update."""
    last = max((it.update for it in records), default=0)
    return [it for it in records if it.update == last]


def _left_out(number: int, what: str, why: str) -> str:
    return f"left out {number} {what}{'' if number == 1 else 's'} {why}"


def tid_points(
    records: Sequence[tuple[TIDPoint, LayerTID]], problems: list[str], name: str
) -> tuple[TIDPoint, ...]:
    """Group lines into measurements by update, ascending; of a layer's two lines the later counts.

    A measurement that lacks layers which others have is left out: its last layer may not be the
    model's.
    """
    points: dict[tuple[Any, ...], dict[str, LayerTID]] = {}
    heads: dict[tuple[Any, ...], TIDPoint] = {}
    for head, layer in records:
        key = (head.epoch, head.update, head.population, head.batching, head.dropout)
        points.setdefault(key, {})[layer.layer] = layer
        heads[key] = head
    number = len({layer.layer for _, layer in records})
    found = [
        replace(heads[key], layers=tuple(layers.values()))
        for key, layers in points.items()
        if len(layers) == number
    ]
    lacking = len(points) - len(found)
    if lacking:
        why = "without layers that others have. Measure again to have all."
        problems.append(f"`{name}`: {_left_out(lacking, 'measurement', why)}")
    return tuple(sorted(found, key=lambda point: point.update))


def of_training(points: Sequence[TIDPoint], problems: list[str], name: str) -> tuple[TIDPoint, ...]:
    """Keep what shows the course of a training: batches as trained, at known epochs, all alike.

    Of several estimates of the population, and of dropout on and off, that of most measurements.
    """
    trained = [point for point in points if point.batching == "as-trained"]
    placed = [point for point in trained if point.epoch is not None]
    counts = Counter((point.population, point.dropout) for point in placed)
    usual = max(counts, key=lambda how: counts[how], default=None)
    kept = tuple(point for point in placed if (point.population, point.dropout) == usual)
    for number, why in (
        (len(points) - len(trained), "with batches made in other ways than the training's."),
        (len(trained) - len(placed), "of checkpoints whose epoch is not known."),
        (len(placed) - len(kept), "with another population or dropout than most have."),
    ):
        if number:
            problems.append(f"`{name}`: {_left_out(number, 'measurement', why)}")
    return kept
