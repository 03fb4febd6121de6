"""Makes a report's sections of tables and figures from runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd

from rbn_fairseq.report.blocks import Figure, Section, Table
from rbn_fairseq.report.figures.replacement import bottom_layers, gap_through_training
from rbn_fairseq.report.figures.sources import decomposition, discrepancy_cost
from rbn_fairseq.report.figures.style import Colours, setting_colours
from rbn_fairseq.report.figures.tid_figure import average_tid, deviation, deviation_by_depth
from rbn_fairseq.report.figures.training import conditioning, losses, validation
from rbn_fairseq.report.figures.weights import penalty_weights
from rbn_fairseq.report.groups import Group, group_runs
from rbn_fairseq.report.overview import common_settings, differences, settings_tables
from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.setups import describe
from rbn_fairseq.report.tables import paper_tables, summary

_FIRST, _FOLDED = "Result", "Common settings"
_Make = Callable[[Group, Colours], Sequence[Table | Figure]]
#: A group's sections: title, text, and what makes their blocks.
_SECTIONS: tuple[tuple[str, str, tuple[_Make, ...]], ...] = (
    (_FIRST, "", (differences, validation)),
    ("Runs", "", (summary,)),
    (
        "The paper’s tables",
        "Grey, in italics: its own numbers, not measured here.",
        (paper_tables,),
    ),
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
    ("Where TID comes from, and what it costs", "", (decomposition, discrepancy_cost)),
    ("Conditioning", "Singular values of the layers' inputs.", (conditioning,)),
    ("Settings", "", (settings_tables,)),
    (_FOLDED, "", (common_settings,)),  # more than a hundred
)


def _about(group: Group) -> str:
    placement = group.placements[0] if len(group.placements) == 1 else ""
    number, settings = len(group.runs), group.runs["series"].nunique()
    text = f"{', '.join(filter(None, (group.title, placement)))}. "
    text += f"Runs: {number}, settings: {settings}."
    if number > settings:
        text += " In figures the bold line is the mean over seeds, thin lines are seeds."
    return text


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
    """Return the report's sections, of runs with names that are unique.

    Runs of different data or model sizes are in groups of their own: first a section for each
    with differences to layer norm, then its runs and the paper's tables, its figures by theme and
    the settings; at the end problems of reading. What no run has measured is left out.
    """
    groups = group_runs(runs)
    every = pd.concat([group.series[["norm", "label"]] for group in groups])
    colours = setting_colours(list(every.itertuples(index=False, name=None)))
    report: list[Section] = []
    for number, group in enumerate(groups, 1):
        where = f" (group {number})" if len(groups) > 1 else ""
        behind = f"_{number}" if number > 1 else ""  # files are called by blocks' names
        for title, text, makers in _SECTIONS:
            blocks = [block for make in makers for block in make(group, colours)]
            if blocks:
                shown = tuple(replace(block, name=block.name + behind) for block in blocks)
                text = _about(group) if title == _FIRST else text
                opened = title == _FIRST or (number == 1 and title != _FOLDED)
                report.append(Section(f"{title}{where}", text, shown, opened))
    report.sort(key=lambda section: not section.title.startswith(_FIRST))
    if len(problems := _problems(runs, groups)):
        table = Table("problems", "What could not be read, or is missing", problems)
        report.append(Section("Problems", "Everything else is drawn.", (table,)))
    return report
