"""Figures 6 and 7: conditioning of the encoder layers' inputs through training."""

from rbn_fairseq.report.blocks import Figure, Missing
from rbn_fairseq.report.compare import Group
from rbn_fairseq.report.figures.curves import figure_of_curves, panel
from rbn_fairseq.report.figures.style import Colours

__all__ = ["conditioning"]

_PLACES = {
    "stream": "the layer's input (residual stream)",
    "normalised": "the output of the layer's first norm",
}
_RATIO, _LARGEST = "σ₁ / σ_k", "σ₁"
_FIGURES = {  # headings and units by quantity, and what they mean
    "6": ({"c_50": ("C_50", _RATIO), "c_80": ("C_80", _RATIO)},
          "C_p = σ₁ / σ_k with k = p·d rounded up, of the matrix X of valid tokens x d channels; "
          "lower is better conditioned. The paper (IWSLT14, Pre-Norm, layers 2/4/6): RBN's is "
          "lower than LN's, by two orders of magnitude in layer 6."),
    "7": ({"c_max": ("C_max", _LARGEST)},
          "C_max = σ₁ of the matrix X of valid tokens x channels: it grows with the number of "
          "tokens, so compare runs with the same batches. The paper (IWSLT14, Pre-Norm, layers "
          "2/4/6): smaller with RBN than with LN."),
}  # fmt: skip


def conditioning(group: Group, colours: Colours) -> list[Figure | Missing]:
    """Figures 6 and 7, one for each placement and place that was measured."""
    frame = group.frames["conditioning"]
    blocks: list[Figure | Missing] = []
    for number, (quantities, meaning) in _FIGURES.items():
        headings = " and ".join(heading for heading, _ in quantities.values())
        title = f"Paper's Figure {number}: {headings}"
        figures: list[Figure | Missing] = []
        for placement in group.placements:
            for place, words in _PLACES.items():
                rows = frame[(frame["placement"] == placement) & (frame["place"] == place)]
                layers = sorted(rows["layer"].unique())
                grid = [
                    [
                        panel(group, rows[rows["layer"] == layer], None,
                              f"{heading}, layer {layer}", name, unit, colours, x="update",
                              quantity=f"{name} {place} layer {layer}", not_a_number=True, log=True)
                        for layer in layers
                    ]
                    for name, (heading, unit) in quantities.items()
                ]  # fmt: skip
                where = ", ".join(filter(None, (placement, words)))
                name = placement.lower().replace("-", "_") or "runs"
                figures += figure_of_curves(
                    group, f"figure{number}_{name}_{place}", f"{title}, {where}",
                    f"{meaning} X is {words}.", grid,
                )  # fmt: skip
        hint = "Train with `--conditioning-interval N`, N in updates."
        blocks += figures or [Missing(title, hint)]
    return blocks
