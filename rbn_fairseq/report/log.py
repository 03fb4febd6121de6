"""fairseq-train's log, line by line."""

import re
from collections.abc import Iterator
from pathlib import Path

from rbn_fairseq.report.parsing import parse_json

__all__ = ["read_log"]


def _read_simple(text: str) -> dict[str, str]:
    """Read ``valid | epoch 001 | loss 5.9 | …`` of --log-format simple into JSON's keys."""
    kind, _, rest = text.partition(" | ")
    pairs = (part.strip().split(" ") for part in rest.split(" | "))
    values = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    epoch = values.pop("epoch", "")
    return {"epoch": epoch, **{f"{kind}_{name}": value for name, value in values.items()}}


def read_log(path: Path) -> Iterator[dict[str, str]]:
    """Yield the end-of-epoch lines of fairseq-train's log, ``valid_…`` and ``train_…``.

    Where a process ends as it should, there is an entry with the key ``end``. Reads --log-format
    json and simple (which is also what --no-progress-bar gives).
    """
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            simple = re.search(r"(?:\| |^)((?:valid|train) \| epoch .*)", line)
            at = line.find('{"epoch": ')
            if simple:
                yield _read_simple(simple[1])
            elif "done training in " in line:
                yield {"end": ""}
            elif at >= 0 and '"update": ' not in line:
                try:
                    yield parse_json(line[at:])
                except ValueError:  # a killed run's last line
                    continue
