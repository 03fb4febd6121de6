"""Makes a report's sections of tables and figures from runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd

from rbn_fairseq.report.blocks import Figure, Missing, Section, Table
from rbn_fairseq.report.compare import Group, group_runs
from rbn_fairseq.report.figures.cost_figure import discrepancy_cost
from rbn_fairseq.report.figures.replacement import bottom_layers, gap_through_training
from rbn_fairseq.report.figures.sources import decomposition
from rbn_fairseq.report.figures.style import Colours, setting_colours
from rbn_fairseq.report.figures.tid_figure import average_tid, deviation, deviation_by_depth
from rbn_fairseq.report.figures.training import conditioning, losses, validation
from rbn_fairseq.report.figures.weights import penalty_weights
from rbn_fairseq.report.overview import common_settings, differences, settings_tables
from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.setups import describe
from rbn_fairseq.report.tables import paper_tables, summary

#: Sections of figures: title, text, and what draws them.
_THEMES: tuple[tuple[str, str, tuple[Callable[[Group, Colours], list[Figure | Missing]], ...]], ...]
_THEMES = (
    ("Training", "Losses by epoch.", (losses,)),
    (
        "Training Inference Discrepancy",
        "How far the statistics of batches, which training uses, are from those of the "
        "population, which inference uses.",
        (average_tid, deviation, deviation_by_depth),
    ),
    (
        "TID and the gap to layer norm",
        "Whether a norm that has more TID does worse.",
        (bottom_layers, gap_through_training, penalty_weights),
    ),
    (
        "Where TID comes from, and what it costs",
        "",
        (decomposition, discrepancy_cost),
    ),
    ("Conditioning", "Singular values of the encoder layers' inputs.", (conditioning,)),
)

_FOLDED = "Common settings"  # more than a hundred


def _about(group: Group) -> str:
    placement = group.placements[0] if len(group.placements) == 1 else ""
    number, settings = len(group.runs), group.runs["series"].nunique()
    text = f"{', '.join(filter(None, (group.title, placement)))}. "
    text += f"Runs: {number}, settings: {settings}."
    if number > settings:
        text += " In figures the bold line is the mean over seeds, thin lines are seeds."
    return text


def _numbered(block: Table | Figure, number: int) -> Table | Figure:
    """Name the blocks of later groups apart, as files are called by their names."""
    return block if number == 1 else replace(block, name=f"{block.name}_{number}")


def _rest(name: str, title: str, heading: str, text: str, rows: pd.DataFrame) -> list[Section]:
    """Return a section with a table at the report's end, if it has rows."""
    return [Section(title, text, (Table(name, heading, rows),))] if len(rows) else []


def _problems(runs: Sequence[Run], groups: Sequence[Group]) -> pd.DataFrame:
    unread = "Its configuration has values that cannot be read, so its settings are unknown."
    rows = [(run.name, problem) for run in runs for problem in run.problems]
    rows += [(run.name, unread) for run in runs if run.config and not describe(run).sizes]
    rows += [problem for group in groups for problem in group.twice]
    return pd.DataFrame(rows, columns=["run", "problem"])


def heading(runs: Sequence[Run]) -> str:
    """Return what the runs are of in a line: data, and up to five norms."""
    setups = [describe(run) for run in runs]
    data = [setup.data for setup in setups if setup.data]
    norms = list(dict.fromkeys(setup.norm for setup in setups))
    more = [f"{len(norms) - 5} more"] if len(norms) > 5 else []
    return f"{' and '.join(dict.fromkeys(data)) or 'Runs'}: {', '.join([*norms[:5], *more])}"


def sections(runs: Sequence[Run]) -> list[Section]:
    """Return the report's sections.

    Runs of different data or model sizes are in groups of their own: first a section for each
    with differences to layer norm, then its runs and the paper's tables, its figures by theme and
    the settings. What no run has measured stands at the end, and so do problems of reading.

    Args:
        runs: as read; their names are unique.
    """
    groups = group_runs(runs)
    several = len(groups) > 1
    every = pd.concat([group.series[["norm", "label"]] for group in groups])
    colours = setting_colours(list(every.itertuples(index=False, name=None)))
    report: list[Section] = []
    missing: list[tuple[str, str, str]] = []
    for number, group in enumerate(groups, 1):
        where = f" (group {number})" if several else ""
        parts: list[tuple[str, str, list[Table | Figure | Missing]]]
        first = [*differences(group, colours), *validation(group, colours)]
        parts = [("Result", _about(group), first)]
        parts.append(("Runs", "", [summary(group, colours)]))
        if any(group.placements):
            parts.append(("The paper’s tables", "", [*paper_tables(group, colours)]))
        parts += [
            (theme, text, [block for make in makers for block in make(group, colours)])
            for theme, text, makers in _THEMES
        ]
        parts.append(("Settings", "", [*settings_tables(group, colours)]))
        parts.append((_FOLDED, "", [*common_settings(group, colours)]))
        for title, text, blocks in parts:
            missing += [
                (it.title, it.hint, group.title) for it in blocks if isinstance(it, Missing)
            ]
            shown = [_numbered(it, number) for it in blocks if not isinstance(it, Missing)]
            if shown:
                opened = title == "Result" or (number == 1 and title != _FOLDED)
                report.append(Section(f"{title}{where}", text, tuple(shown), opened))
    report.sort(key=lambda section: not section.title.startswith("Result"))
    hints = pd.DataFrame(missing, columns=["figure", "how to have it", "runs"])
    hints = hints if several else hints.drop(columns="runs")
    report += _rest("not_measured", "Not measured", "Figures that are not drawn", "", hints)
    heading = "What could not be read, or is missing"
    problems = _problems(runs, groups)
    return report + _rest("problems", "Problems", heading, "Everything else is drawn.", problems)
