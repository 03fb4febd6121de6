"""Figure 3: batch norm in the bottom L layers; TID and the gap to layer norm through training."""

from functools import partial

import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.figures.curves import figure_of_curves, panel
from rbn_fairseq.report.figures.style import Colours, legend_below, sheet
from rbn_fairseq.report.groups import Group, variants
from rbn_fairseq.report.means import (
    at_last_epoch,
    earlier_epochs,
    gaps_by_epoch,
    last_gaps,
    last_layer,
    name_diverged,
    name_unfinished,
)


def bottom_layers(group: Group, colours: Colours) -> list[Figure]:
    """Figure 3, left: gap to layer norm against variance TID, for each L."""
    tid = at_last_epoch(group, last_layer(group), "var_tid")
    deviations = tid["mean"].rename("var_tid_percent")
    gaps = last_gaps(group).dropna(subset="nll")
    measured = group.series.join([deviations, gaps], how="inner")
    measured = measured[measured["bottom"].fillna(0).astype(int) > 0]
    plans = ("model.norm_encoder", "model.norm_decoder")
    sweeps = [
        line.sort_values("bottom").assign(setting=detail)
        for placement in group.placements
        for detail, line in variants(measured[measured["placement"] == placement], plans)
        if len(line) > 1
    ]
    if not sweeps:
        return []
    scored = all(line["score"].notna().all() for line in sweeps)
    kind, gap, unit = "nll", "nll_gap", f"valid nll, BN - LN, {group.metric.unit}"
    if scored:
        worse = "BN - LN" if group.metric.lower else "LN - BN"
        kind, gap, unit = "score", f"{group.metric.key}_gap", f"{group.metric.name}, {worse}"
    columns = ["placement", "setting", "bottom", "var_tid_percent", kind]
    layer = {"bottom": 0, "var_tid_percent": 0.0, kind: 0.0}  # layer norm itself
    lines = [pd.concat([line[:1].assign(**layer), line])[columns] for line in sweeps]
    numbers = pd.concat(lines).astype({"bottom": int}).rename(columns={"bottom": "L", kind: gap})
    caption = (
        "Batch norm in the bottom L layers (of an encoder, if there is one), layer norm above "
        "(L = 0 is layer norm, with neither TID nor gap): variance TID of the last batch norm, and "
        "the gap to layer norm; positive: worse than LN. The paper (IWSLT14, Post-Norm) finds the "
        "two highly correlated."
    )
    title = "Paper's Figure 3, left: number of bottom layers with batch norm"
    shown = pd.concat(sweeps)
    notes = earlier_epochs(group, "TID", tid.loc[shown.index]) + name_diverged(group)
    notes += name_unfinished(group) if scored else earlier_epochs(group, "The gap", shown)
    draw = partial(_draw_sweeps, numbers, gap, unit)
    return [Figure("figure3_left", title, caption, draw, numbers, tuple(notes))]


def _draw_sweeps(numbers: pd.DataFrame, gap: str, unit: str) -> Canvas:
    panels = (("var_tid_percent", "TID by L", "variance TID of the last BN, %"),
              (gap, "gap by L", unit))  # fmt: skip
    with sheet(1, 2, width=3.8) as (canvas, (row,)):
        for axes, (column, title, label) in zip(row, panels, strict=True):
            by_sweep = numbers.groupby(["placement", "setting"], sort=False)
            for number, (names, line) in enumerate(by_sweep):
                dash = ("-", "--", ":", "-.")[number % 4]
                name = ", ".join(filter(None, names))
                axes.plot(line["L"], line[column], dash, marker="o", color="#D55E00", label=name)
            axes.axhline(0, color="black", linewidth=0.8)
            axes.set(title=title, xlabel="L, bottom layers with BN", ylabel=label)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend_below(canvas, row)
        return canvas


def gap_through_training(group: Group, colours: Colours) -> list[Figure]:
    """Figure 3, right: variance TID of the last layer, and the gap of validation loss."""
    tid = last_layer(group)
    gaps = gaps_by_epoch(group)
    gaps = gaps[gaps["series"].isin(set(tid["series"]))]
    grid = [
        [
            panel(group, tid, placement, "variance TID, last layer", "var_tid", "% of ‖σ‖",
                  colours, quantity="var_tid_last", zero=True),
            panel(group, gaps, placement, "valid nll minus LN’s", "gap", group.metric.unit,
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
    without = (
        "Gap: no epoch has a validation both of the run and of a layer norm with its settings "
        "after as many updates."
    )
    notes = () if len(gaps) else (without,)
    return figure_of_curves(group, "figure3_right", title, caption, grid, notes)
