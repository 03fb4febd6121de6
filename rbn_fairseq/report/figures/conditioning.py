"""Figures 6 and 7: conditioning of the encoder layers' inputs through training."""

from collections.abc import Callable, Iterable
from typing import Optional

from rbn_fairseq.report.figures.curves import figure_of_curves
from rbn_fairseq.report.figures.missing import Drawn, or_missing
from rbn_fairseq.report.figures.panel import Panel, curves
from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.series import Group

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
_COMMAND = "`rbn train … --conditioning-interval N`, N in updates"


def _values(
    layer: int, place: str, name: str
) -> Callable[[Run], Iterable[tuple[float, Optional[float]]]]:
    def values(run: Run) -> Iterable[tuple[float, Optional[float]]]:
        for it in run.conditioning:
            if (it.layer, it.place) == (layer, place):
                yield it.update, getattr(it, name)

    return values


def _figure(
    group: Group, colours: dict[str, str], suffix: str, number: str, placement: str, place: str
) -> Drawn:
    series = group.of(placement)
    found = {it.layer for one in series for run in one.runs for it in run.conditioning}
    grid = [
        [
            Panel(
                f"{heading}, layer {layer}", f"{name} {place} layer {layer}", "update", heading,
                curves(series, colours, _values(layer, place, name)), log=True,
            )
            for layer in sorted(found)
        ]
        for name, heading in _FIGURES[number]
    ] or [[]]  # fmt: skip
    what = " and ".join(heading for _, heading in _FIGURES[number])
    where = ", ".join(filter(None, (placement, _PLACES[place])))
    title = f"Figure {number}: {what}, {where}"
    name = "_".join((f"figure{number}", placement.lower().replace("-", "_") or "runs", place))
    caption = f"{_MEANING[number]} X is {_PLACES[place]}."
    figure = figure_of_curves(f"{name}{suffix}", title, caption, grid)
    return or_missing(figure, title, "no run measured conditioning there", _COMMAND)


def conditioning(group: Group, colours: dict[str, str], suffix: str = "") -> list[Drawn]:
    """Figures 6 and 7 by placement and place; what nothing was measured of is left out.

    If nothing was measured at all, one entry for each figure says so.
    """
    present = [
        (placement, place)
        for placement in group.placements
        for place in _PLACES
        if any(
            it.place == place
            for one in group.of(placement)
            for r in one.runs
            for it in r.conditioning
        )
    ]
    if not present:
        present = [(group.placements[0], "stream")]
    return [
        _figure(group, colours, suffix, number, placement, place)
        for number in _FIGURES
        for placement, place in present
    ]
