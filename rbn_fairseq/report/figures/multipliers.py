"""The multipliers of --rbn-target-tid and the gaps that they hold, by epoch and batch norm."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from rbn_fairseq.criterions.options import parse_target
from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.figures.style import GREY, legend_below, sheet
from rbn_fairseq.report.figures.training import placed
from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.series import Group, Series, first_seeds

__all__ = ["multipliers"]

_RUNS = 4
_PANELS = (  # quantity, axis, factor
    ("mean_multiplier", "λ of mean", 1),
    ("std_multiplier", "λ of std", 1),
    ("mean_gap", "gap of mean, % of ||σ||", 100),
    ("std_gap", "gap of std, % of ||σ||", 100),
)
# Without the brightest part, which white paper swallows.
_DEPTHS = ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0, 0.92, 256)))


def multipliers(group: Group, colours: dict[str, str], suffix: str = "") -> list[Figure]:
    """Multipliers by epoch, a line a batch norm, a row a run; nothing where no run has a target."""
    found = [(one, run) for one, run in first_seeds(group) if run.multipliers and _target(run)]
    if not found:
        return []
    shown = found[:_RUNS]
    rows = [
        (run.name, it.epoch, it.layer, *(getattr(it, name) for name, *_ in _PANELS))
        for _, run in found
        for it in run.multipliers
    ]
    notes = []
    if len(found) > len(shown):
        notes.append(f"Drawn: the first {len(shown)} of {len(found)} runs; CSV has all.")
    caption = (
        "Multipliers of the penalty at the end of each epoch, and what they hold: the smoothed "
        "distance (root mean square) of batch from running statistics, relative to the batch's "
        "||σ||, with its target dashed. A line a batch norm. A multiplier grows while its gap is "
        "above the target, and falls to 0 where the target is slack."
    )
    header = ("run", "epoch", "layer", *(name for name, *_ in _PANELS))
    title = "Multipliers of the target TID"
    return [
        Figure(
            f"multipliers{suffix}", title, caption, lambda: _draw(shown), header, tuple(rows),
            tuple(notes),
        )
    ]  # fmt: skip


def _target(run: Run) -> tuple[float, ...]:
    """Return the bounds on mean and standard deviation; nothing where the settings have none."""
    text = run.settings.get("criterion", {}).get("rbn_target_tid")
    return () if text is None else parse_target(str(text))


def _draw(shown: Sequence[tuple[Series, Run]]) -> Canvas:
    with sheet(len(shown), len(_PANELS), width=3.6) as (canvas, grid):
        for (series, run), row in zip(shown, grid, strict=True):
            layers = list(dict.fromkeys(it.layer for it in run.multipliers))
            colours = _DEPTHS(np.linspace(0, 1, len(layers)))
            row[0].set_title(placed(series.placement, run.name), fontsize=9.5)
            targets = dict(zip(("mean_gap", "std_gap"), _target(run), strict=True))
            for axes, first, (name, label, factor) in zip(row, grid[0], _PANELS, strict=True):
                if axes is not first:
                    axes.sharey(first)
                for layer, colour in zip(layers, colours, strict=True):
                    points = [
                        (it.epoch, factor * getattr(it, name))
                        for it in run.multipliers
                        if it.layer == layer and getattr(it, name) is not None
                    ]
                    if points:
                        axes.plot(*zip(*points, strict=True), "o-", color=colour, markersize=2.5)
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
