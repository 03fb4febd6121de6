"""The paper's table of translation, from our runs."""

import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rbn_fairseq.report.benchmark import BenchmarkRun, UnscoredRun, spans
from rbn_fairseq.report.missing import missing_commands
from rbn_fairseq.report.paper import (
    BENCHMARKS,
    NORMS,
    OTHERS,
    Benchmark,
    table_order,
    withheld_because,
)

__all__ = ["notes", "print_benchmark", "rows"]

_PLACEMENTS = {"post": "Post", "pre": "Pre"}


def _mean(scores: Sequence[Mapping[str, Any]], spread: bool = False) -> str:
    """Write the mean; with ``spread`` the sample standard deviation (n - 1), if there are two."""
    values = [float(score["bleu"]) for score in scores]
    mean = f"{statistics.mean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if spread and len(values) > 1 else mean


def _row(benchmark: Benchmark, runs: Sequence[BenchmarkRun], comparable: bool) -> list[str]:
    kind = benchmark.kinds[0]
    # A mean over some of the seeds would be of other runs than the one beside it.
    without = [run.unrecalibrated[kind] for run in runs if run.unrecalibrated]
    paper = benchmark.bleu.get((runs[0].placement, runs[0].norm))
    return [
        _mean([run.scores[kind] for run in runs], spread=True),
        _mean(without) if len(without) == len(runs) else "",
        _mean([run.scores["sacrebleu"] for run in runs]),
        f"{len(runs)} ({spans(tuple(sorted(run.seed for run in runs)))})",
        f"{paper:.1f}" if paper is not None and comparable else "",
    ]


def rows(
    benchmark: Benchmark, runs: Sequence[BenchmarkRun], unscored: Sequence[UnscoredRun] = ()
) -> list[list[str]]:
    """Return the table's rows: name, BLEU, without recalibration, sacreBLEU, seeds, the paper's.

    Args:
        benchmark: what it is a table of.
        runs: evaluated ones that agree (:func:`rbn_fairseq.report.settings.check_agreement`).
        unscored: the others.
    """
    comparable = bool(runs) and not withheld_because(benchmark, runs[0])
    table = []
    for placement, norm in table_order([*runs, *unscored]):
        of_cell = [run for run in runs if (run.placement, run.norm) == (placement, norm)]
        name = f"{_PLACEMENTS[placement]}-{(NORMS | OTHERS).get(norm, norm)}"
        table.append([name, *(_row(benchmark, of_cell, comparable) if of_cell else [""] * 5)])
    return table


def _caption(run: BenchmarkRun) -> str:
    pairs = run.about.get("pairs") or {}
    parts = [str(run.about.get("corpus") or f"data in {run.settings['data']}")]
    if pairs:
        parts.append(", ".join(f"{split} {number:,}" for split, number in pairs.items()) + " pairs")
    parts.append(f"average of epochs {spans(run.epochs)}")
    if run.settings.get("dataset.max_tokens") is not None:
        parts.append(f"max_tokens {run.settings['dataset.max_tokens']:,}")
    return "; ".join(parts) + "."


def notes(benchmark: Benchmark, runs: Sequence[BenchmarkRun]) -> list[str]:
    """Return the lines under the table: what was run, how it was scored, what is withheld why."""
    if not runs:
        return ["no run is evaluated yet"]
    lines = [_caption(runs[0])]
    for kind, heading in ((benchmark.kinds[0], benchmark.heading), ("sacrebleu", "sacreBLEU")):
        lines.append(f"{heading}: {runs[0].scores[kind]['signature']}")
    reasons = withheld_because(benchmark, runs[0])
    if reasons:
        lines.append(f"paper's numbers withheld: {'; '.join(reasons)}")
    elif benchmark.reading:
        lines.append(benchmark.reading)
    return lines


def _markdown(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Draw the table without wrapping anything, at whatever width it takes."""
    wide = Console(file=io.StringIO(), width=1000)
    table = Table("", box=box.MARKDOWN)
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in cells:
        table.add_row(*map(Text, row))
    with wide.capture() as drawn:
        wide.print(table)
    return drawn.get().strip()


def _table(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    """Draw the table narrow enough for 80 columns."""
    table = Table("", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for heading in headings:
        style = "dim" if heading == "paper" else ""
        words = heading.replace(" ", "\n").replace("-", "-\n")
        table.add_column(words, justify="right", no_wrap=True, style=style)
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def print_benchmark(
    console: Console,
    name: str,
    runs: Sequence[BenchmarkRun],
    unscored: Sequence[UnscoredRun] = (),
    options: str = "",
) -> None:
    """Print the table and what belongs under it; Markdown where ``console`` is no terminal.

    Args:
        console: where to.
        name: the benchmark's.
        runs: evaluated ones that agree (:func:`rbn_fairseq.report.settings.check_agreement`).
        unscored: the others.
        options: text that follows each command for what is missing.
    """
    benchmark = BENCHMARKS[name]
    headings = [benchmark.heading, "without recalibration", "sacreBLEU", "n (seeds)", "paper"]
    cells = rows(benchmark, runs, unscored)
    if console.is_terminal:
        console.print(_table(headings, cells))
    else:
        console.print(Text(_markdown(headings, cells)), soft_wrap=True)
    console.print()
    for line in notes(benchmark, runs):
        console.print(Text(line), soft_wrap=not console.is_terminal)
    commands = missing_commands(name, runs, unscored, options)
    for line in ["", "To fill what is missing:", *commands] if commands else ():
        console.print(Text(line), soft_wrap=True)  # whole, so that it can be copied
