"""Growth of the time of norms with tokens, channels and layers, and its figure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.ticker import FixedLocator

from rbn_fairseq.bench.norm_times import Conditions, fixed_case, time_norms
from rbn_fairseq.bench.rounds import FLOOR, Row
from rbn_fairseq.report.figures.style import GREY, legend_below, norm_colours, plain_log, sheet
from rbn_fairseq.report.setups import FAMILIES
from rbn_fairseq.writing import unfinished

__all__ = ["SWEEPS", "draw_growth", "time_growth"]

#: What ``rbn bench scaling`` lets grow, with the values that it takes by default.
SWEEPS = {
    "tokens": (1024, 4096, 16384, 65536),
    "channels": (128, 256, 512, 1024),
    "layers": (1, 2, 6, 12),
}
_AXES = {
    "tokens": "tokens of a batch",
    "channels": "channels C",
    "layers": "layers of an encoder",
}
_NORMS_A_LAYER = 2  # of an encoder


def time_growth(
    sweep: str, values: Sequence[int], tokens: int, conditions: Conditions
) -> dict[int, list[Row]]:
    """Time norms while tokens, channels or layers grow and all else stays.

    Args:
        sweep: a name of ``SWEEPS``.
        values: that it takes.
        tokens: of a batch, where they do not grow.
        conditions: channels, depth and the like, where they do not grow.

    Returns:
        Rows by value; a row's case begins with the sweep and the value. With layers a time is
        that of all their norms.

    Raises:
        ValueError: if a value does not fit.
    """
    grown = {}
    for value in values:
        size, varied, norms = tokens, conditions, 1
        if sweep == "tokens":
            size = value
        elif sweep == "channels":
            varied = replace(conditions, channels=value)
        else:
            norms = _NORMS_A_LAYER * value
            varied = replace(conditions, depth=norms)
        grown[value] = [
            replace(
                row,
                bench="scaling",
                case=f"{sweep}-{value}/{row.case}",
                ms=norms * (row.ms or 0.0),
            )
            for row in time_norms(fixed_case(size, varied.channels), varied, f"{value} {sweep}")
        ]
    return grown


def draw_growth(path: Path, sweep: str, grown: Mapping[int, Sequence[Row]]) -> None:
    """Draw milliseconds over what grows, on logarithmic axes: a line a norm, dashed the floor.

    Args:
        path: of the file; its suffix is the format.
        sweep: a name of ``SWEEPS``.
        grown: rows by value, as :func:`time_growth` returns them.
    """
    times: dict[str, list[float]] = {}
    for rows in grown.values():
        for row in rows:
            times.setdefault(row.norm, []).append(row.ms or 0.0)
    labels = {name: FAMILIES.get(name, name) for name in times if name != FLOOR}
    colours = norm_colours(list(labels.values()))
    with sheet(width=6.0, height=4.0) as (canvas, [[axes]]):
        for name, label in labels.items():
            axes.plot(list(grown), times[name], marker="o", color=colours[label], label=label)
        axes.plot(list(grown), times[FLOOR], "--", color=GREY, label="floor: memory moved")
        plain_log(axes.xaxis)
        plain_log(axes.yaxis)
        axes.xaxis.set_major_locator(FixedLocator(list(grown)))
        axes.set_xlabel(_AXES[sweep])
        norms = "all norms of the layers" if sweep == "layers" else "a norm, forward and backward"
        axes.set_ylabel(f"milliseconds of {norms}")
        axes.set_title(next(iter(grown.values()))[0].conditions)
        legend_below(canvas, [axes])
        with unfinished(path) as part:
            canvas.savefig(part, format=path.suffix[1:], dpi=150)
