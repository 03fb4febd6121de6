"""Losses and BLEU through training; the multipliers of --rbn-target-tid."""

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from rbn_fairseq.report.blocks import Figure, Missing
from rbn_fairseq.report.compare import IDENTITY, Group, first_seeds, gaps_by_epoch
from rbn_fairseq.report.figures.curves import figure_of_curves, panel
from rbn_fairseq.report.figures.style import GREY, Colours, legend_below, sheet

__all__ = ["losses", "multipliers", "validation"]

_NLL = "bits per target token"
_RUNS = 4
_PANELS = (  # quantity, axis, factor
    ("mean_multiplier", "λ of mean", 1),
    ("std_multiplier", "λ of std", 1),
    ("mean_gap", "gap of mean, % of ‖σ‖", 100),
    ("std_gap", "gap of std, % of ‖σ‖", 100),
)
# Without the brightest part, which white paper swallows.
_DEPTHS = ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0, 0.92, 256)))


def validation(group: Group, colours: Colours) -> list[Figure | Missing]:
    """Validation nll as difference to layer norm's, and itself, by epoch."""
    valid = group.frames["valid"]
    gaps = gaps_by_epoch(group).drop(columns="series").join(group.runs[IDENTITY], on="run")
    grid = [
        [
            panel(group, gaps, placement, "validation nll minus LN’s", "gap", _NLL, colours,
                  quantity="valid.nll_loss minus LN's", not_a_number=True, line=0.0),
            panel(group, valid, placement, "validation nll", "nll_loss", _NLL, colours,
                  quantity="valid.nll_loss", not_a_number=True),
        ]
        for placement in group.placements
    ]  # fmt: skip
    caption = (
        "Negative log-likelihood on the validation sentences, in bits per target token, without "
        "label smoothing and penalty; lower is better. "
    )
    if len(gaps):
        caption += (
            "Minus LN’s: that of the LN with the same seed and settings, or the mean of its seeds; "
            "below 0: better than LN. "
        )
    title = "Validation loss"
    hint = "Needs `train.log`, which `rbn train` writes."
    return figure_of_curves(group, "validation", title, caption.strip(), grid, hint)


def losses(group: Group, colours: Colours) -> list[Figure | Missing]:
    """The paper's Figure 1: train and valid nll, and BLEU where it was measured, by epoch."""
    quantities = (
        ("train nll", "train", "nll_loss", _NLL),
        ("valid nll", "valid", "nll_loss", _NLL),
        ("valid BLEU", "valid", "bleu", "BLEU"),
    )
    grid = [
        [
            panel(group, group.frames[frame], placement, heading, column, unit, colours,
                  quantity=f"{frame}.{column}", not_a_number=unit == _NLL,
                  differences=gaps_by_epoch(group, frame, column))
            for heading, frame, column, unit in quantities
        ]
        for placement in group.placements
    ]  # fmt: skip
    valid = group.frames["valid"]
    title = "Paper's Figure 1: training dynamics"
    caption = (
        "Negative log-likelihood on training and validation sentences, and BLEU of --eval-bleu, "
        "by epoch. Train nll is with dropout and averaged over the epoch, so it lies above the "
        "valid nll early on. The paper (IWSLT14): BN trains faster than LN, and validates worse "
        "from about epoch 7 or 8 on."
    )
    notes = []
    if not valid["bleu"].notna().any():
        notes.append("BLEU by epoch: no run has it. Train with `--eval-bleu` to have it.")
    hint = "Needs `train.log`, which `rbn train` writes."
    return figure_of_curves(group, "figure1", title, caption, grid, hint, notes)


def _target(group: Group, run: str) -> list[float]:
    """Return the bounds on mean and standard deviation; none where the settings have none."""
    text = group.runs.at[run, "settings"].get("criterion.rbn_target_tid")
    try:
        return [float(part) / 100 for part in str(text).replace(":", ",").split(",")][:2]
    except ValueError:
        return []


def multipliers(group: Group, colours: Colours) -> list[Figure | Missing]:
    """Multipliers by epoch, a line a batch norm, a row a run; nothing where no run has a target."""
    frame = group.frames["multipliers"]
    runs = [run for run in first_seeds(group).index
            if run in set(frame["run"]) and _target(group, run)]  # fmt: skip
    if not runs:
        return []
    shown = runs[:_RUNS]
    notes = ()
    if len(runs) > len(shown):
        notes = (f"Drawn: the first {len(shown)} of {len(runs)} runs; CSV has all.",)
    caption = (
        "Multipliers of the penalty at the end of each epoch, and what they hold: the smoothed "
        "distance (root mean square) of batch from running statistics, relative to the batch's "
        "‖σ‖, with its target dashed. A line a batch norm. A multiplier grows while its gap is "
        "above the target, and falls to 0 where the target is slack."
    )
    columns = ["run", "epoch", "layer", *(name for name, *_ in _PANELS)]
    numbers = pd.concat([frame.loc[frame["run"] == run, columns] for run in runs])
    title = "Multipliers of the target TID"
    return [Figure("multipliers", title, caption, lambda: _draw(group, shown), numbers, notes)]


def _draw(group: Group, shown: list[str]) -> Canvas:
    frame = group.frames["multipliers"]
    with sheet(len(shown), len(_PANELS), width=3.6) as (canvas, grid):
        for run, row in zip(shown, grid, strict=True):
            points = frame[frame["run"] == run]
            layers = points["layer"].unique()
            depths = _DEPTHS(np.linspace(0, 1, len(layers)))
            row[0].set_title(group.placed(group.runs.at[run, "placement"], run), fontsize=9.5)
            targets = dict(zip(("mean_gap", "std_gap"), _target(group, run), strict=False))
            for axes, first, (name, label, factor) in zip(row, grid[0], _PANELS, strict=True):
                if axes is not first:
                    axes.sharey(first)
                for layer, colour in zip(layers, depths, strict=True):
                    line = points[(points["layer"] == layer) & points[name].notna()]
                    style = {"color": colour, "markersize": 2.5}
                    axes.plot(line["epoch"], factor * line[name], "o-", **style)
                if name in targets:
                    style = {"color": GREY, "linestyle": "--", "linewidth": 1}
                    axes.axhline(factor * targets[name], label="target", **style)
                axes.set(xlabel="epoch", ylabel=label)
                axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        for axes in grid[0]:
            axes.set_ylim(bottom=0)
        legend_below(canvas, canvas.axes)
        depth = canvas.colorbar(
            ScalarMappable(cmap=_DEPTHS), ax=canvas.axes, label="depth of the batch norm", pad=0.02
        )
        depth.set_ticks([0, 1], labels=["input", "output"])
        return canvas
