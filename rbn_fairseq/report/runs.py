"""Reads run directories (``run.json``, log, measurements, scores) as tidy data frames."""

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pandas as pd

LOG, SCORE, RUN_FILE = "train.log", "score.json", "run.json"
#: Scores, as logs of validations and score.json call them.
METRICS = ("bleu", "ppl", "accuracy", "f1")
_AVERAGED_SCORE = "score_averaged_statistics.json"
_NUMBER = (int, float)
#: By file: what every line must have, and what it may have. ``epoch`` 0 is before training; TID and
#: deviations are fractions; losses and costs are in bits.
_LINES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "tid": (
        {"update": int, "layer": str, "mean_tid": _NUMBER, "var_tid": _NUMBER, "population": str,
         "dropout": bool},
        (
            "epoch", "mean_tid_error", "var_tid_error", "mean_conditional_tid",
            "var_conditional_tid", "mean_deviation", "var_deviation", "independent_mean_tid",
            "independent_var_tid", "batches", "batching", "checkpoint",
        ),
    ),
    "conditioning": (
        {"epoch": int, "update": int, "layer": int, "place": str, "c_50": _NUMBER, "c_80": _NUMBER,
         "c_max": _NUMBER},
        (),
    ),
    "cost": (
        {"statistics": str, "nll": _NUMBER, "cost": _NUMBER, "update": int},
        ("cost_random", "checkpoint"),
    ),
}  # fmt: skip
_TEXTS = ("checkpoint", "layer", "place", "statistics", "population", "batching", "dropout")
_MEASUREMENT = ["epoch", "update", "population", "batching", "dropout"]


