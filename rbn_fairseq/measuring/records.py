"""Measurements of a training, as JSON lines in its save directory."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from rbn_fairseq.diagnostics import (
    TID,
    LayerMoments,
    collect_moments,
    conditional_tid,
    deviation,
    distances,
    population,
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
from rbn_fairseq.writing import write_whole

__all__ = ["measure_checkpoint", "norm_records", "read_records", "read_tid", "write_records"]

logger = logging.getLogger(__name__)

_LENGTH_GROUPS = 16  # of batches of like length, for conditional TID


def measure_checkpoint(
    session: Session,
    batching: str,
    number: int,
    seed: int,
    progress: Callable[[Sequence[Any]], Iterable[Any]],
) -> tuple[dict[str, LayerMoments], int]:
    """Return batch statistics by layer name over training batches of a checkpoint, without dropout.

    ``number`` of them (0 = all), drawn and composed by ``seed``
    (:func:`~rbn_fairseq.measuring.batches.compose`).

    Returns:
        The statistics, and how many batches there are.
    """
    batches, run_norms = session.iterator.frozen_batches, session.task.adapter.run_norms
    if batching != AS_TRAINED:
        lengths = session.task.adapter.source_lengths(session.dataset)
        joint = batching.startswith("joint")  # of those that several processes train on
        whole = batches if joint else bucketed_batches(session.iterator)
        neighbours = session.cfg.dataset.grouped_shuffling
        batches = compose(whole, batching, seed, lengths, neighbours)
    drawn = draw_batches(batches, number, seed)
    samples = collate(session.dataset, progress(drawn), session.model)
    return collect_moments(session.model, samples, run_norms), len(batches)


def norm_records(
    layers: Mapping[str, LayerMoments],
    epoch: Optional[int],
    update: int,
    total: int,
    estimate: str = "mean-of-batches",
    batching: str = AS_TRAINED,
    dropout: bool = False,
) -> list[dict[str, Any]]:
    """Return a record for every layer; what is relative is a fraction, not a percentage.

    Warns where there is one batch alone. ``epoch`` is ``None`` where nobody knows it, ``total`` is
    the number of batches, of which a sample may have been measured, and ``estimate`` is one of
    ``POPULATIONS``.
    """
    if estimate != "running" and any(len(part.count) == 1 for part in layers.values()):
        logger.warning("TID of a single batch is 0, as it is its own population: take several.")
    records = []
    for name, moments in layers.items():
        given_length = conditional_tid(moments, _LENGTH_GROUPS, estimate)
        lag = None
        if moments.running is not None:
            whole = population(moments, estimate)
            lag = TID(*(part.item() for part in distances(*moments.running, whole)))
        pairs: dict[str, Optional[tuple[float, float]]] = {
            "tid": tid(moments, estimate),
            "tid_error": tid_error(moments, total, estimate),
            "conditional_tid": given_length,
            "deviation": deviation(moments, estimate),
            "lag": lag,
        }
        record: dict[str, Any] = {"epoch": epoch, "update": update, "layer": name}
        for kind, pair in pairs.items():
            record[f"mean_{kind}"], record[f"var_{kind}"] = pair or (None, None)
        record |= {
            "batches": len(moments.count),
            "total_batches": total,
            "population": estimate,
            "batching": batching,
            "dropout": dropout,
            "length_groups": _LENGTH_GROUPS if given_length else None,
        }
        records.append(record)
    return records


def read_tid(records: Iterable[Mapping[str, Any]], name: str = "tid") -> dict[str, TID]:
    """Return TID by layer from :func:`norm_records`, where it was measured.

    ``conditional_tid`` is that given the length.
    """
    return {
        record["layer"]: TID(record[f"mean_{name}"], record[f"var_{name}"])
        for record in records
        if record[f"mean_{name}"] is not None
    }


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines; none where there is no file."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def write_records(path: Path, records: list[dict[str, Any]], one_an_epoch: bool = False) -> None:
    """Add the records of one measurement to a file of JSON lines, through a temporary file.

    Records of the same update or of later ones are replaced: a resumed run measures them again.
    With ``one_an_epoch`` those of the same epoch or of later ones are replaced as well.
    """
    new = records[0]
    earlier = [old for old in read_records(path) if old["update"] < new["update"]]
    if one_an_epoch:
        earlier = [  # a checkpoint that was measured by its name has no epoch
            old for old in earlier if old["epoch"] is None or old["epoch"] < new["epoch"]
        ]
    write_whole(path, "".join(json.dumps(record) + "\n" for record in earlier + records))
