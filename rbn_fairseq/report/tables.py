"""The numbers of runs as CSV."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from rbn_fairseq.report.benchmark import BenchmarkRun, spans
from rbn_fairseq.report.runs import Run

__all__ = ["benchmark_csv", "scores_csv", "tid_csv", "valid_csv"]


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def scores_csv(runs: Sequence[Run]) -> str:
    """Return BLEU by run and kind, with brevity penalty and sacreBLEU's signature."""
    rows = (
        (
            run.name,
            kind,
            f"{score['bleu']:.2f}",
            f"{score['brevity_penalty']:.3f}",
            score["signature"],
        )
        for run in runs
        for kind, score in run.scores.items()
    )
    return _csv(("run", "kind", "bleu", "brevity_penalty", "signature"), rows)


def valid_csv(runs: Sequence[Run]) -> str:
    """Return every validation; losses in bits per target token."""
    rows = (
        (run.name, v.epoch, v.update, v.loss, v.nll_loss) for run in runs for v in run.validations
    )
    return _csv(("run", "epoch", "update", "loss", "nll_loss"), rows)


def tid_csv(runs: Sequence[Run]) -> str:
    """Return TID by run, epoch and layer, as fractions."""
    rows = (
        (run.name, point.epoch, point.update, layer.layer, layer.mean_tid, layer.var_tid)
        for run in runs
        for point in run.tid
        for layer in point.layers
    )
    return _csv(("run", "epoch", "update", "layer", "mean_tid", "var_tid"), rows)


def benchmark_csv(runs: Sequence[BenchmarkRun], kinds: Sequence[str]) -> str:
    """Return a line a run: BLEU by kind, with and without recalibration, and its signature.

    Without running statistics there is nothing to recalibrate, and that column is empty.
    """
    header = ["placement", "norm", "seed"]
    for kind in kinds:
        header += [kind, f"{kind}_without_recalibration", f"{kind}_signature"]
    rows = []
    for run in runs:
        row = [run.placement, run.norm, run.seed]
        for kind in kinds:
            without = run.unrecalibrated.get(kind, {}).get("bleu", "")
            row += [run.scores[kind]["bleu"], without, run.scores[kind]["signature"]]
        rows.append([*row, spans(run.epochs)])
    return _csv([*header, "averaged_epochs"], rows)