@dataclass(frozen=True, eq=False)
class Run:
    """A run directory's content.

    Attributes:
        name: unique among the runs of a report.
        directory: where it was read.
        valid: a row a validation: epoch, update, loss, nll_loss (bits), :data:`METRICS`, and
            ``ended``, whether its epoch has; it may be within it all the same.
        train: a row an epoch: epoch, update, ``minutes`` since the training's start (by fairseq's
            own count, added up over processes) and fairseq's averages by their names.
        tid: a row a batch norm and measurement on batches as trained: epoch, update, layer, depth
            (1 is nearest to the input), mean_tid, var_tid and the like.
        batching: the same for batches made in several ways, named in ``batching``.
        conditioning, cost: the lines of these files.
        scores: what ``rbn score`` or ``rbn validate --json`` wrote, by kind of score.
        averaged_scores: the same of averaged statistics that were not recalibrated, which
            ``rbn evaluate`` leaves.
        config: fairseq's configuration by group; empty without ``run.json``.
        vocabularies: languages, source first, and the sizes of their dictionaries.
        sentences: of the training data; ``None`` where unknown.
        parameters: their number; ``None`` where unknown.
        starts: when, on what and with which versions the training was started, resumed ones too.
        problems: what could not be read or is missing, a sentence each.
    """

    name: str
    directory: Path
    valid: pd.DataFrame
    train: pd.DataFrame
    tid: pd.DataFrame
    batching: pd.DataFrame
    conditioning: pd.DataFrame
    cost: pd.DataFrame
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    averaged_scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    vocabularies: tuple[tuple[str, int], ...] = ()
    sentences: Optional[int] = None
    parameters: Optional[int] = None
    starts: tuple[Mapping[str, Any], ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def last_epoch(self) -> int:
        """The last epoch that ended; 0 before."""
        return int(max([0, *self.train["epoch"]]))


# The log.


def _simple(text: str) -> dict[str, str]:
    """Read ``valid | epoch 001 | loss 5.9 | …`` of --log-format simple into JSON's keys."""
    values = dict(re.findall(r"\| (\S+) (\S+)\s*(?=\||$)", text))
    kind, epoch = text.partition(" | ")[0], values.pop("epoch", "")
    return {"epoch": epoch, **{f"{kind}_{name}": value for name, value in values.items()}}


def _numbers(values: Mapping[str, Any], prefix: str) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, value in values.items():
        try:
            numbers[name.removeprefix(prefix)] = float(value)
        except (TypeError, ValueError):
            continue
    epoch, update = int(numbers.pop("epoch")), int(numbers.pop("num_updates"))
    return {"epoch": epoch, "update": update, **numbers}


def _read_log(
    path: Path, subset: str, problems: list[str]
) -> tuple[pd.DataFrame, pd.DataFrame, list[int]]:
    """Read the validations of a set, the ends of epochs, and the updates that processes began at.

    Of an epoch that is there twice the later counts; where a training went back to an earlier
    checkpoint, or without one to its start, what came after that does not; of one that counts anew
    (``--reset-optimizer``, ``--reset-dataloader``) only what comes after.
    """
    valid: list[dict[str, float]] = []
    train: list[dict[str, float]] = []
    starts: list[int] = []
    unread, anew, back = 0, False, math.inf
    ends = re.compile(rf"(?:\| |^)((?:{re.escape(subset)}|train) \| epoch .*)")
    begun = re.compile(
        r"\| fairseq\.trainer \| (?:No existing checkpoint|Loaded checkpoint .* @ (\d+) updates\))"
    )
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for line in text.split("\n"):
        if "are counted anew" in line and "callbacks.resume" in line:
            valid, train, anew = [], [], True
        if start := begun.search(line):
            back = int(start[1] or 0)
            starts.append(back)
        simple = ends.search(line)
        at = line.find('{"epoch": ')
        if not simple and (at < 0 or '"update": ' in line):
            continue
        try:
            values = _simple(simple[1]) if simple else json.loads(line[at:])
            kind = next((kind for kind in (f"{subset}_", "train_") if f"{kind}loss" in values), "")
            if not kind:
                continue
            row = _numbers(values, kind)
            row.setdefault("nll_loss", row["loss"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            unread += 1
            continue
        if row["update"] > back:  # the training went on from there
            valid, train = (
                [old for old in rows if old["update"] <= back] for rows in (valid, train)
            )
            back = math.inf
        rows, order = (train, "epoch") if kind == "train_" else (valid, "update")
        rows[:] = [earlier for earlier in rows if earlier[order] < row[order]] + [row]
    if anew:
        problems.append(
            f"`{path.name}`: left out what comes before a reset of updates or epochs, and its time."
        )
    if unread:
        problems.append(f"`{path.name}`: left out {unread} lines that cannot be read.")
    train_frame = pd.DataFrame(train or {"epoch": np.empty(0), "update": np.empty(0)})
    columns = ["epoch", "update", "loss", "nll_loss", *METRICS]
    valid_frame = pd.DataFrame(valid, columns=columns)
    ends = valid_frame["epoch"].map(train_frame.set_index("epoch")["update"])
    last = max([0, *valid_frame["epoch"], *train_frame["epoch"]])
    ended = (valid_frame["update"] <= ends) | (valid_frame["epoch"] < last)
    return valid_frame.assign(ended=ended), train_frame, starts


def _minutes(train: pd.DataFrame, starts: Sequence[int]) -> "pd.Series[float]":
    """Return the time at each epoch's end; each process counts up to the end of its last epoch."""
    if "wall" not in train:
        return pd.Series(np.nan, train.index)
    counted: list[int] = []
    for start in starts:  # a process that went back makes anew what those behind it made
        counted = [*(earlier for earlier in counted if earlier <= start), start]
    process = np.searchsorted(counted, train["update"], side="left")
    wall = train["wall"].replace(0, np.nan)  # a clock that stood, after a resume within an epoch
    earlier = wall.groupby(process).max().cumsum(skipna=False).shift(fill_value=0.0)
    return (wall + earlier.reindex(process).to_numpy()) / 60


# Files of JSON.


def _read_lines(directory: Path, file: str, kind: str, problems: list[str]) -> pd.DataFrame:
    """Read JSON lines; those that are malformed are left out and counted in ``problems``."""
    needed, optional = _LINES[kind]
    path, rows, bad = directory / f"{file}.jsonl", [], 0
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for line in filter(str.strip, text.splitlines()):
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            row = json.loads(line)
            if all(isinstance(row[name], kinds) for name, kinds in needed.items()):
                rows.append(row)
                continue
        bad += 1
    if bad:
        problems.append(
            f"`{path.name}`: left out {bad} lines, half-written or without what all must have."
        )
    frame = pd.DataFrame(rows, columns=[*needed, *optional])
    for name in frame.columns.difference(_TEXTS):
        frame[name] = pd.to_numeric(frame[name], errors="coerce")
    return frame


def _read_tid(directory: Path, file: str, problems: list[str]) -> pd.DataFrame:
    """Read measurements of TID, each with all of its layers in the model's order.

    A measurement that lacks layers which others have is left out: its last layer may not be the
    model's. Of a layer's two lines the later counts, but the training's own before an average's.
    """
    frame = _read_lines(directory, file, "tid", problems)
    depths = {layer: depth for depth, layer in enumerate(frame["layer"].unique(), 1)}
    frame = _own_last(frame)
    frame["batching"] = frame["batching"].astype(object).fillna("as-trained")
    frame = frame.drop_duplicates([*_MEASUREMENT, "layer"], keep="last")
    frame = frame.assign(depth=frame["layer"].map(depths).astype(float))
    layers = frame.groupby(_MEASUREMENT, dropna=False)["layer"].transform("size")
    partial = layers < len(depths)
    if partial.any():
        problems.append(f"`{file}.jsonl`: left out measurements that lack layers of others.")
    return frame[~partial].sort_values(["update", "depth"], kind="stable", ignore_index=True)


def _of_training(tid: pd.DataFrame, problems: list[str]) -> pd.DataFrame:
    """Return the course of a training: batches as trained, at known epochs, all measured alike.

    Of several measurements within an epoch it has the last.
    """
    trained = tid["batching"].eq("as-trained") & tid["epoch"].notna()
    ways = tid[trained].drop_duplicates(_MEASUREMENT).groupby(["population", "dropout"], sort=False)
    if len(ways):
        population, dropout = ways.size().idxmax()
        trained &= tid["population"].eq(population) & tid["dropout"].eq(dropout)
    if not trained.all():
        problems.append(
            "`tid.jsonl`: left out measurements at unknown epochs, or of other batches, population "
            "or dropout than most."
        )
    tid = tid[trained].astype({"epoch": int})
    last = tid["update"] == tid.groupby("epoch")["update"].transform("max")
    return tid[last].reset_index(drop=True)


def _own_last(frame: pd.DataFrame) -> pd.DataFrame:
    """Put what was measured on the training's own checkpoints behind what was on averages."""
    names = frame["checkpoint"].astype(object).fillna("checkpoint.pt")
    own = names.str.contains(r"(?:^|/)checkpoint(?:\d+|_\d+_\d+|_last|_best|\.best_[^/]*)?\.pt$")
    return frame.iloc[own.to_numpy().argsort(kind="stable")].reset_index(drop=True)


def _parse_run_file(content: dict[str, Any]) -> dict[str, Any]:
    groups = {name: dict(group) for name, group in content["config"].items() if group is not None}
    starts = tuple(
        {**start, "update": int(start["update"]), "changed": list(start.get("changed", ()))}
        for start in content["starts"]
    )
    data = content["data"]
    vocabularies = tuple((str(lang), int(size)) for lang, size in data["vocabularies"].items())
    read = {"config": groups, "starts": starts, "vocabularies": vocabularies}
    subset = groups.get("dataset", {}).get("train_subset", "train")
    return {**content, **read, "sentences": data["sentences"].get(subset)}


def _parse_scores(scores: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the scores that are finite; those of a diverged training are not."""
    read = {}
    for kind, score in scores.items():
        numbers = [score[name] for name in METRICS if name in score]
        if not numbers:
            raise ValueError("a number is missing")
        if any(map(math.isfinite, numbers)):
            read[kind] = score
    return read


def _read_json(
    path: Path, parse: Callable[[dict[str, Any]], dict[str, Any]], what: str, problems: list[str]
) -> dict[str, Any]:
    """Read a file of JSON; where there is none, or it is damaged or not ``what``, empty."""
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problems.append(f"`{path.name}` is not {what} {error!r}.")
        return {}


def _missing_files(directory: Path, valid: pd.DataFrame) -> list[str]:
    """Say which files are missing, and what that costs."""
    problems = []
    if not (directory / RUN_FILE).is_file():
        problems.append(
            f"There is no `{RUN_FILE}`, which `rbn train` writes: settings are "
            "unknown, the run is compared with no other."
        )
    if not (directory / LOG).is_file():
        problems.append(f"There is no `{directory / LOG}`, which `rbn train` writes, so no losses.")
    elif not len(valid):
        problems.append(f"`{LOG}` has no validation yet.")
    return problems


def read_run(name: str, directory: Path) -> Run:
    """Read a save directory, of a finished or a running training.

    :attr:`Run.problems` lists what is missing or damaged.
    """
    problems: list[str] = []
    written = "what a training writes, so that settings are unknown:"
    content = _read_json(directory / RUN_FILE, _parse_run_file, written, problems)
    scored = "what `rbn score` or `rbn validate --json` write; remove it and score again:"
    scores, averaged_scores = (
        _read_json(directory / file, _parse_scores, scored, problems)
        for file in (SCORE, _AVERAGED_SCORE)
    )
    config = content.get("config", {})
    subset = str(config.get("dataset", {}).get("valid_subset") or "valid").split(",")[0]
    valid, train, begun = _read_log(directory / LOG, subset, problems)
    if subset != "valid":
        problems.append(f"Losses of validation are of `{subset}`, the first of --valid-subset.")
    starts = content.get("starts", ())
    for start in starts:
        if changed := start["changed"]:
            problems.append(
                f"From update {start['update']} on it had other settings than before: "
                f"{', '.join(map(str, changed))}. Tables and figures name the last ones."
            )
    last = directory / "checkpoint_last.pt"
    if scores and last.exists() and last.stat().st_mtime > (directory / SCORE).stat().st_mtime:
        problems.append(
            f"`{SCORE}` is older than `{last.name}`: it may be of an earlier epoch (or the files "
            "were copied without their times)."
        )
    train = train.assign(minutes=_minutes(train, [start["update"] for start in starts] or begun))
    return Run(
        name,
        directory,
        valid,
        train,
        tid=_of_training(_read_tid(directory, "tid", problems), problems),
        batching=_read_tid(directory, "tid_batching", problems),
        conditioning=_read_lines(directory, "conditioning", "conditioning", problems),
        cost=_own_last(_read_lines(directory, "cost", "cost", problems)),
        scores=scores,
        averaged_scores=averaged_scores,
        config=config,
        vocabularies=content.get("vocabularies", ()),
        sentences=content.get("sentences"),
        parameters=content.get("parameters"),
        starts=starts,
        problems=(*_missing_files(directory, valid), *problems),
    )


def name_runs(paths: Sequence[str]) -> list[tuple[str, Path]]:
    """Name runs given as ``[NAME=]DIR``: by NAME, else by as little of DIR as tells them apart.

    Directories of Hydra's sweeps have an equals sign themselves.

    Raises:
        ValueError: if two have the same name.
    """
    given: list[tuple[str, Path]] = []
    for text in paths:
        name, equals, path = text.partition("=")
        named = equals and "/" not in name and not Path(text).exists()
        given.append((name, Path(path)) if named else ("", Path(text)))
    unnamed = [Path(os.path.abspath(path)).parts for name, path in given if not name]
    whole = max(map(len, unnamed), default=1)
    apart = (n for n in range(1, whole) if len({parts[-n:] for parts in unnamed}) == len(unnamed))
    depth = next(apart, whole)
    ends = (str(Path(*parts[-depth:])) for parts in unnamed)
    named_runs = [(name or next(ends), path) for name, path in given]
    counts = Counter(name for name, _ in named_runs)
    twice = sorted(name for name, number in counts.items() if number > 1)
    if twice:
        raise ValueError(
            f"Two runs are called the same ({', '.join(twice)}): give each run once, and as "
            "NAME=DIR with a NAME of its own."
        )
    return named_runs


def read_runs(named: Iterable[tuple[str, Path]]) -> list[Run]:
    """Read runs by their names, of :func:`name_runs`.

    Raises:
        ValueError: if there is nothing in any of them.
    """
    runs = [read_run(name, Path(path)) for name, path in named]
    if not any(len(run.valid) or len(run.train) or len(run.tid) for run in runs):
        problems = "; ".join(f"{run.name}: {' '.join(run.problems)}" for run in runs)
        raise ValueError(f"There is nothing to report: no validation, no measurement. {problems}")
    return runs
