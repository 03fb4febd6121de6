"""Figures 6 and 7: conditioning of the encoder layers' inputs through training."""

from typing import Optional

import pandas as pd

from rbn_fairseq.report.blocks import Figure, Missing
from rbn_fairseq.report.compare import Group
from rbn_fairseq.report.figures.curves import Panel, curves, figure_of_curves
from rbn_fairseq.report.figures.style import Colours

__all__ = ["conditioning"]

_PLACES = {
    "stream": "the layer's input (residual stream)",
    "normalised": "the output of the layer's first norm",
}
_FIGURES = {
    "6": (("c_50", "C_50"), ("c_80", "C_80")),
    "7": (("c_max", "C_max"),),
}
_MEANING = {
    "6": "C_p = σ₁ / σ⌈pd⌉ of the matrix X of valid tokens x channels; lower is better "
    "conditioned. The paper (IWSLT14, Pre-Norm, layers 2/4/6): RBN's is lower than LN's, by two "
    "orders of magnitude in layer 6.",
    "7": "C_max = σ₁ of the matrix X of valid tokens x channels: it grows with the number of "
    "tokens, so compare runs with the same batches. The paper (IWSLT14, Pre-Norm, layers 2/4/6): "
    "smaller with RBN than with LN.",
}


def conditioning(group: Group, colours: Colours) -> list[Figure | Missing]:
    """Figures 6 and 7, one for each placement and place that was measured."""
    frame = group.frames["conditioning"]
    figures: list[Figure | Missing] = []
    for number, quantities in _FIGURES.items():
        for placement in group.placements:
            for place, words in _PLACES.items():
                own = frame[(frame["placement"] == placement) & (frame["place"] == place)]
                figure = _figure(own, colours, number, placement, place, words)
                figures += [figure] if figure else []
        if not any(isinstance(it, Figure) and it.name.startswith(f"figure{number}")
                   for it in figures):  # fmt: skip
            what = " and ".join(heading for _, heading in quantities)
            hint = "Train with `--conditioning-interval N`, N in updates."
            figures.append(Missing(f"Figure {number}: {what}", hint))
    return figures


def _figure(
    own: pd.DataFrame, colours: Colours, number: str, placement: str, place: str, words: str
) -> Optional[Figure]:
    grid = [
        [
            Panel(
                f"{heading}, layer {layer}", f"{name} {place} layer {layer}", "update", heading,
                curves(own[own["layer"] == layer], "update", name, colours, not_a_number=True),
                log=True,
            )
            for layer in sorted(own["layer"].unique())
        ]
        for name, heading in _FIGURES[number]
    ]  # fmt: skip
    what = " and ".join(heading for _, heading in _FIGURES[number])
    title = f"Figure {number}: {what}, {', '.join(filter(None, (placement, words)))}"
    name = "_".join((f"figure{number}", placement.lower().replace("-", "_") or "runs", place))
    return figure_of_curves(name, title, f"{_MEANING[number]} X is {words}.", grid)
