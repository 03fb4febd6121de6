"""The scores of a benchmark's runs as CSV."""

from collections.abc import Sequence

from rbn_fairseq.report.benchmark import BenchmarkRun, spans
from rbn_fairseq.report.spreadsheet import write_csv

__all__ = ["benchmark_csv"]


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
    return write_csv([*header, "averaged_epochs"], rows)
