"""Measurements of a training: JSON lines in its save directory, and TensorBoard."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from rbn_fairseq.writing import write_whole

__all__ = ["read_records", "write_layers", "write_records"]

_SCALARS = (
    "mean_tid", "var_tid", "mean_conditional_tid", "var_conditional_tid",
    "mean_deviation", "var_deviation", "mean_drift", "var_drift",
    "mean_lag", "var_lag", "near_eps", "spread",
)  # fmt: skip


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines; none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_records(path: Path, records: list[dict[str, Any]]) -> None:
    """Add the records of one measurement to a file of JSON lines, through a temporary file.

    Records of the same update or of later ones are replaced: a resumed run measures them again.
    """
    earlier = [old for old in read_records(path) if old["update"] < records[0]["update"]]
    write_whole(path, "".join(json.dumps(record) + "\n" for record in earlier + records))


def write_layers(directory: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Add the numbers of one measurement to the run ``norms`` beside fairseq's in ``directory``."""
    suffix = f".{records[0]['update']}"  # files of the same second would overwrite each other
    with SummaryWriter(str(directory / "norms"), filename_suffix=suffix) as writer:
        for record in records:
            for name in _SCALARS:
                if record[name] is not None:
                    writer.add_scalar(f"{name}/{record['layer']}", record[name], record["update"])
