"""What a report says about runs: sections of tables and figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rbn_fairseq.report.blocks import Cell, Figure, Section, Table
from rbn_fairseq.report.correlation_table import correlation_table
from rbn_fairseq.report.figures import (
    batching,
    buckets,
    cost,
    cost_by_epoch,
    deviation,
    replacement,
    statistics,
    tid,
    training,
    weights,
)
from rbn_fairseq.report.figures.conditioning import conditioning
from rbn_fairseq.report.figures.depth_map import depth_map
from rbn_fairseq.report.figures.making import Failed, made
from rbn_fairseq.report.figures.missing import Drawn, Missing
from rbn_fairseq.report.figures.multipliers import multipliers
from rbn_fairseq.report.figures.scatter import scatter
from rbn_fairseq.report.figures.style import norm_colours
from rbn_fairseq.report.gaps import Point, points
from rbn_fairseq.report.grouping import group_runs
from rbn_fairseq.report.paper_tables import paper_tables
from rbn_fairseq.report.published_table import published_section
from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.series import Group
from rbn_fairseq.report.setups import describe
from rbn_fairseq.report.summary import summary

__all__ = ["sections"]

_Make = Callable[[Group, dict[str, str], str], Drawn | list[Drawn] | list[Figure]]


@dataclass(frozen=True)
class _Theme:
    title: str
    text: str
    figures: tuple[_Make, ...]


_THEMES = (
    _Theme(
        "Training",
        "Losses, gradients and the penalty by epoch.",
        (training.losses, training.dynamics, training.penalty, multipliers),
    ),
    _Theme(
        "Training Inference Discrepancy",
        "How far the statistics of batches, which training uses, are from those of the "
        "population, which inference uses.",
        (tid.average_tid, deviation.deviation, deviation.deviation_by_depth, depth_map),
    ),
    _Theme(
        "TID and the gap to layer norm",
        "Whether a norm that has more TID does worse.",
        (replacement.bottom_layers, replacement.gap_through_training, weights.penalty_weights),
    ),
    _Theme(
        "Where TID comes from, and what it costs",
        "",
        (
            batching.decomposition,
            buckets.by_buckets,
            buckets.by_processes,
            cost.discrepancy_cost,
            cost_by_epoch.cost_by_epoch,
        ),
    ),
    _Theme("Conditioning", "Singular values of the encoder layers' inputs.", (conditioning,)),
    _Theme(
        "Population statistics",
        "Useful where batch norm fails.",
        (statistics.drift, statistics.channels),
    ),
)


def _seeds(group: Group) -> str:
    number, settings = len(group.runs), len(group.series)
    runs = "1 run" if number == 1 else f"{number} runs"
    text = f"{runs} of {settings} {'setting' if settings == 1 else 'settings'}. "
    if number == settings:
        return text + "One seed each: small differences may be chance."
    return text + "In figures the bold line is the mean over seeds, thin lines are seeds."


def _themes(
    group: Group, colours: dict[str, str], suffix: str, where: str, absent: list[Missing | Failed]
) -> list[Section]:
    found = []
    for theme in _THEMES:
        drawn = [it for make in theme.figures for it in made(make, group, colours, suffix)]
        absent += [it for it in drawn if not isinstance(it, Figure)]
        figures = tuple(it for it in drawn if isinstance(it, Figure))
        if figures:
            found.append(Section(f"{theme.title}{where}", theme.text, figures))
    return found


def _not_measured(absent: Sequence[tuple[str, Missing]], several: bool) -> list[Section]:
    if not absent:
        return []
    columns = ("figure", "what is missing", "what would fill it")
    rows = tuple(
        (Cell(it.title), Cell(it.reason), Cell(it.command), *([Cell(title)] if several else []))
        for title, it in absent
    )
    columns += ("runs",) if several else ()
    table = Table("not_measured", "Figures that are not drawn", columns, rows)
    return [Section("Not measured", "", (table,))]


def _problems(
    runs: Sequence[Run], groups: Sequence[Group], failed: Sequence[Failed]
) -> list[Section]:
    told = [(run.name, problem) for run in runs for problem in run.problems]
    told += [
        (run.name, "Its configuration has values that cannot be read, so its settings are unknown.")
        for run in runs
        if run.settings and not describe(run).sizes
    ]
    told += [it for group in groups for it in group.twice]
    told += [(it.title, it.problem) for it in failed]
    if not told:
        return []
    rows = tuple((Cell(name), Cell(problem)) for name, problem in told)
    columns = ("run or figure", "problem")
    table = Table("problems", "What could not be read, made, or is missing", columns, rows)
    return [Section("Problems", "Everything else is drawn.", (table,))]


def _correlation(
    measured: Sequence[tuple[str, Point]], colours: dict[str, str], failed: list[Failed]
) -> list[Section]:
    text = (
        "Over all settings with batch norm that have a layer norm to be compared with, beside the "
        "paper's own 20 settings."
    )
    found = made(scatter, measured, colours)
    failed += [it for it in found if isinstance(it, Failed)]
    figures = (it for it in found if isinstance(it, Figure))
    blocks = (*figures, correlation_table(measured))
    return [Section("Correlation of TID with the gap to layer norm", text, blocks)]


def sections(runs: Sequence[Run]) -> list[Section]:
    """Return the report's sections.

    Runs of different data or model sizes are in groups of their own: first a section for each
    with its runs and the paper's tables, then its figures by theme. What no run has measured
    stands at the end with the command that measures it, and so do problems of reading. A figure
    that fails is told there, too; one that fails only when it is drawn says so in its place.

    Args:
        runs: as read; their names are unique.
    """
    groups = group_runs(runs)
    several = len(groups) > 1
    colours = norm_colours([one.norm for group in groups for one in group.series])
    found: list[Section] = []
    absent: list[tuple[str, Missing]] = []
    failed: list[Failed] = []
    for number, group in enumerate(groups, 1):
        suffix = f"_{number}" if number > 1 else ""
        where = f" (group {number})" if several else ""
        known = any(one.placement for one in group.series)
        tables = paper_tables(group, colours, suffix) if known else []
        title = f"Group {number}: {group.title}" if several else group.title
        text = _seeds(group)
        if several:
            text += " Runs of other data or model sizes are in groups of their own."
        found.append(Section(title, text, (summary(group, colours, suffix), *tables)))
        own: list[Missing | Failed] = []
        found += _themes(group, colours, suffix, where, own)
        absent += [(title, it) for it in own if isinstance(it, Missing)]
        failed += [it for it in own if isinstance(it, Failed)]
    measured = [(group.title, point) for group in groups for point in points(group)]
    found += _correlation(measured, colours, failed) if measured else []
    problems = _problems(runs, groups, failed)
    return [*found, published_section(), *_not_measured(absent, several), *problems]
