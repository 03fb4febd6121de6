"""What TID costs in validation loss, by way of normalising."""

from functools import partial

import pandas as pd
from matplotlib.figure import Figure as Canvas

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.compare import Group, of_largest
from rbn_fairseq.report.figures.style import Colours, legend_below, sheet

_BARS = 8  # settings that are drawn
_WAYS = {
    "running": "running statistics",
    "running-global": "running, all lengths",
    "recalibrated": "recalibrated",
    "recalibrated-dropout": "recalibrated, dropout on",
    "pooled": "pooled",
    "length-conditional": "length-conditional",
    "batch-random": "random batches' own",
}


def discrepancy_cost(group: Group, colours: Colours) -> list[Figure]:
    """Validation nll with each way's statistics minus that with the batches' own."""
    cost = of_largest(group.frames["cost"], "update")
    if not len(cost):
        return []
    cost = cost.drop_duplicates(["run", "statistics"], keep="last")
    means = cost.groupby(["series", "statistics"])["cost"].mean().unstack()
    seeds = cost.groupby(["series", "statistics"])["cost"].agg(list)
    caption = (
        "Validation nll with population statistics minus that with each batch's own (batches as "
        f"trained), in {group.metric.unit}: what TID costs. Below 0: the population's are "
        "better. Running: the exponential average of training; recalibrated: mean of batches with "
        "the final weights, dropout off, and on; pooled: over all tokens. Each run's last "
        "checkpoint that was measured; means over seeds, each of which is a point. "
        "Length-conditional: as recalibrated, for each bin of sentence lengths."
    )
    notes = ()
    if len(means) > _BARS:
        notes = (f"Drawn: the first {_BARS} of {len(means)} settings; CSV has all.",)
    columns = ["placement", "label", "run", "statistics", "nll", "cost", "cost_random"]
    numbers = cost[columns].rename(columns={"label": "norm"})
    draw = partial(_draw, group, means.head(_BARS), seeds, colours)
    return [Figure("cost", "Discrepancy cost", caption, draw, numbers, notes)]


def _draw(group: Group, means: pd.DataFrame, seeds: pd.Series, colours: Colours) -> Canvas:
    ways = [way for way in _WAYS if way in means and means[way].notna().any()]
    with sheet(1, 1, width=max(6.0, 1.0 + 1.6 * len(ways)), height=3.4) as (canvas, ((axes,),)):
        width = 0.8 / len(means)
        for number, (at, row) in enumerate(means.iterrows()):
            about = group.series.loc[at]
            places = [n + (number - (len(means) - 1) / 2) * width for n in range(len(ways))]
            label = group.placed(about["placement"], about["label"])
            hatch = "//" if about["placement"] == "Pre-Norm" else ""
            style = {"color": colours[about["label"]], "edgecolor": "white", "hatch": hatch}
            axes.bar(places, row[ways], width, label=label, **style)
            for place, way in zip(places, ways, strict=True):
                points = seeds.get((at, way), [])
                if len(points) > 1:
                    axes.plot([place] * len(points), points, "o", color="black", markersize=2.5)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xticks(range(len(ways)), [_WAYS[way] for way in ways])
        axes.grid(axis="x", visible=False)
        axes.set(ylabel=f"discrepancy cost, {group.metric.unit}")
        legend_below(canvas, [axes])
        return canvas
