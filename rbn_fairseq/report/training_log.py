"""What fairseq-train's log tells of a training, over all processes that worked on it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from rbn_fairseq.report.log import read_log

__all__ = ["TrainEpoch", "TrainingLog", "Validation", "read_training_log"]


@dataclass(frozen=True)
class Validation:
    """One validation; losses in bits per target token, ``loss`` label-smoothed.

    ``bleu`` is that of --eval-bleu, ``None`` without it.
    """

    epoch: int
    update: int
    loss: float
    nll_loss: float
    bleu: Optional[float] = None


@dataclass(frozen=True)
class TrainEpoch:
    """fairseq's averages over an epoch, by names such as ``nll_loss``, ``gnorm``, ``rbn_mean``."""

    epoch: int
    update: int
    values: Mapping[str, float]


@dataclass
class TrainingLog:
    """All of it; of an epoch that is there twice the later counts."""

    validations: dict[int, Validation] = field(default_factory=dict)
    train: dict[int, TrainEpoch] = field(default_factory=dict)
    walls: list[float] = field(default_factory=lambda: [0.0])  # of each process
    ended: bool = False


def _float(text: Any) -> Optional[float]:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def _add_validation(log: TrainingLog, values: Mapping[str, str]) -> None:
    update, loss = int(values["valid_num_updates"]), float(values["valid_loss"])
    nll, bleu = _float(values.get("valid_nll_loss")), _float(values.get("valid_bleu"))
    log.validations = {u: v for u, v in log.validations.items() if u < update}
    log.validations[update] = Validation(
        int(values["epoch"]), update, loss, loss if nll is None else nll, bleu
    )


def _add_epoch(log: TrainingLog, values: Mapping[str, str]) -> None:
    log.ended = False
    wall = _float(values.get("train_wall")) or log.walls[-1]
    if wall < log.walls[-1]:  # another process's
        log.walls.append(0.0)
    log.walls[-1] = wall
    epoch = int(values["epoch"])
    named = ((name.removeprefix("train_"), _float(value)) for name, value in values.items())
    numbers = {name: value for name, value in named if value is not None and name != "epoch"}
    log.train = {e: it for e, it in log.train.items() if e < epoch}
    log.train[epoch] = TrainEpoch(epoch, int(numbers.get("num_updates", 0)), numbers)


def read_training_log(path: Path, problems: list[str]) -> TrainingLog:
    """Read a log; what cannot be read is told in ``problems``."""
    log, unread = TrainingLog(), 0
    for values in read_log(path):
        try:
            if "end" in values:
                log.ended = True
            elif "valid_loss" in values:
                _add_validation(log, values)
            elif any(name.startswith("train_") for name in values):
                _add_epoch(log, values)
        except (ValueError, KeyError, TypeError, OverflowError):
            unread += 1
    if unread:
        problems.append(f"`{path.name}`: left out {unread} lines that cannot be read.")
    return log
