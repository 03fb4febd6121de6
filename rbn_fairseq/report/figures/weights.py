"""Figure 5: BLEU over the penalty's two weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.figures.missing import Drawn, Missing
from rbn_fairseq.report.figures.style import sheet
from rbn_fairseq.report.figures.training import placed
from rbn_fairseq.report.gaps import bleu_kind, bleu_of, nll_of
from rbn_fairseq.report.grouping import variants
from rbn_fairseq.report.series import Group, Series, mean_at_last, mean_over_seeds
from rbn_fairseq.report.settings import OF_NORM, matches

__all__ = ["penalty_weights"]

_WEIGHTS = ("criterion.rbn_mean_weight", "criterion.rbn_std_weight")
_NORM = tuple(name for name in OF_NORM if not name.startswith("criterion."))

Cells = dict[tuple[float, float], float]


def _norm_options(series: Series) -> dict[str, Any]:
    return {name: value for name, value in series.setup.settings.items() if matches(name, _NORM)}


def _grids(group: Group) -> list[tuple[str, str, list[Series]]]:
    """Put together what differs in the weights only; BN is their corner (0, 0).

    Returns:
        Placement, the settings in which a map differs from the placement's others, its series.
    """
    found = []
    for placement in group.placements:
        own = group.of(placement)
        for detail, line in variants([one for one in own if one.norm == "RBN"], _WEIGHTS):
            corner = [
                one
                for one in own
                if one.norm == "BN"
                and (one.recipe, one.length) == (line[0].recipe, line[0].length)
                and _norm_options(one) == _norm_options(line[0])
            ]
            grid = [*line, *corner]
            if len({(it.setup.mean_weight, it.setup.std_weight) for it in grid}) >= 3:
                found.append((placement, detail, grid))
    return found


def penalty_weights(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """Figure 5: a map of BLEU, or of validation nll without it, a map a placement and setting."""
    title = "Figure 5: BLEU over the weights of RBN's penalty"
    grids = _grids(group)
    if not grids:
        command = "16 runs, by the loop of docs/reproduction.md"
        return Missing(title, "fewer than three pairs of weights in one placement", command)
    kind = bleu_kind(group.runs)
    members = [run for *_, line in grids for one in line for run in one.runs]
    in_bleu = all(bleu_of(run, kind) is not None for run in members)
    maps: list[tuple[str, Cells]] = []
    rows: list[tuple[Any, ...]] = []
    for placement, detail, line in grids:
        convention = line[0].setup.convention
        cells: Cells = {}
        for one in line:
            pair = (one.setup.mean_weight, one.setup.std_weight)
            mean = (
                mean_over_seeds(one, lambda run: bleu_of(run, kind))
                if in_bleu
                else mean_at_last(one, nll_of)
            )
            if mean:
                cells[pair] = mean.value
                rows.append((placement, convention, detail, *pair, mean.value, mean.number))
        maps.append((placed(placement, detail or f"convention {convention}"), cells))
    unit = f"BLEU ({kind})" if in_bleu else "valid nll, bits per target token"
    caption = (
        f"{unit}, mean over seeds, over lambda (weight of the mean term) and nu (of the deviation "
        "term); (0, 0) is BN. White: no run. The paper (IWSLT14, Pre-Norm): both terms help, "
        "and moderate weights of both are best."
    )
    name = "bleu" if in_bleu else "nll"
    header = ("placement", "convention", "setting", "lambda", "nu", name, "seeds")
    return Figure(
        f"figure5{suffix}", title, caption, lambda: _draw(maps, unit, in_bleu), header, tuple(rows)
    )


def _draw(maps: Sequence[tuple[str, Cells]], unit: str, in_bleu: bool) -> Canvas:
    with sheet(1, len(maps), width=5.2, height=4.0) as (canvas, (row,)):
        for axes, (heading, cells) in zip(row, maps, strict=True):
            _draw_map(axes, heading, cells, unit, in_bleu)
        return canvas


def _draw_map(axes: Axes, heading: str, cells: Cells, unit: str, in_bleu: bool) -> None:
    means = sorted({mean for mean, _ in cells})
    stds = sorted({std for _, std in cells})
    values = np.array([[cells.get((mean, std), np.nan) for mean in means] for std in stds])
    palette = "viridis" if in_bleu else "viridis_r"  # bright is good in both
    image = axes.imshow(values, origin="lower", cmap=palette, aspect="auto")
    dark = (np.nanmin(values) + np.nanmax(values)) / 2
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            if not np.isnan(value):
                on_dark = (value < dark) == in_bleu
                text = f"{value:.1f}" if in_bleu else f"{value:.3f}"
                colour = "white" if on_dark else "black"
                axes.text(column, row, text, ha="center", va="center", color=colour)
    axes.set_xticks(range(len(means)), [f"{mean:g}" for mean in means])
    axes.set_yticks(range(len(stds)), [f"{std:g}" for std in stds])
    axes.grid(visible=False)
    axes.set(title=heading, xlabel="λ, weight of the mean term", ylabel="ν, of the deviation term")
    axes.figure.colorbar(image, ax=axes, label=unit)
