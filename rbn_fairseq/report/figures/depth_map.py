"""Figure 2, bottom right: deviation by depth and epoch, a map a run."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.figures.missing import Drawn, Missing
from rbn_fairseq.report.figures.style import sheet
from rbn_fairseq.report.figures.tid import MEASURE
from rbn_fairseq.report.figures.training import placed
from rbn_fairseq.report.series import Group, first_seeds

__all__ = ["depth_map"]

_MAPS = 4


def depth_map(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """Figure 2, bottom: the same by layer and epoch, a map a run, BN's first."""
    title = "Figure 2, map: variance deviation by depth and epoch"
    measured = [
        (series, run)
        for series, run in first_seeds(group)
        if len(run.tid) > 1 and len({len(point.layers) for point in run.tid}) == 1
    ][:_MAPS]
    if not measured:
        return Missing(title, "no run measured TID at two epochs", MEASURE)
    layers = [layer for _, run in measured for point in run.tid for layer in point.layers]
    whole = all(layer.var_deviation is not None for layer in layers)
    name, unit = ("var_deviation", "variance deviation, %") if whole else ("var_tid", "var. TID, %")
    maps = [
        np.array([[100 * getattr(it, name) for it in point.layers] for point in run.tid]).T
        for _, run in measured
    ]
    headings = [f"{placed(series.placement, series.norm)}, {run.name}" for series, run in measured]
    epochs = [[point.epoch for point in run.tid] for _, run in measured]
    rows = [
        (run.name, point.epoch, depth, layer.layer, getattr(layer, name))
        for _, run in measured
        for point in run.tid
        for depth, layer in enumerate(point.layers, 1)
    ]
    caption = (
        f"{'Variance deviation, relative to ||v||' if whole else 'Variance TID, relative to ||σ||'}"
        ", by layer (from input, 1, to output) and epoch. One colour scale for all maps."
    )
    return Figure(
        f"figure2_map{suffix}", title, caption,
        lambda: _draw_maps(maps, epochs, headings, unit),
        ("run", "epoch", "depth", "layer", name), tuple(rows),
    )  # fmt: skip


def _draw_maps(
    maps: Sequence[Any], epochs: Sequence[Sequence[int]], headings: Sequence[str], unit: str
) -> Canvas:
    columns = min(2, len(maps))
    with sheet(-(-len(maps) // columns), columns) as (canvas, grid):
        axes = [one for row in grid for one in row]
        finite = [values[np.isfinite(values)] for values in maps]
        top = max((values.max() for values in finite if values.size), default=1.0)
        for one, values, own, heading in zip(axes, maps, epochs, headings, strict=False):
            edges = [*own, own[-1] + 1]  # an epoch's column begins at its number
            depths = np.arange(values.shape[0] + 1) + 0.5
            image = one.pcolormesh(edges, depths, values, cmap="viridis", vmin=0, vmax=top)
            one.set(title=heading, xlabel="epoch", ylabel="batch norm")
            one.title.set_fontsize(9.5)
            one.grid(visible=False)
            centres = [(a + b) / 2 for a, b in zip(edges[:-1], edges[1:], strict=True)]
            step = -(-len(own) // 8)
            one.set_xticks(centres[::step], [str(epoch) for epoch in own[::step]])
            one.yaxis.set_major_locator(MaxNLocator(integer=True))
        for one in axes[len(maps) :]:
            one.axis("off")
        canvas.colorbar(image, ax=axes, label=unit)
        return canvas
