"""The price of TID in validation loss, by way of normalising."""

import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure as Canvas

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.commands import COST
from rbn_fairseq.report.figures.missing import Drawn, Missing
from rbn_fairseq.report.figures.style import legend_below, sheet
from rbn_fairseq.report.figures.training import placed
from rbn_fairseq.report.series import Group

__all__ = ["discrepancy_cost"]

_MOST = 8  # settings that are drawn
_WAYS = {
    "running": "running statistics",
    "running-global": "running, all lengths",
    "recalibrated": "recalibrated",
    "pooled": "pooled",
    "length-conditional": "length-conditional",
    "batch-random": "random batches' own",
}

Bars = dict[str, tuple[str, dict[str, float]]]


def discrepancy_cost(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """Validation nll with each way's statistics minus that with the batches' own."""
    title = "Discrepancy cost"
    rows: list[tuple[Any, ...]] = []
    bars: Bars = {}
    for series in group.series:
        values: dict[str, list[float]] = {}
        for run in series.runs:
            for it in run.last_cost.values():
                rows.append(
                    (series.placement, series.label, run.name, it.statistics, it.nll, it.cost,
                     it.cost_random)
                )  # fmt: skip
                values.setdefault(it.statistics, []).append(it.cost)
        if values:
            means = {way: statistics.fmean(own) for way, own in values.items()}
            bars[placed(series.placement, series.label)] = (colours[series.norm], means)
    if not rows:
        return Missing(title, "no run measured it", COST)
    caption = (
        "Validation nll with population statistics minus that with each batch's own (batches as "
        "trained), in bits per target token: what TID costs. Below 0: the population's are "
        "better. Running: the exponential average of training; recalibrated: mean of batches with "
        "the final weights; pooled: over all tokens. Each run's last checkpoint that was measured; "
        "means over seeds."
    )
    if any("length-conditional" in means for _, means in bars.values()):
        caption += " Length-conditional: as recalibrated, for each bin of sentence lengths."
    notes = []
    if len(bars) > _MOST:
        notes.append(f"Drawn: the first {_MOST} of {len(bars)} settings; CSV has all.")
        bars = dict(list(bars.items())[:_MOST])
    header = ("placement", "norm", "run", "statistics", "nll", "cost", "cost_random")
    return Figure(
        f"cost{suffix}", title, caption, lambda: _draw(bars), header, tuple(rows), tuple(notes)
    )


def _draw(bars: Bars) -> Canvas:
    ways = [way for way in _WAYS if any(way in means for _, means in bars.values())]
    with sheet(1, 1, width=max(6.0, 1.0 + 1.6 * len(ways)), height=3.4) as (canvas, ((axes,),)):
        width = 0.8 / len(bars)
        hatches: Sequence[str] = ("", "//", "..", "xx")
        seen: dict[str, int] = {}
        for number, (label, (colour, means)) in enumerate(bars.items()):
            seen[colour] = seen.get(colour, -1) + 1
            at = [n + (number - (len(bars) - 1) / 2) * width for n in range(len(ways))]
            heights = [means.get(way, float("nan")) for way in ways]
            style = {"color": colour, "edgecolor": "white", "hatch": hatches[seen[colour] % 4]}
            axes.bar(at, heights, width, label=label, **style)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xticks(range(len(ways)), [_WAYS[way] for way in ways])
        axes.grid(axis="x", visible=False)
        axes.set(ylabel="bits per target token")
        legend_below(canvas, [axes])
        return canvas
