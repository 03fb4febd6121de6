"""Figure 5: BLEU over the penalty's two weights."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from rbn_fairseq.report.blocks import Figure, Missing
from rbn_fairseq.report.compare import Group, at_last_epoch, variants
from rbn_fairseq.report.figures.style import Colours, sheet
from rbn_fairseq.report.setups import OF_NORM, matches

__all__ = ["penalty_weights"]

_WEIGHTS = ("criterion.rbn_mean_weight", "criterion.rbn_std_weight")
_PAIR = ["mean_weight", "std_weight"]
_NORM = tuple(name for name in OF_NORM if not name.startswith("criterion."))


def _norm_options(settings: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in settings.items() if matches(name, _NORM)})


def _grids(group: Group) -> list[tuple[str, str, pd.DataFrame]]:
    """Put together what differs in the weights only; BN is their corner (0, 0).

    Returns:
        Placement, the settings in which a map differs from the placement's others, its series.
    """
    grids = []
    series = group.series
    for placement in group.placements:
        here = series[series["placement"] == placement]
        for detail, line in variants(here[here["norm"] == "RBN"], _WEIGHTS):
            first = line.iloc[0]
            corner = here[
                (here["norm"] == "BN")
                & (here["recipe"] == first["recipe"])
                & (here["length"] == first["length"])
                & (here["settings"].map(_norm_options) == _norm_options(first["settings"]))
            ]
            grid = pd.concat([line, corner])
            if len(grid[_PAIR].drop_duplicates()) >= 3:
                grids.append((placement, detail, grid))
    return grids


def penalty_weights(group: Group, colours: Colours) -> list[Figure | Missing]:
    """Figure 5: a map of BLEU, or of validation nll without it, a map a placement and setting."""
    title = "Paper's Figure 5: BLEU over the weights of RBN's penalty"
    grids = _grids(group)
    if not grids:
        hint = "Needs three runs or more that differ in `--rbn-mean-weight`, `--rbn-std-weight`."
        return [Missing(title, hint)]
    series = {number for *_, grid in grids for number in grid.index}
    runs = group.runs.index[group.runs["series"].isin(series)]
    in_bleu = set(runs) <= set(group.bleu["run"])
    by_series = group.bleu.groupby("series")["bleu"].agg(["mean", "count"])
    means = by_series if in_bleu else at_last_epoch(group.frames["valid"], "nll_loss")
    unit = f"BLEU ({group.bleu_kind})" if in_bleu else "valid nll, bits per target token"
    name = "bleu" if in_bleu else "nll"
    maps, parts = [], []
    for placement, detail, grid in grids:
        convention = grid["convention"].iloc[0]
        cells = grid[[*_PAIR]].join(means[["mean", "count"]], how="inner")
        heading = group.placed(placement, detail or f"convention {convention}")
        table = cells.drop_duplicates(_PAIR, keep="last").pivot(
            index="std_weight", columns="mean_weight", values="mean"
        )
        maps.append((heading, table))
        parts.append(cells.assign(placement=placement, convention=convention, setting=detail))
    caption = (
        f"{unit}, mean over seeds, over lambda (weight of the mean term) and nu (of the deviation "
        "term); (0, 0) is BN. White: no run. The paper (IWSLT14, Pre-Norm): both terms help, "
        "and moderate weights of both are best."
    )
    columns = {"mean_weight": "lambda", "std_weight": "nu", "mean": name, "count": "seeds"}
    numbers = pd.concat(parts)[["placement", "convention", "setting", *columns]]
    numbers = numbers.rename(columns=columns)
    draw = lambda: _draw(maps, unit, in_bleu)  # noqa: E731
    return [Figure("figure5", title, caption, draw, numbers)]


def _draw(maps: Sequence[tuple[str, pd.DataFrame]], unit: str, in_bleu: bool) -> Canvas:
    with sheet(1, len(maps), width=5.2, height=4.0) as (canvas, (row,)):
        for axes, (heading, table) in zip(row, maps, strict=True):
            _draw_map(axes, heading, table, unit, in_bleu)
        return canvas


def _draw_map(axes: Axes, heading: str, table: pd.DataFrame, unit: str, in_bleu: bool) -> None:
    values = table.to_numpy()
    palette = "viridis" if in_bleu else "viridis_r"  # bright is good in both
    image = axes.imshow(values, origin="lower", cmap=palette, aspect="auto")
    dark = (np.nanmin(values) + np.nanmax(values)) / 2
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            # Not quite white and black, which dark mode would change.
            colour = "#fdfdfd" if (value < dark) == in_bleu else "#010101"
            text = f"{value:.1f}" if in_bleu else f"{value:.3f}"
            axes.text(column, row, text, ha="center", va="center", color=colour)
    axes.set_xticks(range(table.shape[1]), [f"{mean:g}" for mean in table.columns])
    axes.set_yticks(range(table.shape[0]), [f"{std:g}" for std in table.index])
    axes.grid(visible=False)
    axes.set(title=heading, xlabel="λ, weight of the mean term", ylabel="ν, of the deviation term")
    axes.figure.colorbar(image, ax=axes, label=unit)
