"""Population statistics through training, channels near eps, outlier channels."""

from collections.abc import Callable, Iterable
from typing import Optional

from rbn_fairseq.report.figures.curves import figure_of_curves
from rbn_fairseq.report.figures.missing import Drawn, or_missing
from rbn_fairseq.report.figures.panel import Panel, curves
from rbn_fairseq.report.figures.tid import percent
from rbn_fairseq.report.figures.training import placed
from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.series import Group

__all__ = ["channels", "drift"]

_COMMAND = "`rbn train … --norm-encoder batch` with this version of the monitor"
_DRIFT = {
    "mean_drift": "drift of the mean",
    "var_drift": "drift of the deviation",
    "mean_lag": "lag of the mean",
    "var_lag": "lag of the deviation",
}


def _average(name: str) -> Callable[[Run], Iterable[tuple[float, Optional[float]]]]:
    return lambda run: ((it.epoch, percent(getattr(it.average, name))) for it in run.tid)


def drift(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """Movement of the running statistics, and their distance from the population."""
    names = list(_DRIFT)
    grid = [
        [
            Panel(
                placed(placement, _DRIFT[name]), f"average {name}", "epoch", "% of ||σ||",
                curves(group.of(placement), colours, _average(name)), zero=True,
            )
            for name in pair
        ]
        for placement in group.placements
        for pair in (names[:2], names[2:])
    ]  # fmt: skip
    title = "Drift and lag of the running statistics"
    caption = (
        "Drift: how far the running mean and running standard deviation moved since the "
        "measurement before. Lag: how far they are from the population measured with the same "
        "weights. Both relative to ||σ||, averaged over batch norms."
    )
    figure = figure_of_curves(f"drift{suffix}", title, caption, grid)
    return or_missing(figure, title, "no run measured drift or lag", _COMMAND)


def _by_layer(name: str, factor: float) -> Callable[[Run], Iterable[tuple[float, Optional[float]]]]:
    def values(run: Run) -> Iterable[tuple[float, Optional[float]]]:
        for depth, layer in enumerate(run.tid[-1].layers if run.tid else (), 1):
            value = getattr(layer, name)
            yield depth, None if value is None else factor * value

    return values


def channels(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """Share of channels near eps, and the largest channel beside the median one, by layer."""
    depth = "batch norm, from input to output"
    grid = [
        [
            Panel(
                placed(placement, "channels near eps"), "near_eps", depth, "% of channels",
                curves(group.of(placement), colours, _by_layer("near_eps", 100)), zero=True,
            ),
            Panel(
                placed(placement, "outlier channels"), "spread", depth, "largest σ / median σ",
                curves(group.of(placement), colours, _by_layer("spread", 1)), log=True,
            ),
        ]
        for placement in group.placements
    ]  # fmt: skip
    title = "Channels near eps, and outlier channels"
    caption = (
        "At each run's last measurement, by batch norm: share of channels whose population "
        "variance is below 10 eps (there eps, not the variance, sets the scale), and the largest "
        "standard deviation of a channel over the median one."
    )
    figure = figure_of_curves(f"channels{suffix}", title, caption, grid)
    return or_missing(figure, title, "no run measured them", _COMMAND)
