"""Figures 2 and 4: deviation and TID through training, by depth, and both as a map."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional

import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.figures.curves import Panel, curves, figure_of_curves
from rbn_fairseq.report.figures.missing import Drawn, Missing, or_missing
from rbn_fairseq.report.figures.style import sheet
from rbn_fairseq.report.figures.training import placed
from rbn_fairseq.report.grouping import Group, Series
from rbn_fairseq.report.published import published
from rbn_fairseq.report.records import LayerTID
from rbn_fairseq.report.runs import Run

__all__ = [
    "MEASURE",
    "average_tid",
    "depth_map",
    "deviation",
    "deviation_by_depth",
    "first_seeds",
    "percent",
]

#: What measures TID during training; it does so by default.
MEASURE = "`rbn train … --norm-encoder batch` (without --no-tid), or `rbn tid SAVE_DIR`"
WARNING = (
    "Its model and data (6 + 6 layers, IWSLT14) are not those here unless this section's title "
    "says so."
)
_MAPS = 4
_READINGS = {
    "deviation": "relative to ||μ|| and ||v|| (relative deviation)",
    "tid": "relative to ||σ|| (TID)",
}


def percent(value: Optional[float]) -> Optional[float]:
    """Turn a fraction into per cent."""
    return None if value is None else 100 * value


def _average(name: str) -> Callable[[Run], Iterable[tuple[float, Optional[float]]]]:
    def values(run: Run) -> Iterable[tuple[float, Optional[float]]]:
        for point in run.tid:
            whole = all(getattr(layer, name) is not None for layer in point.layers)
            yield point.epoch, percent(getattr(point.average, name)) if whole else None

    return values


def _by_layer(name: str) -> Callable[[Run], Iterable[tuple[float, Optional[float]]]]:
    def values(run: Run) -> Iterable[tuple[float, Optional[float]]]:
        for depth, layer in enumerate(run.tid[-1].layers if run.tid else (), 1):
            yield depth, percent(getattr(layer, name))

    return values


def _sampling(group: Group) -> list[str]:
    """Say on how many batches was measured, and how exactly."""
    found = []
    points = [run.tid[-1] for run in group.runs if run.tid]
    used = sorted({(it.batches, it.total_batches) for it in points if it.batches})
    if used:
        counts = ", ".join(f"{one} of {all_}" if all_ else f"{one}" for one, all_ in used)
        found.append(f"Measured on {counts} training batches.")
    errors = [
        error
        for point in points
        for layer in point.layers
        for error in (layer.mean_tid_error, layer.var_tid_error)
        if error is not None
    ]
    if errors:
        found.append(
            f"Sampling error of a layer's TID, at most: {100 * max(errors):.2g} percentage points "
            "(standard error over the batches)."
        )
    populations = sorted({point.population for point in points})
    if populations:
        dropout = {True: "on", False: "off"}
        modes = " and ".join(sorted({dropout[bool(point.dropout)] for point in points}))
        found.append(f"Population: {', '.join(populations)}; dropout {modes}.")
    return found


def deviation(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """Figure 2, top: deviation of batches from the population through training."""
    paper = published().deviation
    grid = []
    for placement in group.placements:
        for reading in _READINGS:
            kinds = {"mean": f"mean_{reading}", "variance": f"var_{reading}"}
            names = {"deviation": "relative deviation", "tid": "TID"}
            row = []
            for number, (kind, name) in enumerate(kinds.items()):
                found = curves(group.of(placement), colours, _average(name))
                references = [
                    (pair[number], f"paper, {model}: {pair[number]:g} %")
                    for model, pair in paper.items()
                ]
                heading = placed(placement, f"{names[reading]}, {kind}")
                shown = tuple(references) if reading == "deviation" else ()
                row.append(Panel(heading, name, "epoch", "%", found, zero=True, references=shown))
            grid.append(row)
    title = "Figure 2, top: deviation of batch statistics"
    caption = (
        "How far a batch's mean and variance are from the population's, averaged over batches and "
        f"layers, by both readings of the paper's definition: {' and '.join(_READINGS.values())}. "
        "The paper ends at 11 % (mean) and 13 % (variance) with a Transformer, 4 % and 4 % with "
        f"ResNet18. {WARNING} Epoch 0: before training."
    )
    notes = _sampling(group)
    if not any(layer.mean_deviation is not None for layer in _layers(group)):
        notes.append(
            "Relative deviation: these runs are of a version that did not measure it; "
            "`rbn tid SAVE_DIR` does."
        )
    figure = figure_of_curves(f"figure2_top{suffix}", title, caption, grid, notes)
    return or_missing(figure, title, "no run measured TID", MEASURE)


def _layers(group: Group) -> list[LayerTID]:
    return [layer for run in group.runs for point in run.tid for layer in point.layers]


def deviation_by_depth(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """Figure 2, bottom: by layer, at the last measurement."""
    names = {
        "var_deviation": "variance deviation",
        "var_tid": "variance TID",
        "mean_tid": "mean TID",
    }
    grid = [
        [
            Panel(
                placed(placement, heading), name, "batch norm, from input to output", "%",
                curves(group.of(placement), colours, _by_layer(name)), zero=True,
            )
            for name, heading in names.items()
        ]
        for placement in group.placements
    ]  # fmt: skip
    title = "Figure 2, bottom: deviation by depth"
    caption = (
        "At each run's last measurement. Variance deviation is relative to ||v||, TID to ||σ||. "
        "The paper: the last batch norms, close to the output, have a large one in the Transformer."
    )
    figure = figure_of_curves(f"figure2_bottom{suffix}", title, caption, grid)
    return or_missing(figure, title, "no run measured TID", MEASURE)


def average_tid(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """Figure 4: TID averaged over layers through training."""
    pair = published().average_tid["Transformer"]
    grid = [
        [
            Panel(
                placed(placement, f"{kind} TID"), f"average {name}", "epoch", "%",
                curves(group.of(placement), colours, _average(name)), zero=True,
                references=((pair[number], f"paper, BN on IWSLT14: {pair[number]:g} %"),),
            )
            for number, (kind, name) in enumerate((("mean", "mean_tid"), ("variance", "var_tid")))
        ]
        for placement in group.placements
    ]  # fmt: skip
    title = "Figure 4: average TID"
    caption = (
        "TID averaged over all batch norms, by epoch; epoch 0 is before training. The paper draws "
        "WMT16, CoNLL, IMDB and WT103 in Pre-Norm, where RBN ends below BN, and gives numbers for "
        "BN on IWSLT14: 2.8 % (mean) and 4.1 % (variance); ResNet18: 0.8 % and 0.9 %. "
        f"{WARNING}"
    )
    figure = figure_of_curves(f"figure4{suffix}", title, caption, grid, _sampling(group))
    return or_missing(figure, title, "no run measured TID", MEASURE)


def first_seeds(group: Group) -> list[tuple[Series, Run]]:
    """All runs: BN's before others', and of each the first seed before the second."""
    ordered = sorted(group.series, key=lambda one: one.norm != "BN")
    found = [(at, one, run) for one in ordered for at, run in enumerate(one.runs)]
    return [(one, run) for _, one, run in sorted(found, key=lambda it: it[0])]


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
