"""Figure 4, TID averaged over layers, and what the figures of TID share."""

import math
from collections.abc import Callable, Iterable
from typing import Optional

from rbn_fairseq.report.commands import TID
from rbn_fairseq.report.figures.curves import figure_of_curves
from rbn_fairseq.report.figures.missing import Drawn, or_missing
from rbn_fairseq.report.figures.panel import Panel, curves
from rbn_fairseq.report.figures.training import placed
from rbn_fairseq.report.published import published
from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.series import Group

__all__ = ["MEASURE", "WARNING", "average_tid", "over_layers", "percent", "sampling"]

#: What measures TID during training; it does so by default.
MEASURE = f"`rbn train … --norm-encoder batch` (without --no-tid), or {TID}"
WARNING = (
    "Its model and data (6 + 6 layers, IWSLT14) are not those here unless this section's title "
    "says so."
)


def percent(value: Optional[float]) -> Optional[float]:
    """Turn a fraction into per cent."""
    return None if value is None else 100 * value


def over_layers(name: str) -> Callable[[Run], Iterable[tuple[float, Optional[float]]]]:
    """Read a quantity's average over layers in per cent, by epoch."""

    def values(run: Run) -> Iterable[tuple[float, Optional[float]]]:
        for point in run.tid:
            whole = all(getattr(layer, name) is not None for layer in point.layers)
            yield point.epoch, percent(getattr(point.average, name)) if whole else None

    return values


def sampling(group: Group) -> list[str]:
    """Say on how many batches was measured, and how exactly."""
    found = []
    points = [point for run in group.runs for point in run.tid]
    used = sorted({(it.batches, it.total_batches or 0) for it in points if it.batches})
    if used:
        counts = ", ".join(f"{one} of {all_}" if all_ else f"{one}" for one, all_ in used)
        found.append(f"Measured on {counts} training batches.")
    errors = [
        error
        for point in points
        for layer in point.layers
        for error in (layer.mean_tid_error, layer.var_tid_error)
        if error is not None and not math.isnan(error)
    ]
    if errors:
        found.append(
            f"Sampling error of a single layer's TID: at most {100 * max(errors):.2g} percentage "
            "points at any measurement (standard error over the batches); that of an average over "
            "layers is another."
        )
    populations = sorted({point.population for point in points})
    if populations:
        dropout = {True: "on", False: "off"}
        modes = " and ".join(sorted({dropout[bool(point.dropout)] for point in points}))
        found.append(f"Population: {', '.join(populations)}; dropout {modes}.")
    return found


def average_tid(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """Figure 4: TID averaged over layers through training."""
    pair = published().average_tid["Transformer"]
    kinds = tuple(zip(("mean", "variance"), ("mean", "var"), pair, strict=True))
    grid = [
        row
        for placement in group.placements
        for row in (
            [
                Panel(
                    placed(placement, f"{kind} TID"), f"average {name}_tid", "epoch", "%",
                    curves(group.of(placement), colours, over_layers(f"{name}_tid")), zero=True,
                    references=((value, "BN on IWSLT14, %"),),
                )
                for kind, name, value in kinds
            ],
            [
                Panel(
                    placed(placement, f"{kind} TID given length"),
                    f"average {name}_conditional_tid", "epoch", "%",
                    curves(group.of(placement), colours, over_layers(f"{name}_conditional_tid")),
                    zero=True,
                )
                for kind, name, _ in kinds
            ],
        )
    ]  # fmt: skip
    title = "Figure 4: average TID"
    caption = (
        "TID averaged over all batch norms, by epoch; epoch 0 is before training. The paper draws "
        "WMT16, CoNLL, IMDB and WT103 in Pre-Norm, where RBN ends below BN, and gives numbers for "
        "BN on IWSLT14: 2.8 % (mean) and 4.1 % (variance); ResNet18: 0.8 % and 0.9 %. "
        f"{WARNING}"
    )
    if any(panel.curves for row in grid[1::2] for panel in row):
        caption += (
            " Given length: batches compared with the population of batches of like length, in the "
            "same unit; what is left is not due to bucketing by length."
        )
    figure = figure_of_curves(f"figure4{suffix}", title, caption, grid, sampling(group))
    return or_missing(figure, title, "no run measured TID", MEASURE)
