"""Figure 2: deviation of batch statistics through training and by depth, by both readings."""

from collections.abc import Callable, Iterable
from typing import Optional

from rbn_fairseq.report.commands import TID
from rbn_fairseq.report.figures.curves import figure_of_curves
from rbn_fairseq.report.figures.missing import Drawn, or_missing
from rbn_fairseq.report.figures.panel import Panel, curves
from rbn_fairseq.report.figures.tid import MEASURE, WARNING, over_layers, percent, sampling
from rbn_fairseq.report.figures.training import placed
from rbn_fairseq.report.published import published
from rbn_fairseq.report.records import LayerTID
from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.series import Group

__all__ = ["deviation", "deviation_by_depth"]

_READINGS = {
    "deviation": "relative to ||μ|| and ||v|| (relative deviation)",
    "tid": "relative to ||σ|| (TID)",
}


def _by_layer(name: str) -> Callable[[Run], Iterable[tuple[float, Optional[float]]]]:
    def values(run: Run) -> Iterable[tuple[float, Optional[float]]]:
        for depth, layer in enumerate(run.tid[-1].layers if run.tid else (), 1):
            yield depth, percent(getattr(layer, name))

    return values


def _layers(group: Group) -> list[LayerTID]:
    return [layer for run in group.runs for point in run.tid for layer in point.layers]


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
                found = curves(group.of(placement), colours, over_layers(name))
                references = [(pair[number], f"{model}, %") for model, pair in paper.items()]
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
    notes = sampling(group)
    if not any(layer.mean_deviation is not None for layer in _layers(group)):
        notes.append(
            f"Relative deviation: these runs are of a version that did not measure it; {TID} does."
        )
    figure = figure_of_curves(f"figure2_top{suffix}", title, caption, grid, notes)
    return or_missing(figure, title, "no run measured TID", MEASURE)


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
