"""What a training run left behind: its log, its TID and its score."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

from rbn_fairseq.tasks.records import read_records

__all__ = ["LOG", "SCORE", "LayerTID", "Run", "TIDPoint", "Validation", "read_log", "read_run"]

LOG, SCORE = "train.log", "score.json"


@dataclass(frozen=True)
class Validation:
    """One validation; losses in bits per target token, ``loss`` label-smoothed."""

    epoch: int
    update: int
    loss: float
    nll_loss: float


@dataclass(frozen=True)
class LayerTID:
    """TID of one batch norm, as fractions (paper, Definition 1)."""

    layer: str
    mean_tid: float
    var_tid: float


@dataclass(frozen=True)
class TIDPoint:
    """TID of all batch norms at one epoch, in the model's order; epoch 0 = before training."""

    epoch: int
    update: int
    layers: tuple[LayerTID, ...]

    @property
    def last(self) -> LayerTID:
        """The last layer."""
        return self.layers[-1]

    @property
    def average(self) -> LayerTID:
        """The average over layers."""
        number = len(self.layers)
        mean = sum(layer.mean_tid for layer in self.layers) / number
        var = sum(layer.var_tid for layer in self.layers) / number
        return LayerTID(f"average of {number} layers", mean, var)


@dataclass(frozen=True)
class Run:
    """A run by the name it has in tables and figures.

    ``seconds`` is the time that the training took by fairseq's own count, with validation and TID,
    summed over resumptions, in each up to the end of its last epoch; ``None`` before the first.
    ``scores`` is what ``rbn score`` wrote, by kind of BLEU.
    """

    name: str
    validations: tuple[Validation, ...]
    tid: tuple[TIDPoint, ...]
    seconds: Optional[float]
    scores: dict[str, dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Return plain containers for JSON."""
        return {
            "valid": [asdict(validation) for validation in self.validations],
            "tid": [asdict(point) for point in self.tid],
            "seconds": self.seconds,
            "scores": self.scores,
        }


def _read_simple(text: str) -> dict[str, str]:
    """Read ``valid | epoch 001 | loss 5.9 | …`` of --log-format simple into JSON's keys."""
    kind, _, rest = text.partition(" | ")
    pairs = (part.strip().split(" ") for part in rest.split(" | "))
    values = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    epoch = values.pop("epoch", "")
    return {"epoch": epoch, **{f"{kind}_{name}": value for name, value in values.items()}}


def read_log(path: Path) -> Iterator[dict[str, str]]:
    """Yield the end-of-epoch lines of fairseq-train's log, ``valid_…`` and ``train_…``.

    Where a process begins, a line with the key ``start`` comes first. Reads --log-format json and
    simple (which is also what --no-progress-bar gives).
    """
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            simple = re.search(r"(?:\| |^)((?:valid|train) \| epoch .*)", line)
            at = line.find('{"epoch": ')
            if simple:
                yield _read_simple(simple[1])
            elif "{'_name'" in line:
                yield {"start": ""}
            elif at >= 0 and '"update": ' not in line:
                try:
                    yield json.loads(line[at:])
                except json.JSONDecodeError:  # a killed run's last line
                    continue


def _group_tid(records: list[dict[str, Any]]) -> tuple[TIDPoint, ...]:
    points: dict[tuple[int, int], list[LayerTID]] = {}
    for record in records:
        layer = LayerTID(record["layer"], record["mean_tid"], record["var_tid"])
        points.setdefault((record["epoch"], record["update"]), []).append(layer)
    return tuple(TIDPoint(*key, tuple(layers)) for key, layers in points.items())


def read_run(name: str, directory: Path) -> Run:
    """Read ``train.log``, ``tid.jsonl`` and ``score.json`` of a save directory, finished or not.

    A run that was resumed has some epochs twice in its log; the later ones count.

    Raises:
        ValueError: if the directory has no validation in a ``train.log``.
    """
    validations: dict[int, Validation] = {}
    walls = [0.0]  # of each process, up to the end of its last epoch
    for values in read_log(directory / LOG):
        if "start" in values:
            walls.append(0.0)
        elif "valid_loss" in values:
            update = int(values["valid_num_updates"])
            loss = values["valid_loss"]
            losses = float(loss), float(values.get("valid_nll_loss", loss))
            validations = {u: v for u, v in validations.items() if u < update}
            validations[update] = Validation(int(values["epoch"]), update, *losses)
        elif "train_wall" in values:
            walls[-1] = float(values["train_wall"])
    if not validations:
        raise ValueError(
            f"`{directory / LOG}` has no validation yet. A run's report needs the log of its "
            "training: rbn train … --save-dir DIR --log-format json --log-file DIR/train.log"
        )
    score = directory / SCORE
    scores = json.loads(score.read_text(encoding="utf-8")) if score.exists() else {}
    tid = _group_tid(read_records(directory / "tid.jsonl"))
    return Run(name, tuple(validations.values()), tid, sum(walls) or None, scores)
