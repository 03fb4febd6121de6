"""Measurements of every batch norm at one moment of a training: the lines of ``tid.jsonl``."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from torch import Tensor

from rbn_fairseq.diagnostics import (
    TID,
    LayerMoments,
    collect_moments,
    conditional_tid,
    deviation,
    distance,
    near_eps,
    population,
    spread,
    tid,
    tid_error,
)
from rbn_fairseq.measuring.batches import (
    AS_TRAINED,
    bucketed_batches,
    collate,
    compose,
    draw_batches,
)
from rbn_fairseq.measuring.session import Session

__all__ = [
    "How",
    "measure_checkpoint",
    "norm_records",
    "read_tid",
]


@dataclass(frozen=True)
class How:
    """Settings of a measurement.

    Attributes:
        batches: how many there are to measure on, of which a sample may have been used.
        population: the estimate, one of ``POPULATIONS``.
        batching: how sentences were put into batches.
        dropout: whether it was on.
        length_groups: number of groups of batches of like length, for conditional TID.
    """

    batches: int
    population: str = "mean-of-batches"
    batching: str = "as-trained"
    dropout: bool = False
    length_groups: int = 16


def measure_checkpoint(
    session: Session,
    batching: str,
    number: int,
    seed: int,
    dropout: bool,
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
) -> tuple[dict[str, LayerMoments], int]:
    """Return batch statistics by layer name over training batches of a checkpoint.

    Args:
        session: the checkpoint.
        batching: how sentences are put into batches, see
            :func:`~rbn_fairseq.measuring.batches.compose`.
        number: of batches; 0 = all.
        seed: of their draw, and of the composition.
        dropout: whether it is on.
        progress: wraps the batches, to show how far it is.

    Returns:
        The statistics, and how many batches there are.
    """
    batches, run_norms = session.iterator.frozen_batches, session.adapter.run_norms
    if batching != AS_TRAINED:
        lengths = session.adapter.source_lengths(session.dataset)
        batches = compose(bucketed_batches(session.iterator), batching, seed, lengths)
    drawn = draw_batches(batches, number, seed)
    samples = collate(session.dataset, progress(drawn), session.model)
    return collect_moments(session.model, samples, run_norms, dropout), len(batches)


def norm_records(
    layers: Mapping[str, LayerMoments],
    epoch: Optional[int],
    update: int,
    how: How,
    before: Optional[Mapping[str, tuple[Tensor, Tensor]]] = None,
) -> list[dict[str, Any]]:
    """Return a record for every layer; what is relative is a fraction, not a percentage.

    Args:
        layers: batch statistics, of :func:`~rbn_fairseq.diagnostics.collect_moments`.
        epoch: epochs so far; ``None`` where nobody knows.
        update: updates so far.
        how: how they were measured.
        before: each layer's running statistics at the measurement before this one.
    """
    records = []
    for name, moments in layers.items():
        given_length = conditional_tid(moments, how.length_groups, how.population)
        mean, var = population(moments, how.population)
        drift = lag = None
        if moments.running is not None:
            lag = distance(moments.running, (mean, var), var)
            if before and name in before:
                drift = distance(moments.running, before[name], var)
        pairs: dict[str, Optional[tuple[float, float]]] = {
            "tid": tid(moments, how.population),
            "tid_error": tid_error(moments, how.batches, how.population),
            "conditional_tid": given_length,
            "deviation": deviation(moments, how.population),
            "drift": drift,
            "lag": lag,
        }
        record: dict[str, Any] = {"epoch": epoch, "update": update, "layer": name}
        for kind, pair in pairs.items():
            record[f"mean_{kind}"], record[f"var_{kind}"] = pair or (None, None)
        record |= {
            "near_eps": near_eps(var, moments.eps),
            "spread": spread(var),
            "batches": len(moments.count),
            "total_batches": how.batches,
            "population": how.population,
            "batching": how.batching,
            "dropout": how.dropout,
            "length_groups": how.length_groups if given_length else None,
        }
        records.append(record)
    return records


def read_tid(records: Iterable[Mapping[str, Any]], name: str = "tid") -> dict[str, TID]:
    """Return TID by layer from records of one measurement, where it was measured.

    Args:
        records: of :func:`norm_records`.
        name: ``tid``, or ``conditional_tid`` for that given the length.
    """
    return {
        record["layer"]: TID(record[f"mean_{name}"], record[f"var_{name}"])
        for record in records
        if record[f"mean_{name}"] is not None
    }
