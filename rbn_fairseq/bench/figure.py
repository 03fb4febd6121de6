"""How cost grows, on logarithmic axes: a straight line of slope 1 grows in proportion."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.ticker import FixedLocator

from rbn_fairseq.bench.rows import FLOOR, Row
from rbn_fairseq.bench.scaling import Sweep
from rbn_fairseq.files import unfinished
from rbn_fairseq.report.figures.style import GREY, legend_below, norm_colours, plain_log, sheet
from rbn_fairseq.report.setups import FAMILIES

__all__ = ["draw_scaling"]


def draw_scaling(path: Path, swept: Sweep, found: Mapping[int, Sequence[Row]]) -> None:
    """Draw milliseconds over what grows, a line for each norm, dashed the floor.

    Args:
        path: of the file; its suffix is the format.
        swept: what grows.
        found: rows by its value.
    """
    values = sorted(found)
    lines: dict[str, list[float]] = {}
    for value in values:
        for row in found[value]:
            lines.setdefault(row.norm, []).append(row.ms or 0.0)
    floor = lines.pop(FLOOR)
    labels = {name: FAMILIES.get(name, name) for name in lines}
    colours = norm_colours(list(labels.values()))
    with sheet(width=6.0, height=4.0) as (canvas, [[axes]]):
        for name, times in lines.items():
            axes.plot(values, times, marker="o", color=colours[labels[name]], label=labels[name])
        axes.plot(values, floor, linestyle="--", color=GREY, label="floor: memory moved")
        plain_log(axes.xaxis)
        plain_log(axes.yaxis)
        axes.xaxis.set_major_locator(FixedLocator(values))
        axes.set_xlabel(swept.label)
        axes.set_ylabel(swept.cost)
        axes.set_title(found[values[0]][0].conditions)
        legend_below(canvas, [axes])
        with unfinished(path) as part:
            canvas.savefig(part, format=path.suffix[1:] or "png", dpi=150)
