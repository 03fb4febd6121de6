"""Figure 3: batch norm in the bottom L layers; TID against the gap to layer norm."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from rbn_fairseq.report.blocks import Figure, Missing
from rbn_fairseq.report.compare import (
    IDENTITY,
    Group,
    gaps_by_epoch,
    last_layer,
    points,
    variants,
)
from rbn_fairseq.report.figures.curves import figure_of_curves, panel
from rbn_fairseq.report.figures.style import GREY, Colours, legend_below, sheet
from rbn_fairseq.report.figures.tid_figure import MEASURE
from rbn_fairseq.report.paper import published_gaps
from rbn_fairseq.report.tables import ENOUGH

__all__ = ["bottom_layers", "gap_through_training", "scatter"]

_MARKERS = {"BLEU": "o", "PPL": "s", "F1": "^", "accuracy": "D"}

Lines = Sequence[tuple[str, pd.DataFrame]]


def bottom_layers(group: Group, colours: Colours) -> list[Figure | Missing]:
    """Figure 3, left: gap to layer norm against variance TID, for each L."""
    title = "Paper's Figure 3, left: number of bottom layers with batch norm"
    partial = points(group)
    partial = partial[partial["bottom"].fillna(0).astype(int) > 0]
    sweeps = [
        (placement, detail, line.sort_values("bottom"))
        for placement in group.placements
        for detail, line in variants(
            partial[partial["placement"] == placement], ("model.norm_encoder",)
        )
        if len(line) > 1
    ]
    if not sweeps:
        hint = (
            "Needs two runs that differ in how many bottom layers have batch norm: "
            "`--norm-encoder batch@0-1:layer` for L = 2, and so on."
        )
        return [Missing(title, hint)]
    in_bleu = all(line["bleu"].notna().all() for *_, line in sweeps)
    kind, unit = ("bleu", "BLEU, LN - BN") if in_bleu else (
        "nll", "valid nll, BN - LN, bits per token",
    )  # fmt: skip
    parts = []
    for placement, detail, line in sweeps:
        table = pd.DataFrame(
            {"L": line["bottom"].astype(int), "var_tid_percent": line["var_tid"],
             f"{kind}_gap": line[kind]}
        )  # fmt: skip
        layer = pd.DataFrame([(0, 0.0, 0.0)], columns=table.columns)  # layer norm itself
        parts.append(pd.concat([layer, table]).assign(placement=placement, setting=detail))
    names = [", ".join(filter(None, (placement, detail))) for placement, detail, _ in sweeps]
    lines = list(zip(names, parts, strict=True))
    caption = (
        "Batch norm in the bottom L encoder layers, layer norm above (L = 0 is layer norm, with "
        "neither TID nor gap): variance TID of the last batch norm, and the gap to layer norm; "
        "positive: worse than LN. Numbers beside points are L. The paper (IWSLT14, Post-Norm) "
        "finds the two highly correlated."
    )
    numbers = pd.concat(parts)
    numbers = numbers[["placement", "setting", *numbers.columns[:3]]]
    draw = lambda: _draw_sweeps(lines, f"{kind}_gap", unit)  # noqa: E731
    return [Figure("figure3_left", title, caption, draw, numbers)]


def _draw_sweeps(lines: Lines, gap: str, unit: str) -> Canvas:
    with sheet(1, 3, width=3.8) as (canvas, ((tids, gaps, against),)):
        for number, (name, line) in enumerate(lines):
            style = {"color": "#D55E00", "marker": "o"}
            dash = ("-", "--", ":", "-.")[number % 4]
            tids.plot(line["L"], line["var_tid_percent"], linestyle=dash, label=name, **style)
            gaps.plot(line["L"], line[gap], linestyle=dash, **style)
            against.plot(line["var_tid_percent"], line[gap], linestyle="none", **style)
            for at in line[["L", "var_tid_percent", gap]].itertuples(index=False, name=None):
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


def gap_through_training(group: Group, colours: Colours) -> list[Figure | Missing]:
    """Figure 3, right: variance TID of the last layer, and the gap of validation loss."""
    tid = last_layer(group)
    gaps = gaps_by_epoch(group).drop(columns="series").join(group.runs[IDENTITY], on="run")
    gaps = gaps[gaps["series"].isin(set(tid["series"]))]
    grid = [
        [
            panel(group, tid, placement, "variance TID, last layer", "var_tid", "% of ‖σ‖",
                  colours, quantity="var_tid_last", zero=True),
            panel(group, gaps, placement, "valid nll minus LN’s", "gap", "bits per target token",
                  colours, quantity="nll_gap", not_a_number=True, line=0.0),
        ]
        for placement in group.placements
    ]  # fmt: skip
    title = "Paper's Figure 3, right: TID and the gap to layer norm through training"
    caption = (
        "Variance TID of the last batch norm, and validation nll minus that of layer norm with "
        "the same seed (the mean of all seeds where that seed is missing); above 0: worse than "
        "LN. The paper (IWSLT14, Post-Norm): BN is ahead at first, and falls behind when TID "
        "explodes."
    )
    notes = () if len(gaps) else ("Gap: there is no layer norm with the same settings.",)
    return figure_of_curves(group, "figure3_right", title, caption, grid, MEASURE, notes)


def scatter(measured: pd.DataFrame, colours: Colours) -> Figure:
    """Return TID of the last layer against the gap to layer norm: ours, and the paper's.

    Args:
        measured: rows of :func:`rbn_fairseq.report.compare.points`, with their group's title.
        colours: of the settings.
    """
    theirs = published_gaps()
    caption = (
        "Total TID (mean + variance) of the last batch norm against how much worse than layer norm "
        "the model is; above 0: worse. Left and middle: our settings, mean over seeds. Right: the "
        "paper's 20 settings of BN in the units of their metrics, which cannot be compared in "
        "size (PPL on language models: BN is better)."
    )
    here = measured[["group", "placement", "label", "tid", "bleu", "nll"]].assign(source="here")
    here = here.rename(columns={"label": "norm", "bleu": "gap", "nll": "nll_gap"})
    paper = theirs.assign(norm="BN", source="paper, " + theirs["metric"], nll_gap=None)
    paper = paper.rename(columns={"dataset": "group"})
    columns = ["group", "placement", "norm", "source", "tid", "gap", "nll_gap"]
    numbers = pd.concat([here[columns], paper[columns].astype({"nll_gap": float})])
    numbers = numbers.rename(columns={"tid": "total_tid_percent"})
    title = "TID and the gap to layer norm"
    draw = lambda: _draw_scatter(measured, theirs, colours)  # noqa: E731
    return Figure("tid_against_gap", title, caption, draw, numbers)


def _draw_scatter(measured: pd.DataFrame, theirs: pd.DataFrame, colours: Colours) -> Canvas:
    ours = [
        (heading, unit, name)
        for heading, unit, name in (
            ("here: BLEU", "BLEU, LN - BN", "bleu"),
            ("here: valid nll", "bits per token, BN - LN", "nll"),
        )
        if measured[name].count() >= ENOUGH
    ]
    with sheet(1, len(ours) + 1, width=4.0, height=3.2) as (canvas, (row,)):
        for axes, (heading, unit, name) in zip(row, ours, strict=False):
            for point in measured[measured[name].notna()].itertuples():
                hollow = {} if point.placement == "Post-Norm" else {"mfc": "white"}
                label = ", ".join(filter(None, (point.label, point.placement)))
                gap, colour = getattr(point, name), colours[point.label]
                axes.plot([point.tid], [gap], "o", color=colour, label=label, **hollow)
            axes.set(title=heading, ylabel=unit)
        for metric, points in theirs.groupby("metric", sort=False):
            style = {"marker": _MARKERS[metric], "linestyle": "none", "markersize": 4}
            label = f"paper, {metric}"
            row[-1].plot(points["tid"], points["gap"], color=GREY, label=label, **style)
        row[-1].set(title="paper: 20 settings of BN", ylabel="gap, unit of the metric")
        for axes in row:
            axes.axhline(0, color="black", linewidth=0.8)
            axes.set_xlabel("total TID of the last layer, %")
        legend_below(canvas, canvas.axes)
        return canvas
