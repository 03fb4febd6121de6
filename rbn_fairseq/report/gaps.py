"""How much worse than layer norm a run is: in BLEU and in validation loss, beside its TID."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Optional

from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.series import Group, Series, last_shared

__all__ = [
    "Point",
    "bleu_gap",
    "bleu_kind",
    "bleu_of",
    "gaps_of",
    "last_epoch",
    "last_tid",
    "nll_gap",
    "nll_gaps",
    "nll_of",
    "pairs",
    "points",
    "signature",
]


@dataclass(frozen=True)
class Point:
    """A setting with batch norm: TID of the last layer in per cent, gaps to layer norm.

    Gaps are positive where it is worse: BLEU in points, ``nll`` in bits per target token.
    """

    series: Series
    tid: float
    var_tid: float
    bleu: Optional[float]
    nll: Optional[float]


def bleu_kind(runs: Iterable[Run]) -> str:
    """Return the kind of BLEU that most runs have; of several the paper's, on tokens.

    For WMT16 that is with compounds split, which other data are not scored with.
    """
    counts: dict[str, int] = {}
    for run in runs:
        for kind in run.scores:
            counts[kind] = counts.get(kind, 0) + 1
    preferred = ("compound_split", "tokenised", "sacrebleu", *sorted(counts))
    return max(preferred, key=lambda kind: (counts.get(kind, 0), -preferred.index(kind)))


def bleu_of(run: Run, kind: str) -> Optional[float]:
    """Return BLEU of one kind; ``None`` if the run was not scored so."""
    return float(run.scores[kind]["bleu"]) if kind in run.scores else None


def nll_of(run: Run) -> dict[int, float]:
    """Return validation nll by epoch."""
    return {it.epoch: it.nll_loss for it in run.validations}


def last_tid(run: Run, name: str) -> dict[int, float]:
    """Return a quantity of the last layer in per cent by epoch, such as ``mean_tid``."""
    values = {it.epoch: getattr(it.last, name) for it in run.tid if it.epoch is not None}
    return {epoch: 100 * value for epoch, value in values.items() if value is not None}


def pairs(group: Group, series: Series) -> list[tuple[Run, tuple[Run, ...]]]:
    """Give each run its seed's layer norm, or all of them where there is none of that seed.

    Empty where there is no layer norm to be compared with.
    """
    baseline = group.baseline(series)
    if baseline is None:
        return []
    own = dict(zip(baseline.seeds, baseline.runs, strict=True))
    return [
        (run, (own[seed],) if seed in own else baseline.runs)
        for run, seed in zip(series.runs, series.seeds, strict=True)
    ]


def nll_gaps(run: Run, others: Sequence[Run]) -> list[tuple[float, float]]:
    """Return valid nll minus the others' mean, by epoch, where all have been validated."""
    mine, theirs = nll_of(run), [nll_of(other) for other in others]
    shared = sorted(set(mine).intersection(*theirs)) if theirs else []
    return [(epoch, mine[epoch] - statistics.fmean(it[epoch] for it in theirs)) for epoch in shared]


def gaps_of(group: Group, series: Series) -> dict[str, list[tuple[float, float]]]:
    """Return the gaps of validation nll through training, by run name."""
    return {run.name: nll_gaps(run, others) for run, others in pairs(group, series)}


def nll_gap(group: Group, series: Series, measured: bool = False) -> Optional[tuple[int, float]]:
    """Return an epoch and the gap in bits per token there; mean over seeds.

    The epoch is the last that all seeds and their layer norms have; with ``measured``, of those
    with TID: a training that ends within an epoch is validated there, but TID is not measured.
    """
    by_name = {run.name: run for run in series.runs}
    found = []
    for name, gaps in gaps_of(group, series).items():
        tid = last_tid(by_name[name], "var_tid")
        if gaps:
            found.append({at: gap for at, gap in gaps if not measured or at in tid or not tid})
    last = last_shared(found)
    return None if last is None else (last, statistics.fmean(gaps[last] for gaps in found))


def last_epoch(run: Run) -> Optional[int]:
    """Return the epoch of the last validation."""
    return run.validations[-1].epoch if run.validations else None


def signature(run: Run, kind: str) -> str:
    """Return how BLEU of one kind was computed, by sacreBLEU's signature."""
    return str(run.scores[kind].get("signature", "unknown"))


def bleu_gap(group: Group, series: Series, kind: str) -> Optional[float]:
    """Return how much less BLEU than layer norm, mean over seeds.

    ``None`` without a score, or where the trainings ended at different epochs or were scored with
    different signatures.
    """
    found = []
    for run, others in pairs(group, series):
        if kind not in run.scores:
            continue
        theirs = [
            float(it.scores[kind]["bleu"])
            for it in others
            if kind in it.scores
            and last_epoch(it) == last_epoch(run)
            and signature(it, kind) == signature(run, kind)
        ]
        if theirs:
            found.append(statistics.fmean(theirs) - float(run.scores[kind]["bleu"]))
    return statistics.fmean(found) if found else None


def points(group: Group) -> list[Point]:
    """Return a point for each setting with TID that has a layer norm to be compared with.

    TID and gaps are of one epoch, the last that the setting and layer norm have; BLEU is there
    where the trainings ended with it.
    """
    kind = bleu_kind(group.runs)
    found = []
    for series in group.series:
        gap = nll_gap(group, series, measured=True)
        if gap is None:
            continue
        epoch, nll = gap
        tids = [
            (last_tid(run, "mean_tid")[epoch], last_tid(run, "var_tid")[epoch])
            for run in series.runs
            if epoch in last_tid(run, "var_tid")
        ]
        if tids:
            mean, var = (statistics.fmean(column) for column in zip(*tids, strict=True))
            ended = {last_epoch(run) for run in series.runs if kind in run.scores} == {epoch}
            bleu = bleu_gap(group, series, kind) if ended else None
            found.append(Point(series, mean + var, var, bleu, nll))
    return found
