"""How much worse than layer norm a run is: in BLEU and in validation loss, beside its TID."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Optional

from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.series import Group, Series

__all__ = [
    "Point",
    "bleu_gap",
    "bleu_kind",
    "bleu_of",
    "gaps_of",
    "last_nll",
    "nll_gap",
    "points",
    "total_tid",
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
    """Return the kind of BLEU that most runs have; of several the paper's, on tokens."""
    counts: dict[str, int] = {}
    for run in runs:
        for kind in run.scores:
            counts[kind] = counts.get(kind, 0) + 1
    preferred = ("tokenised", "sacrebleu", *sorted(counts))
    return max(preferred, key=lambda kind: (counts.get(kind, 0), -preferred.index(kind)))


def bleu_of(run: Run, kind: str) -> Optional[float]:
    """Return BLEU of one kind; ``None`` if the run was not scored so."""
    return float(run.scores[kind]["bleu"]) if kind in run.scores else None


def last_nll(run: Run) -> Optional[float]:
    """Return the nll of the last validation in bits per target token."""
    return run.validations[-1].nll_loss if run.validations else None


def total_tid(run: Run) -> Optional[float]:
    """Return the last layer's mean TID + variance TID in per cent, at the last measurement."""
    return 100 * (run.tid[-1].last.mean_tid + run.tid[-1].last.var_tid) if run.tid else None


def _pairs(series: Series, baseline: Series) -> list[tuple[Run, tuple[Run, ...]]]:
    """Give each run its seed's layer norm, or all of them where there is none of that seed."""
    own = dict(zip(baseline.seeds, baseline.runs, strict=True))
    return [
        (run, (own[seed],) if seed in own else baseline.runs)
        for run, seed in zip(series.runs, series.seeds, strict=True)
    ]


def nll_gaps(run: Run, others: Sequence[Run]) -> list[tuple[float, float]]:
    """Return valid nll minus the others' mean, by epoch, where all have been validated."""
    mine = {it.epoch: it.nll_loss for it in run.validations}
    theirs = [{it.epoch: it.nll_loss for it in other.validations} for other in others]
    shared = sorted(set(mine).intersection(*theirs)) if theirs else []
    return [(epoch, mine[epoch] - statistics.fmean(it[epoch] for it in theirs)) for epoch in shared]


def gaps_of(group: Group, series: Series) -> dict[str, list[tuple[float, float]]]:
    """Return the gaps of validation nll through training, by run name."""
    baseline = group.baseline(series)
    pairs = _pairs(series, baseline) if baseline else []
    return {run.name: nll_gaps(run, others) for run, others in pairs}


def nll_gap(group: Group, series: Series) -> Optional[float]:
    """Return the gap in bits per token at the last epoch that both have; mean over seeds."""
    last = [gaps[-1][1] for gaps in gaps_of(group, series).values() if gaps]
    return statistics.fmean(last) if last else None


def _last_epoch(run: Run) -> Optional[int]:
    return run.validations[-1].epoch if run.validations else None


def bleu_gap(group: Group, series: Series, kind: str) -> Optional[float]:
    """Return how much less BLEU than layer norm, mean over seeds.

    ``None`` without a score, or where the trainings ended at different epochs.
    """
    baseline = group.baseline(series)
    found = []
    for run, others in _pairs(series, baseline) if baseline else []:
        alike = [it for it in others if _last_epoch(it) == _last_epoch(run)]
        theirs = [score for score in (bleu_of(it, kind) for it in alike) if score is not None]
        mine = bleu_of(run, kind)
        if mine is not None and theirs:
            found.append(statistics.fmean(theirs) - mine)
    return statistics.fmean(found) if found else None


def points(group: Group) -> list[Point]:
    """Return a point for each setting with TID that has a layer norm to be compared with."""
    kind = bleu_kind(group.runs)
    found = []
    for series in group.series:
        totals = [total for total in map(total_tid, series.runs) if total is not None]
        gaps = bleu_gap(group, series, kind), nll_gap(group, series)
        if totals and any(gap is not None for gap in gaps):
            var = statistics.fmean(100 * run.tid[-1].last.var_tid for run in series.runs if run.tid)
            found.append(Point(series, statistics.fmean(totals), var, *gaps))
    return found
