"""Figures 2 and 4: TID and deviation of batch statistics, through training and by depth."""

from collections.abc import Sequence

import numpy as np

from rbn_fairseq.report.blocks import Figure, Panel
from rbn_fairseq.report.figures.curves import figure_of_curves, panel
from rbn_fairseq.report.figures.style import Colours
from rbn_fairseq.report.groups import IDENTITY, Group, of_largest

_OF_STD = "% of ‖σ‖"
#: A panel: column, heading, unit, and the paper's values, each with its name.
_Column = tuple[str, str, str, tuple[tuple[float, str], ...]]


def _over_layers(
    group: Group, colours: Colours, rows: Sequence[Sequence[_Column]], prefix: str = ""
) -> list[list[Panel]]:
    """Return panels of quantities averaged over layers, by epoch; none where a layer lacks it.

    CSV has ``prefix`` before the columns' names.
    """
    by_epoch = group.frames["tid"].groupby(["run", "epoch", *IDENTITY], sort=False, dropna=False)
    columns = [column for row in rows for column, *_ in row]
    means = by_epoch[columns].agg(lambda values: values.mean(skipna=False)).reset_index()
    return [
        [
            panel(group, means, placement, heading, column, unit, colours,
                  quantity=prefix + column, factor=100, zero=True, references=paper)
            for column, heading, unit, paper in row
        ]
        for placement in group.placements
        for row in rows
    ]  # fmt: skip


def _sampling(group: Group) -> list[str]:
    """Say on how many batches was measured, how, and how exactly."""
    tid = group.frames["tid"]
    if not len(tid):
        return []
    batches = ", ".join(f"{number:g}" for number in sorted(set(tid["batches"].dropna())))
    populations = ", ".join(sorted(set(tid["population"])))
    modes = " and ".join(sorted({"on" if dropout else "off" for dropout in tid["dropout"]}))
    text = f"Measured on {batches} training batches, dropout {modes}; population: {populations}."
    error = tid[["mean_tid_error", "var_tid_error"]].max(axis=None)
    if not np.isnan(error):
        text += (
            f" Standard error over batches of a single layer's TID: at most {100 * error:.2g} "
            "percentage points."
        )
    return [text]


def average_tid(group: Group, colours: Colours) -> list[Figure]:
    """Figure 4: TID averaged over layers through training."""
    rows: tuple[tuple[_Column, _Column], ...] = (
        (("mean_tid", "mean TID", _OF_STD, ((2.8, "BN on IWSLT14"),)),
         ("var_tid", "variance TID", _OF_STD, ((4.1, "BN on IWSLT14"),))),
        (("mean_conditional_tid", "mean TID given length", _OF_STD, ()),
         ("var_conditional_tid", "variance TID given length", _OF_STD, ())),
    )  # fmt: skip
    grid = _over_layers(group, colours, rows, "average ")
    title = "Paper's Figure 4: average TID"
    caption = (
        "TID averaged over all batch norms, by epoch; epoch 0 is before training. The paper draws "
        "WMT16, CoNLL, IMDB and WT103 in Pre-Norm, where RBN ends below BN, and gives numbers for "
        "BN on IWSLT14: 2.8 % (mean) and 4.1 % (variance); ResNet18: 0.8 % and 0.9 %. Given "
        "length: batches compared with the population of batches of like length, in the same unit; "
        "what is left is not due to bucketing by length."
    )
    return figure_of_curves(group, "figure4", title, caption, grid, _sampling(group))


def deviation(group: Group, colours: Colours) -> list[Figure]:
    """Figure 2, top: deviation of batches from the population through training."""
    rows: tuple[tuple[_Column, _Column], ...] = (
        (("mean_deviation", "relative deviation, mean", "% of ‖μ‖",
          ((11, "Transformer"), (4, "ResNet18"))),
         ("var_deviation", "relative deviation, variance", "% of ‖v‖",
          ((13, "Transformer"), (4, "ResNet18")))),
        (("mean_tid", "TID, mean", _OF_STD, ()), ("var_tid", "TID, variance", _OF_STD, ())),
    )  # fmt: skip
    grid = _over_layers(group, colours, rows)
    title = "Paper's Figure 2, top: deviation of batch statistics"
    caption = (
        "How far a batch's mean and variance are from the population's, averaged over batches and "
        "layers, by both readings of the paper's definition: relative to ‖μ‖ and ‖v‖ (relative "
        "deviation) and relative to ‖σ‖ (TID). The paper ends at 11 % (mean) and 13 % (variance) "
        "with a Transformer (6 + 6 layers, IWSLT14), 4 % and 4 % with ResNet18. Epoch 0: before "
        "training."
    )
    return figure_of_curves(group, "figure2_top", title, caption, grid, _sampling(group))


def deviation_by_depth(group: Group, colours: Colours) -> list[Figure]:
    """Figure 2, bottom: by layer, at the last measurement."""
    x = "batch norm, from input to output"
    last = of_largest(group.frames["tid"], "update").rename(columns={"depth": x})
    names = {
        "var_deviation": ("variance deviation", "% of ‖v‖"),
        "var_tid": ("variance TID", _OF_STD),
        "mean_tid": ("mean TID", _OF_STD),
    }
    grid = [
        [
            panel(group, last, placement, heading, name, unit, colours, x=x, factor=100, zero=True)
            for name, (heading, unit) in names.items()
        ]
        for placement in group.placements
    ]  # fmt: skip
    title = "Paper's Figure 2, bottom: deviation by depth"
    caption = (
        "At each run's last measurement. Variance deviation is relative to ‖v‖, TID to ‖σ‖. "
        "The paper: the last batch norms, close to the output, have a large one in the Transformer."
    )
    return figure_of_curves(group, "figure2_bottom", title, caption, grid)
