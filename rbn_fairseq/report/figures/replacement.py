"""Figure 3: batch norm in the bottom L layers, and the gap to layer norm through training."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.figures.curves import figure_of_curves
from rbn_fairseq.report.figures.missing import Drawn, Missing, or_missing
from rbn_fairseq.report.figures.panel import Panel, curves
from rbn_fairseq.report.figures.style import legend_below, sheet
from rbn_fairseq.report.figures.tid import MEASURE
from rbn_fairseq.report.figures.training import placed
from rbn_fairseq.report.gaps import Point, gaps_of, points
from rbn_fairseq.report.grouping import variants
from rbn_fairseq.report.series import Group

__all__ = ["bottom_layers", "gap_through_training"]

_SWEEP = "`rbn train … --norm-encoder batch@0-1:layer` for L = 2, and so on for every L"


def _sweeps(group: Group) -> list[tuple[str, str, list[Point]]]:
    """Put the points that differ in L only together, L ascending.

    Returns:
        Placement, the settings in which a sweep differs from the placement's others, its points.
    """
    found = []
    partial = [it for it in points(group) if it.series.setup.bottom]
    for placement in group.placements:
        own = [it for it in partial if it.series.placement == placement]
        for detail, series in variants([it.series for it in own], ("model.norm_encoder",)):
            line = [it for it in own if any(it.series is one for one in series)]
            line.sort(key=lambda it: it.series.setup.bottom or 0)
            if len(line) > 1:
                found.append((placement, detail, line))
    return found


def _plan(bottom: int, depth: int) -> str:
    if bottom == depth:
        return "batch"
    return f"batch@0-{bottom - 1}:layer" if bottom > 1 else "batch@0:layer"


def _absent(name: str, line: Sequence[Point]) -> list[str]:
    """Name the L that a sweep lacks, each with what would train it."""
    depth = line[0].series.setup.depth
    there = {point.series.setup.bottom for point in line}
    commands = [
        f"L = {bottom}, `rbn train … --norm-encoder {_plan(bottom, depth)}`"
        for bottom in range(1, depth + 1)
        if bottom not in there
    ]
    like = f", other options as in {line[0].series.runs[0].name}."
    return [f"{name}: no run with TID of {'; '.join(commands)}{like}"] if commands else []


def bottom_layers(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """Figure 3, left: gap to layer norm against variance TID, for each L."""
    title = "Figure 3, left: number of bottom layers with batch norm"
    sweeps = _sweeps(group)
    if not sweeps:
        reason = "no two runs that differ in how many bottom layers have batch norm"
        return Missing(title, reason, _SWEEP)
    in_bleu = all(point.bleu is not None for *_, line in sweeps for point in line)
    unit = "BLEU, LN - BN" if in_bleu else "valid nll, BN - LN, bits per token"
    lines, rows, notes = [], [], []
    for placement, detail, line in sweeps:
        name = ", ".join(filter(None, (placement, detail)))
        values: list[tuple[Any, ...]] = [(0, 0.0, 0.0)]  # layer norm itself
        for it in line:
            values.append((it.series.setup.bottom, it.var_tid, it.bleu if in_bleu else it.nll))
        lines.append((name, values))
        rows += [(placement, detail, *numbers) for numbers in values]
        notes += _absent(name, line)
    caption = (
        "Batch norm in the bottom L encoder layers, layer norm above (L = 0 is layer norm, with "
        "neither TID nor gap): variance TID of the last batch norm, and the gap to layer norm; "
        "positive: worse than LN. Numbers beside points are L. The paper (IWSLT14, Post-Norm) "
        "finds the two highly correlated."
    )
    header = ("placement", "setting", "L", "var_tid_percent", "bleu_gap" if in_bleu else "nll_gap")
    return Figure(
        f"figure3_left{suffix}", title, caption, lambda: _draw(lines, unit), header, tuple(rows),
        tuple(notes),
    )  # fmt: skip


def _draw(lines: Sequence[tuple[str, list[tuple[Any, ...]]]], unit: str) -> Canvas:
    with sheet(1, 3, width=3.8) as (canvas, ((tids, gaps, against),)):
        for number, (name, line) in enumerate(lines):
            bottom, tid, gap = (list(column) for column in zip(*line, strict=True))
            style = {"color": "#D55E00", "marker": "o"}
            dash = ("-", "--", ":", "-.")[number % 4]
            tids.plot(bottom, tid, linestyle=dash, label=name, **style)
            gaps.plot(bottom, gap, linestyle=dash, **style)
            against.plot(tid, gap, linestyle="none", **style)
            for at in line:
                against.annotate(
                    str(at[0]), at[1:], xytext=(5, 4), textcoords="offset points", fontsize=9
                )
        for axes, label in ((tids, "variance TID of the last BN, %"), (gaps, unit)):
            axes.set(xlabel="L, bottom layers with BN", ylabel=label)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        tids.set_title("TID by L")
        tids.set_ylim(bottom=0)
        gaps.set_title("gap by L")
        against.set(title="gap against TID", xlabel="variance TID of the last BN, %", ylabel=unit)
        for axes in (gaps, against):
            axes.axhline(0, color="black", linewidth=0.8)
        legend_below(canvas, canvas.axes)
        return canvas


def gap_through_training(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """Figure 3, right: variance TID of the last layer, and the gap of validation loss."""
    gaps = {name: own for series in group.series for name, own in gaps_of(group, series).items()}
    grid = []
    for placement in group.placements:
        series = [one for one in group.of(placement) if any(run.tid for run in one.runs)]
        tid = curves(
            series, colours, lambda run: ((it.epoch, 100 * it.last.var_tid) for it in run.tid)
        )
        gap = curves(series, colours, lambda run: gaps.get(run.name, ()))
        grid.append(
            [
                Panel(
                    placed(placement, "var. TID, last layer"), "var_tid_last", "epoch", "%", tid,
                    zero=True,
                ),
                Panel(
                    placed(placement, "valid nll - LN's"), "nll_gap", "epoch",
                    "bits per target token", gap, line=0.0,
                ),
            ]
        )  # fmt: skip
    title = "Figure 3, right: TID and the gap to layer norm through training"
    caption = (
        "Variance TID of the last batch norm, and validation nll minus that of layer norm with "
        "the same seed (the mean of all seeds where that seed is missing); above 0: worse than "
        "LN. The paper (IWSLT14, Post-Norm): BN is ahead at first, and falls behind when TID "
        "explodes."
    )
    notes = []
    if not gaps:
        notes.append(
            "Gap: no layer norm with the same settings; `rbn train … --norm-encoder layer`."
        )
    figure = figure_of_curves(f"figure3_right{suffix}", title, caption, grid, notes)
    return or_missing(figure, title, "no run measured TID", MEASURE)
