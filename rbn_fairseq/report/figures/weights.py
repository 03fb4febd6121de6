"""Figure 5: scores over the penalty's two weights."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.figures.style import Colours, sheet
from rbn_fairseq.report.groups import Group, variants
from rbn_fairseq.report.means import at_last_epoch, earlier_epochs, name_diverged, name_unfinished

_WEIGHTS = {"criterion.rbn_mean_weight": "lambda", "criterion.rbn_std_weight": "nu"}


def _grids(group: Group) -> list[pd.DataFrame]:
    """Put series together that differ in the weights only; BN is their corner (0, 0).

    Each grid says in ``setting`` in what it differs from the placement's others.
    """
    series = group.series
    for option, name in _WEIGHTS.items():
        series[name] = [float(chosen.get(option) or 0) for chosen in series["settings"]]
    grids = []
    for placement in group.placements:
        here = series[series["placement"] == placement]
        for detail, line in variants(here[here["norm"] == "RBN"], tuple(_WEIGHTS)):
            alike = variants(pd.concat([line, here[here["norm"] == "BN"]]), ("criterion.rbn_*",))
            grid = next(part for _, part in alike if line.index[0] in part.index)
            if len(grid[["lambda", "nu"]].drop_duplicates()) >= 3:
                grids.append(grid.assign(setting=detail))
    return grids


def penalty_weights(group: Group, colours: Colours) -> list[Figure]:
    """Figure 5: a map of scores, or of validation nll without, a map a placement and setting."""
    grids = _grids(group)
    if not grids:
        return []
    runs = group.runs.index[group.runs["series"].isin(pd.concat(grids).index)]
    scored = set(runs) - set(group.diverged) <= set(group.scores["run"])
    score = group.metric.name if scored else "validation nll"
    title = f"Paper's Figure 5: {score} over the weights of RBN's penalty"
    last = at_last_epoch(group, group.frames["valid"], "nll_loss")
    name, unit, means = "nll", f"valid nll, {group.metric.unit}", last[["mean", "count"]]
    if scored:
        name, unit = group.metric.key, group.scored
        means = group.final_scores.groupby("series")["score"].agg(["mean", "count"])
    high = scored and not group.metric.lower  # is good
    means = means.set_axis([name, "seeds"], axis=1)
    columns = ["placement", "setting", "lambda", "nu", name, "seeds"]
    maps = [grid.join(means, how="inner")[columns] for grid in grids]
    maps = [cells for cells in maps if len(cells)]
    if not maps:
        return []
    caption = (
        f"{unit}, mean over seeds, over lambda (weight of the mean term) and nu (of the deviation "
        "term); (0, 0) is BN. White: no run, or it diverged. The paper (IWSLT14, Pre-Norm): both "
        "terms help, and moderate weights of both are best."
    )
    draw = partial(_draw, maps, unit, name, high)
    numbers = pd.concat(maps)
    shown = last[last.index.isin(numbers.index)]
    notes = name_unfinished(group) if scored else earlier_epochs(group, "Valid nll", shown)
    notes += name_diverged(group)
    return [Figure("figure5", title, caption, draw, numbers, tuple(notes))]


def _draw(maps: Sequence[pd.DataFrame], unit: str, name: str, high: bool) -> Canvas:
    with sheet(1, len(maps), width=5.2, height=4.0) as (canvas, (row,)):
        for axes, cells in zip(row, maps, strict=True):
            heading = ", ".join(filter(None, cells[["placement", "setting"]].iloc[0]))
            table = cells.drop_duplicates(["lambda", "nu"], keep="last").pivot(
                index="nu", columns="lambda", values=name
            )
            _draw_map(axes, heading, table, unit, high)
        return canvas


def _draw_map(axes: Axes, heading: str, table: pd.DataFrame, unit: str, high: bool) -> None:
    values = table.to_numpy()
    palette = "viridis" if high else "viridis_r"  # bright is good in both
    image = axes.imshow(values, origin="lower", cmap=palette, aspect="auto")
    dark = (np.nanmin(values) + np.nanmax(values)) / 2
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            # Not quite white and black, which dark mode would change.
            colour = "#fdfdfd" if (value < dark) == high else "#010101"
            text = f"{value:.1f}" if high else f"{value:.3f}"
            axes.text(column, row, text, ha="center", va="center", color=colour)
    axes.set_xticks(range(table.shape[1]), [f"{mean:g}" for mean in table.columns])
    axes.set_yticks(range(table.shape[0]), [f"{std:g}" for std in table.index])
    axes.grid(visible=False)
    axes.set(title=heading, xlabel="λ, weight of the mean term", ylabel="ν, of the deviation term")
    axes.figure.colorbar(image, ax=axes, label=unit)
