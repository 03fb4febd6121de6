"""Measurements of a training as JSON lines in its save directory."""

import json
import logging
from pathlib import Path
from typing import Any

from rbn_fairseq.files import write_whole

__all__ = ["read_records", "write_records"]

logger = logging.getLogger(__name__)


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines with an ``update``; others, such as half a line of a killed run, go."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
            int(record["update"])
            records.append(record)
        except (ValueError, TypeError, KeyError, OverflowError):
            logger.warning("%s: left out a line that is not whole: %.60s", path, line)
    return records


def write_records(path: Path, records: list[dict[str, Any]]) -> None:
    """Add the records of one measurement to a file of JSON lines, through a temporary file.

    Earlier records of the same update or of later ones go: a resumed run measures again from
    where it resumed.
    """
    kept = [old for old in read_records(path) if old["update"] < records[0]["update"]]
    write_whole(path, "".join(json.dumps(record) + "\n" for record in kept + records))
