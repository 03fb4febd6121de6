"""Figures 2 and 4: TID and deviation of batch statistics, through training and by depth."""

from collections.abc import Mapping, Sequence

import numpy as np

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.compare import IDENTITY, Group, of_largest
from rbn_fairseq.report.figures.curves import figure_of_curves, panel
from rbn_fairseq.report.figures.panels import Panel
from rbn_fairseq.report.figures.style import Colours

_WARNING = (
    "Its model and data (6 + 6 layers, IWSLT14) are not those here unless this section's title "
    "says so."
)
_Reading = tuple[str, str, tuple[str, str], Mapping[str, tuple[float, float]]]
_OF_STD = ("% of ‖σ‖", "% of ‖σ‖")
_KINDS = (("mean", "mean"), ("variance", "var"))


def _over_layers(
    group: Group, colours: Colours, readings: Sequence[_Reading], prefix: str = ""
) -> list[list[Panel]]:
    """Return panels of quantities averaged over layers, by epoch; none where a layer lacks it.

    A row for each of ``readings``: its name, its heading, the units of mean and variance, and the
    paper's mean and variance by model. CSV has ``prefix`` before the quantities' names.
    """
    by_epoch = group.frames["tid"].groupby(["run", "epoch", *IDENTITY], sort=False, dropna=False)
    grid = []
    for placement in group.placements:
        for reading, heading, units, paper in readings:
            row = []
            for number, (kind, short) in enumerate(_KINDS):
                name = f"{short}_{reading}"
                means = by_epoch[name].agg(lambda values: values.mean(skipna=False)).reset_index()
                references = tuple((pair[number], model) for model, pair in paper.items())
                row.append(
                    panel(
                        group, means, placement, heading.format(kind), name, units[number],
                        colours, quantity=prefix + name, factor=100, zero=True,
                        references=references,
                    )
                )  # fmt: skip
            grid.append(row)
    return grid


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
    paper = {"BN on IWSLT14": (2.8, 4.1)}
    readings: tuple[_Reading, ...] = (
        ("tid", "{} TID", _OF_STD, paper),
        ("conditional_tid", "{} TID given length", _OF_STD, {}),
    )
    grid = _over_layers(group, colours, readings, "average ")
    title = "Paper's Figure 4: average TID"
    caption = (
        "TID averaged over all batch norms, by epoch; epoch 0 is before training. The paper draws "
        "WMT16, CoNLL, IMDB and WT103 in Pre-Norm, where RBN ends below BN, and gives numbers for "
        "BN on IWSLT14: 2.8 % (mean) and 4.1 % (variance); ResNet18: 0.8 % and 0.9 %. "
        f"{_WARNING} Given length, where it was measured: batches compared with the population of "
        "batches of like length, in the same unit; what is left is not due to bucketing by length."
    )
    return figure_of_curves(group, "figure4", title, caption, grid, _sampling(group))


def deviation(group: Group, colours: Colours) -> list[Figure]:
    """Figure 2, top: deviation of batches from the population through training."""
    paper = {"Transformer": (11, 13), "ResNet18": (4, 4)}
    readings: tuple[_Reading, ...] = (
        ("deviation", "relative deviation, {}", ("% of ‖μ‖", "% of ‖v‖"), paper),
        ("tid", "TID, {}", _OF_STD, {}),
    )
    grid = _over_layers(group, colours, readings)
    title = "Paper's Figure 2, top: deviation of batch statistics"
    caption = (
        "How far a batch's mean and variance are from the population's, averaged over batches and "
        "layers, by both readings of the paper's definition: relative to ‖μ‖ and ‖v‖ (relative "
        "deviation) and relative to ‖σ‖ (TID). The paper ends at 11 % (mean) and 13 % (variance) "
        f"with a Transformer, 4 % and 4 % with ResNet18. {_WARNING} Epoch 0: before training."
    )
    return figure_of_curves(group, "figure2_top", title, caption, grid, _sampling(group))


def deviation_by_depth(group: Group, colours: Colours) -> list[Figure]:
    """Figure 2, bottom: by layer, at the last measurement."""
    last = of_largest(group.frames["tid"], "update")
    names = {
        "var_deviation": ("variance deviation", "% of ‖v‖"),
        "var_tid": ("variance TID", _OF_STD[1]),
        "mean_tid": ("mean TID", _OF_STD[0]),
    }
    grid = [
        [
            panel(group, last, placement, heading, name, unit, colours, x="depth",
                  x_label="batch norm, from input to output", factor=100, zero=True)
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
