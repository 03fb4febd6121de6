"""Figures of runs: the same colour for a norm in every one."""

import io
from collections.abc import Callable, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rbn_fairseq.report.runs import Run

__all__ = ["PANELS", "colours", "draw", "to_svg"]

# Okabe and Ito's palette, told apart by colour-blind readers too.
_KNOWN = {"layer": "#0072B2", "batch": "#D55E00", "rbn": "#009E73"}
_OTHERS = ("#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8C6D31")
_STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e5e5",
    "legend.frameon": False,
    "svg.hashsalt": "rbn_fairseq",  # the same figure, the same file
}
_NAMED = 10  # entries that a legend has room for
_STYLES = {"last layer": "-", "average": "--"}
_MEASURES = {"mean_tid": "Mean TID", "var_tid": "Variance TID"}


def colours(names: Sequence[str]) -> dict[str, str]:
    """Return a colour for each run; ``layer``, ``batch`` and ``rbn`` always have the same.

    Many runs, such as those of a grid, go through a scale from dark to light in their order.
    """
    others = [name for name in names if name not in _KNOWN]
    if len(others) <= len(_OTHERS):
        own = dict(zip(others, _OTHERS, strict=False))
    else:
        scale = matplotlib.colormaps["viridis"].resampled(len(others))
        own = {name: to_hex(scale(number)) for number, name in enumerate(others)}
    return {name: _KNOWN.get(name) or own[name] for name in names}


def _curve(axes: Axes, run: Run, x: list[int], y: list[float], colour: str) -> None:
    axes.plot(x, y, color=colour, marker="o", markersize=3.5, label=run.name)


def _legend(axes: Axes) -> None:
    """Put the legend below the panel, where it covers no curve.

    It names no more runs than fit there; the colours are also beside their names in the table.
    """
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > _NAMED:
        kept = [number for number, label in enumerate(labels) if label in _STYLES]
        handles, labels = [handles[number] for number in kept], [labels[number] for number in kept]
    if labels:
        style = {"fontsize": 9, "columnspacing": 1.0, "handlelength": 1.5}
        axes.legend(
            handles, labels, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=4, **style
        )


def _valid_loss(axes: Axes, runs: Sequence[Run], colour: dict[str, str]) -> None:
    for run in runs:
        x = [validation.epoch for validation in run.validations]
        y = [validation.nll_loss for validation in run.validations]
        _curve(axes, run, x, y, colour[run.name])
    axes.set(title="Validation loss", xlabel="epoch", ylabel="bits per token")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axes)


def _tid(measure: str) -> Callable[[Axes, Sequence[Run], dict[str, str]], None]:
    def panel(axes: Axes, runs: Sequence[Run], colour: dict[str, str]) -> None:
        for run in runs:
            if run.tid:
                x = [point.epoch for point in run.tid]
                y = [100 * getattr(point.last, measure) for point in run.tid]
                _curve(axes, run, x, y, colour[run.name])
                y = [100 * getattr(point.average, measure) for point in run.tid]
                axes.plot(x, y, _STYLES["average"], color=colour[run.name], linewidth=1)
        for label, style in _STYLES.items():
            axes.plot([], [], style, color="grey", linewidth=1, label=label)
        axes.set(title=_MEASURES[measure], xlabel="epoch", ylabel="%")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend(axes)

    return panel


def _tid_by_layer(measure: str) -> Callable[[Axes, Sequence[Run], dict[str, str]], None]:
    def panel(axes: Axes, runs: Sequence[Run], colour: dict[str, str]) -> None:
        measured = [run for run in runs if run.tid]
        width = 0.8 / max(1, len(measured))
        for number, run in enumerate(measured):
            heights = [100 * getattr(layer, measure) for layer in run.tid[-1].layers]
            at = [
                layer + (number - (len(measured) - 1) / 2) * width for layer in range(len(heights))
            ]
            label = f"{run.name}, epoch {run.tid[-1].epoch}"
            axes.bar(at, heights, width, color=colour[run.name], label=label)
        number = max((len(run.tid[-1].layers) for run in measured), default=0)
        axes.set_xticks(range(number), [str(layer + 1) for layer in range(number)])
        axes.grid(axis="x", visible=False)
        axes.set(title=f"{_MEASURES[measure]} by layer", ylabel="%")
        axes.set_xlabel("batch norm, from input to output")
        _legend(axes)

    return panel


#: Every figure by name; each draws itself on axes.
PANELS: dict[str, Callable[[Axes, Sequence[Run], dict[str, str]], None]] = {
    "valid_loss": _valid_loss,
    "tid_mean": _tid("mean_tid"),
    "tid_variance": _tid("var_tid"),
    "tid_mean_by_layer": _tid_by_layer("mean_tid"),
    "tid_variance_by_layer": _tid_by_layer("var_tid"),
}


def draw(names: Sequence[str], runs: Sequence[Run]) -> Figure:
    """Draw panels side by side."""
    colour = colours([run.name for run in runs])
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(4.6 * len(names), 3.6), layout="constrained")
        for name, axes in zip(names, figure.subplots(1, len(names), squeeze=False)[0], strict=True):
            PANELS[name](axes, runs, colour)
        return figure


def to_svg(figure: Figure) -> str:
    """Return the figure as an ``<svg>`` element."""
    text = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]
