"""The table of all runs."""

import math
from typing import Optional

from rbn_fairseq.report.blocks import Cell, Table
from rbn_fairseq.report.cells import empty, number_cell
from rbn_fairseq.report.gaps import bleu_kind, bleu_of
from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.series import Group, Series
from rbn_fairseq.report.table_maker import GIVEN_LENGTH

__all__ = ["summary"]

_COLUMNS = (
    "run", "placement", "norm", "seed", "epochs", "best valid nll", "last valid nll", "BLEU",
    "mean TID, last layer, %", "variance TID, last layer, %", "mean TID, average, %",
    "variance TID, average, %", "mean TID given length, average, %",
    "variance TID given length, average, %", "cost, bits per token", "minutes",
)  # fmt: skip
_ORDER = ("running", "recalibrated", "pooled")


def _epochs(run: Run) -> Cell:
    """Epoch k of K, or only k where the training is to end by updates or has ended."""
    done = run.validations[-1].epoch if run.validations else 0
    total = (run.settings.get("optimization") or {}).get("max_epoch") or 0
    text = f"{done} of {total}" if total and total != done else str(done)
    if run.ended or not run.settings:
        return Cell(text, done)
    return Cell(text, done, note="its log does not say that the training has ended")


def _cost(run: Run) -> Optional[float]:
    """Discrepancy cost as inference has it: with the running statistics, where measured."""
    return next((run.last_cost[way].cost for way in _ORDER if way in run.last_cost), None)


def _row(series: Series, run: Run, seed: Optional[int], kind: str, colour: str) -> tuple[Cell, ...]:
    nll = [it.nll_loss for it in run.validations]
    point = run.tid[-1] if run.tid else None
    tids: list[Optional[float]] = [None] * 6
    if point:
        last, average = point.last, point.average
        tids = [last.mean_tid, last.var_tid, average.mean_tid, average.var_tid]
        tids += [average.mean_conditional_tid, average.var_conditional_tid]
    return (
        Cell(run.name, colour=colour),
        Cell(series.placement),
        Cell(series.label),
        Cell("" if seed is None else str(seed), seed),
        _epochs(run),
        number_cell(min((it for it in nll if not math.isnan(it)), default=None), 3),
        number_cell(nll[-1] if nll else None, 3),
        number_cell(bleu_of(run, kind), 2),
        *(number_cell(None if value is None else 100 * value, 2) for value in tids),
        number_cell(_cost(run), 4),
        number_cell(run.seconds / 60 if run.seconds else None, 1),
    )


def summary(group: Group, colours: dict[str, str], suffix: str = "") -> Table:
    """Return a row a run; columns that are empty throughout are left out."""
    kind = bleu_kind(group.runs)
    rows = [
        _row(series, run, seed, kind, colours[series.norm])
        for series in group.series
        for run, seed in zip(series.runs, series.seeds, strict=True)
    ]
    kept = [n for n in range(len(_COLUMNS)) if any(row[n] != empty() for row in rows)]
    notes = [
        "Validation nll in bits per target token; best and last epoch.",
    ]
    scores = [run.scores[kind] for run in group.runs if kind in run.scores]
    if scores:
        signatures = sorted({str(score.get("signature", "unknown")) for score in scores})
        notes.append(f"BLEU: {kind}, `{'`, `'.join(signatures)}`.")
    if any(run.tid for run in group.runs):
        notes.append(
            "TID at the last measurement, as trained: batches compared with population "
            "statistics, in per cent of the population's standard deviation; 0 is best. Norms "
            "without batch statistics have none."
        )
    if any("given length" in _COLUMNS[n] for n in kept):
        notes.append(GIVEN_LENGTH)
    if any(run.cost for run in group.runs):
        notes.append(
            "Cost: valid nll with running (else recalibrated) statistics minus that with each "
            "batch's own, of the last checkpoint measured."
        )
    if any(run.seconds for run in group.runs):
        notes.append("Minutes: by fairseq's own count, with validation and measurements.")
    return Table(
        f"summary{suffix}",
        "Runs",
        tuple(_COLUMNS[n] for n in kept),
        tuple(tuple(row[n] for n in kept) for row in rows),
        tuple(notes),
    )
