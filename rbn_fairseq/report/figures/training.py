"""Losses, scores and the conditioning of layers' inputs through training."""

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.figures.curves import figure_of_curves, panel
from rbn_fairseq.report.figures.style import Colours
from rbn_fairseq.report.groups import Group, by_epoch
from rbn_fairseq.report.means import gaps_by_epoch


def validation(group: Group, colours: Colours) -> list[Figure]:
    """Validation nll as difference to layer norm's, and itself, by epoch."""
    valid, unit = by_epoch(group.frames["valid"]), group.metric.unit
    gaps = gaps_by_epoch(group)
    grid = [
        [
            panel(group, gaps, placement, "validation nll minus LN’s", "gap", unit, colours,
                  quantity="valid.nll_loss minus LN's", not_a_number=True, line=0.0),
            panel(group, valid, placement, "validation nll", "nll_loss", unit, colours,
                  quantity="valid.nll_loss", not_a_number=True),
        ]
        for placement in group.placements
    ]  # fmt: skip
    caption = (
        f"Negative log-likelihood on the validation sentences, in {unit}, without "
        "label smoothing and penalty; lower is better. The difference is to the LN with the same "
        "seed and settings (also FixNorm and the like where there is one), or to the mean of its "
        "seeds; below 0: better than LN."
    )
    title = "Validation loss"
    return figure_of_curves(group, "validation", title, caption, grid)


def losses(group: Group, colours: Colours) -> list[Figure]:
    """The paper's Figure 1: train and valid nll, and the score where it was measured, by epoch."""
    nll = group.metric.unit
    quantities = (
        ("train nll", "train", "nll_loss", nll),
        ("valid nll", "valid", "nll_loss", nll),
        (f"valid {group.metric.name}", "valid", group.metric.key, group.metric.name),
    )
    grid = [
        [
            panel(group, by_epoch(group.frames[frame]), placement, heading, column, unit, colours,
                  quantity=f"{frame}.{column}", not_a_number=unit == nll,
                  differences=gaps_by_epoch(group, frame, column))
            for heading, frame, column, unit in quantities
        ]
        for placement in group.placements
    ]  # fmt: skip
    title = "Paper's Figure 1: training dynamics"
    caption = (
        f"Negative log-likelihood on training and validation sentences, and {group.metric.name} "
        "where it was measured, by epoch. Train nll is with dropout and averaged over the epoch, "
        "so it lies above the valid nll early on. The paper (IWSLT14): BN trains faster than LN, "
        "and validates worse from about epoch 7 or 8 on."
    )
    return figure_of_curves(group, "figure1", title, caption, grid)


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


def conditioning(group: Group, colours: Colours) -> list[Figure]:
    """Figures 6 and 7, one for each placement and place that was measured."""
    frame = group.frames["conditioning"]
    blocks: list[Figure] = []
    for number, (quantities, meaning) in _FIGURES.items():
        headings = " and ".join(heading for heading, _ in quantities.values())
        title = f"Paper's Figure {number}: {headings}"
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
                blocks += figure_of_curves(
                    group, f"figure{number}_{name}_{place}", f"{title}, {where}",
                    f"{meaning} X is {words}.", grid,
                )  # fmt: skip
    return blocks
