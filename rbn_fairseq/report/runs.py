"""What a training run left behind: its log, its measurements and its score."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Optional

from rbn_fairseq.report.log import read_log
from rbn_fairseq.report.parsing import parse_json
from rbn_fairseq.report.records import (
    Conditioning,
    Cost,
    LayerTID,
    Multipliers,
    TIDPoint,
    latest,
    of_training,
    read_lines,
    tid_points,
)
from rbn_fairseq.report.training_log import (
    TrainEpoch,
    TrainingLog,
    Validation,
    read_training_log,
)

__all__ = [
    "LOG",
    "SCORE",
    "LayerTID",
    "Run",
    "TIDPoint",
    "TrainEpoch",
    "Validation",
    "read_log",
    "read_run",
    "read_runs",
]

LOG, SCORE, RUN_FILE = "train.log", "score.json", "run.json"


@dataclass(frozen=True)
class Run:
    """A run by the name it has in tables and figures.

    Attributes:
        name: unique among the runs of a report.
        validations: one an epoch, perhaps more.
        tid: measured before training and after each epoch; empty without batch norms.
        seconds: the time that the training took by fairseq's own count, with validation and TID,
            summed over resumptions, in each up to the end of its last epoch; ``None`` before it.
        scores: what ``rbn score`` wrote, by kind of BLEU.
        settings: fairseq's configuration of the last process, by section; empty if the log has
            none.
        train: averages over each epoch.
        conditioning: of the encoder layers' inputs.
        batching: TID with batches made in several ways.
        cost: discrepancy cost, by way of normalising.
        multipliers: of --rbn-target-tid, by epoch and batch norm.
        dictionaries: languages, source first, and the numbers of types in their dictionaries; empty
            if the log has none.
        ended: whether the last process ended as it should.
        problems: what could not be read, or is missing; a sentence each.
    """

    name: str
    validations: tuple[Validation, ...]
    tid: tuple[TIDPoint, ...]
    seconds: Optional[float]
    scores: dict[str, dict[str, Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    train: tuple[TrainEpoch, ...] = ()
    conditioning: tuple[Conditioning, ...] = ()
    batching: tuple[TIDPoint, ...] = ()
    cost: tuple[Cost, ...] = ()
    multipliers: tuple[Multipliers, ...] = ()
    dictionaries: tuple[tuple[str, int], ...] = ()
    ended: bool = False
    problems: tuple[str, ...] = ()

    @property
    def last_cost(self) -> dict[str, Cost]:
        """Discrepancy cost of the last checkpoint, by way of normalising."""
        return {it.statistics: it for it in latest(self.cost)}

    def to_dict(self) -> dict[str, Any]:
        """Return plain containers for JSON; what was not measured is left out."""

        def measured(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
            return {name: value for name, value in pairs if value is not None}

        return {
            "valid": [asdict(it, dict_factory=measured) for it in self.validations],
            "tid": [asdict(point, dict_factory=measured) for point in self.tid],
            "seconds": self.seconds,
            "scores": self.scores,
        }


def _number(value: Any) -> float:
    """Read a finite number.

    Raises:
        ValueError, TypeError: if it is none.
    """
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not finite")
    return number


def _read_score(kind: str, score: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    """Check a score; a test of significance without a p is left out."""
    _number(score["bleu"])
    try:
        if score.get("significance") is not None:
            _number(score["significance"]["p"])
    except (ValueError, KeyError, TypeError) as error:
        problems.append(f"`{SCORE}`, {kind}: left out a significance without its p ({error!r}).")
        return {name: value for name, value in score.items() if name != "significance"}
    return score


def _read_scores(path: Path, problems: list[str]) -> dict[str, dict[str, Any]]:
    if not path.is_file():
        return {}
    scores = {}
    try:
        content = dict(parse_json(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        content = {}
        problems.append(_no_bleu(f"`{path.name}`", error))
    for kind, score in content.items():
        try:
            scores[kind] = _read_score(kind, score, problems)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(_no_bleu(f"`{path.name}`, {kind},", error))
    return scores


def _no_bleu(what: str, error: Exception) -> str:
    return f"{what} is not what `rbn score` writes ({error!r}); no BLEU. Remove it and score again."


def _missing(epochs: Sequence[int], first: int) -> str:
    known = set(epochs)
    absent = (epoch for epoch in range(first, max(known, default=0)) if epoch not in known)
    told = list(map(str, islice(absent, 9)))
    return ", ".join(told[:8]) + (", …" if len(told) > 8 else "")


def _read_run_file(
    path: Path, problems: list[str]
) -> tuple[dict[str, Any], tuple[tuple[str, int], ...]]:
    """Return the configuration by group, and languages with the sizes of their dictionaries."""
    if not path.is_file():
        return {}, ()
    try:
        content = parse_json(path.read_text(encoding="utf-8", errors="replace"))
        config = {name: group for name, group in content["config"].items() if group is not None}
        vocabularies = content.get("data", {}).get("vocabularies", {})
        sizes = tuple((str(language), int(size)) for language, size in vocabularies.items())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problems.append(f"`{path.name}` is not what a training writes ({error!r}); no settings.")
        return {}, ()
    return config if all(isinstance(it, dict) for it in config.values()) else {}, sizes


def _check(
    directory: Path, log: TrainingLog, tid: Sequence[TIDPoint], settings: Mapping[str, Any]
) -> list[str]:
    """Say what is missing."""
    if not directory.is_dir():
        return [f"There is no directory `{directory}`."]
    if not (directory / LOG).is_file():
        return [
            f"There is no `{directory / LOG}`, so no losses and no settings. `rbn train` writes "
            "it; with fairseq-train give --log-format json and keep its output there."
        ]
    problems = []
    if not settings:
        problems.append(
            f"There is no `{RUN_FILE}` (a training with --task translation_rbn writes it), so the "
            "settings are unknown: norm, placement, seed and data. The run is compared with no "
            "other."
        )
    if not log.validations:
        problems.append(f"`{LOG}` has no validation yet.")
    if (settings.get("dataset") or {}).get("validate_interval", 1) != 1:
        return problems
    epochs = [it.epoch for it in log.validations.values()]
    measured = [it.epoch for it in tid if it.epoch is not None]
    for what, absent in (
        (f"`{LOG}` has no validation of", _missing(epochs, 1)),
        (
            "`tid.jsonl` has no measurement of",
            _missing(measured, 0),
        ),
    ):
        if absent:
            number = "epochs" if "," in absent else "epoch"
            problems.append(f"{what} {number} {absent}; curves join their neighbours.")
    return problems


def read_run(name: str, directory: Path) -> Run:
    """Read what lies in a save directory, of a finished or a running training.

    ``run.json``, ``train.log``, ``tid.jsonl``, ``conditioning.jsonl``, ``tid_batching.jsonl``,
    ``cost.jsonl``,
    ``multipliers.jsonl`` and ``score.json``; what is missing or damaged is told in
    :attr:`Run.problems`. A run that was resumed has some epochs twice in its log; the later ones
    count.
    """
    problems: list[str] = []
    log = read_training_log(directory / LOG, problems)
    settings, dictionaries = _read_run_file(directory / RUN_FILE, problems)

    def lines(file: str, *kinds: type) -> list[Any]:
        return read_lines(directory / file, problems, *kinds)

    def points(file: str) -> tuple[TIDPoint, ...]:
        return tid_points(lines(file, TIDPoint, LayerTID), problems, file)

    tid = of_training(points("tid.jsonl"), problems, "tid.jsonl")
    return Run(
        name,
        tuple(log.validations.values()),
        tid,
        sum(log.walls) or None,
        _read_scores(directory / SCORE, problems),
        settings,
        tuple(log.train.values()),
        tuple(record for (record,) in lines("conditioning.jsonl", Conditioning)),
        points("tid_batching.jsonl"),
        tuple(record for (record,) in lines("cost.jsonl", Cost)),
        tuple(record for (record,) in lines("multipliers.jsonl", Multipliers)),
        dictionaries,
        log.ended,
        (*_check(directory, log, tid, settings), *problems),
    )


def read_runs(named: Iterable[tuple[str, Path]]) -> list[Run]:
    """Read runs by their names.

    Raises:
        ValueError: if two have the same name, or there is nothing in any of them.
    """
    runs = [read_run(name, Path(path)) for name, path in named]
    names = [run.name for run in runs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"Two runs are called the same ({', '.join(twice)}); give them as NAME=DIR."
        )
    if not any(run.validations or run.train or run.tid for run in runs):
        told = "; ".join(f"{run.name}: {' '.join(run.problems)}" for run in runs)
        raise ValueError(
            "There is nothing to report: no run has a validation yet, or a measurement. A report "
            "needs DIR/train.log, the log of a training by `rbn train … --save-dir DIR`. " + told
        )
    return runs
