"""The commands that fill what a benchmark's table lacks."""

import shlex
from collections.abc import Sequence

from rbn_fairseq.report.benchmark import BenchmarkRun, UnscoredRun
from rbn_fairseq.report.paper import table_order

__all__ = ["missing_commands"]

_SEEDS = (1, 2, 3)  # the paper has at least three


def missing_commands(
    name: str, runs: Sequence[BenchmarkRun], unscored: Sequence[UnscoredRun], options: str = ""
) -> list[str]:
    """Return shell commands: for the paper's rows that have no run, and for unfinished runs.

    Args:
        name: the benchmark, ``iwslt14`` or ``wmt16``.
        runs: evaluated ones.
        unscored: the others.
        options: text that follows every command.
    """

    def command(script: str, cell: tuple[str, str], seeds: Sequence[int]) -> str:
        placement, norm = cell
        words = ["bash", f"scripts/{name}/{script}.sh", norm, placement, *map(str, seeds)]
        return " ".join(filter(None, [shlex.join(words), options]))

    commands = []
    scored = {(run.placement, run.norm) for run in runs}
    for cell in table_order([*runs, *unscored]):
        own = [run for run in unscored if (run.placement, run.norm) == cell]
        trained = [run.seed for run in own if run.trained]
        untrained = [run.seed for run in own if not run.trained]
        if cell not in scored and not own:
            untrained = list(_SEEDS)
        if untrained:
            both = (command(script, cell, untrained) for script in ("train", "evaluate"))
            commands.append(" && ".join(both))
        if trained:
            commands.append(command("evaluate", cell, trained))
    return commands
