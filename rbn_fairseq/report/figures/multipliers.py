"""The multipliers of --rbn-target-tid and the gaps that they hold, by epoch and batch norm."""

from collections.abc import Sequence

import matplotlib
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
_PANELS = (  # quantity, title, axis, factor
    ("mean_multiplier", "λ, mean", "multiplier", 1),
    ("std_multiplier", "λ, deviation", "multiplier", 1),
    ("mean_tid", "gap, mean", "% of ||σ||", 100),
    ("std_tid", "gap, deviation", "% of ||σ||", 100),
)


def multipliers(group: Group, colours: dict[str, str], suffix: str = "") -> list[Figure]:
    """Multipliers by epoch, a line a batch norm, a row a run; nothing where no run has them."""
    shown = [(series, run) for series, run in first_seeds(group) if run.multipliers][:_RUNS]
    if not shown:
        return []
    rows = [
        (run.name, it.epoch, it.layer, *(getattr(it, name) for name, *_ in _PANELS))
        for _, run in shown
        for it in run.multipliers
    ]
    caption = (
        "Multipliers of the penalty per token at the end of each epoch, and what they hold: the "
        "smoothed distance of batch from running statistics, relative to ||σ||, with its target "
        "dashed. A line a batch norm, dark at the input, bright at the output. A multiplier "
        "grows while its gap is above the target, and falls to 0 where the target is slack."
    )
    header = ("run", "epoch", "layer", *(name for name, *_ in _PANELS))
    title = "Multipliers of the target TID"
    return [
        Figure(f"multipliers{suffix}", title, caption, lambda: _draw(shown), header, tuple(rows))
    ]


def _target(run: Run) -> tuple[float, float]:
    return parse_target(str(run.settings["criterion"]["rbn_target_tid"]))


def _draw(shown: Sequence[tuple[Series, Run]]) -> Canvas:
    with sheet(len(shown), len(_PANELS), width=3.6) as (canvas, grid):
        for (series, run), row in zip(shown, grid, strict=True):
            layers = list(dict.fromkeys(it.layer for it in run.multipliers))
            scale = matplotlib.colormaps["viridis"].resampled(len(layers) + 1)
            targets = dict(zip(("mean_tid", "std_tid"), _target(run), strict=True))
            for axes, (name, heading, unit, factor) in zip(row, _PANELS, strict=True):
                for depth, layer in enumerate(layers):
                    points = [
                        (it.epoch, factor * getattr(it, name))
                        for it in run.multipliers
                        if it.layer == layer and getattr(it, name) is not None
                    ]
                    if points:
                        x, y = zip(*points, strict=True)
                        label = f"batch norm {depth + 1} of {len(layers)}"
                        axes.plot(x, y, color=scale(depth), marker="o", markersize=2.5, label=label)
                if name in targets:
                    style = {"color": GREY, "linestyle": "--", "linewidth": 1}
                    axes.axhline(factor * targets[name], label="target", **style)
                heading = f"{placed(series.placement, run.name)}: {heading}"
                axes.set(title=heading, xlabel="epoch", ylabel=unit)
                axes.title.set_fontsize(9.5)
                axes.set_ylim(bottom=0)
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend_below(canvas, canvas.axes)
        return canvas
