"""Measurements of a training: JSON lines in its save directory, and TensorBoard."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from rbn_fairseq.diagnostics import LayerMoments
from rbn_fairseq.writing import write_whole

__all__ = ["read_records", "write_layers", "write_records"]

logger = logging.getLogger(__name__)

_SCALARS = (
    "mean_tid", "var_tid", "mean_conditional_tid", "var_conditional_tid",
    "mean_deviation", "var_deviation", "mean_drift", "var_drift",
    "mean_lag", "var_lag", "near_eps", "spread",
)  # fmt: skip


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines that have an ``update``; others, such as half a line, are left out."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
            int(record["update"])
            records.append(record)
        except (ValueError, TypeError, KeyError, OverflowError):
            logger.warning("%s: left out an incomplete line: %.60s", path, line)
    return records


def write_records(path: Path, records: list[dict[str, Any]]) -> None:
    """Add the records of one measurement to a file of JSON lines, through a temporary file.

    Records of the same update or of later ones are replaced: a resumed run measures them again.
    """
    earlier = [old for old in read_records(path) if old["update"] < records[0]["update"]]
    write_whole(path, "".join(json.dumps(record) + "\n" for record in earlier + records))


def _add_scalars(writer: Any, record: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if record[name] is not None:
            writer.add_scalar(f"{name}/{record['layer']}", record[name], record["update"])


def write_layers(
    directory: Path,
    records: Sequence[Mapping[str, Any]],
    layers: Mapping[str, LayerMoments],
) -> None:
    """Add one measurement to the run ``norms`` beside fairseq's own runs in ``directory``.

    Scalars are what the records have; histograms are, over channels, the means of the batch means
    and of the batch standard deviations, and, over batches, each batch's distance to the mean
    of them (whose average is Mean TID).
    """
    suffix = f".{records[0]['update']}"  # files of the same second would overwrite each other
    with SummaryWriter(str(directory / "norms"), filename_suffix=suffix) as writer:
        for record in records:
            layer, update = record["layer"], record["update"]
            _add_scalars(writer, record, _SCALARS)
            moments = layers[layer]
            mean, std = moments.mean.mean(0), moments.var.mean(0).sqrt()
            distances = (moments.mean - mean).norm(dim=1) / std.norm().clamp(min=1e-12)
            histograms = {"channel_mean": mean, "channel_std": std, "batch_mean_tid": distances}
            for name, values in histograms.items():
                finite = values[values.isfinite()]
                if len(finite) > 0:  # the writer refuses what is not
                    writer.add_histogram(f"{name}/{layer}", finite.numpy(), update)
