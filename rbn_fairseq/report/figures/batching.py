"""Where TID comes from: sentences sampled at random, and batches of like lengths."""

import math
import re
from collections.abc import Sequence
from typing import Optional

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.figures.missing import Drawn, Missing
from rbn_fairseq.report.figures.style import GREY, legend_below, plain_log, sheet
from rbn_fairseq.report.figures.tid import first_seeds
from rbn_fairseq.report.figures.training import placed
from rbn_fairseq.report.grouping import Group, Series
from rbn_fairseq.report.records import TIDPoint
from rbn_fairseq.report.runs import Run

__all__ = ["by_buckets", "decomposition"]

_COMMAND = (
    "`rbn tid SAVE_DIR/checkpoint_last.pt --tid-batching as-trained --tid-batching random "
    "--tid-batching permuted --tid-batching mixed:2 --tid-batching mixed:4 --output "
    "SAVE_DIR/tid_batching.jsonl`"
)
_KINDS = {"mean": "mean_tid", "variance": "var_tid"}
_RUNS = 4
_PARTS = {"sentence sampling": "#56B4E9", "length bucketing": "#E69F00"}

Measured = tuple[Series, Run, dict[str, TIDPoint]]


def _latest(run: Run) -> dict[str, TIDPoint]:
    """The measurements of the last checkpoint, by way of making batches."""
    update = max((point.update for point in run.batching), default=0)
    return {point.batching: point for point in run.batching if point.update == update}


def _measured(group: Group, needed: Sequence[str]) -> list[Measured]:
    found = [(one, run, _latest(run)) for one, run in first_seeds(group)]
    return [it for it in found if all(name in it[2] for name in needed)]


def _squares(point: Optional[TIDPoint], name: str) -> list[float]:
    """Squared TID by layer, in squared per cent; NaN where there is none."""
    if point is None:
        return []
    values = [getattr(layer, name) for layer in point.layers]
    return [math.nan if value is None else (100 * value) ** 2 for value in values]


def _columns(points: dict[str, TIDPoint], kind: str) -> dict[str, list[float]]:
    name = _KINDS[kind]
    whole, random = (_squares(points[way], name) for way in ("as-trained", "random"))
    closed = _squares(points["random"], f"independent_{name}")
    permuted = _squares(points.get("permuted"), name) or [math.nan] * len(random)
    return {
        "sentence sampling": random,
        "length bucketing": [a - b for a, b in zip(whole, random, strict=True)],
        "permuted tokens": permuted,
        "independent tokens": closed,
    }


def decomposition(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """Squared TID by layer as stacked bars, a row a run."""
    title = "Where TID comes from"
    found = _measured(group, ("as-trained", "random"))
    if not found:
        return Missing(title, "no run measured TID with random batches", _COMMAND)
    shown = found[:_RUNS]
    rows = []
    negative = []
    for _, run, points in found:
        for kind in _KINDS:
            columns = _columns(points, kind)
            lines = zip(*columns.values(), strict=True)
            rows += [(run.name, kind, depth, *line) for depth, line in enumerate(lines, 1)]
            below = [n for n, part in enumerate(columns["length bucketing"], 1) if part < 0]
            if below:
                negative.append(f"{run.name}, {kind}: {', '.join(map(str, below))}")
    notes = []
    if negative:
        notes.append(
            "Length bucketing is negative, and drawn as it is, where random batches have more TID "
            f"than those of training, in the batch norms of {'; '.join(negative)}."
        )
    if len(found) > len(shown):
        notes.append(f"Drawn: the first {len(shown)} of {len(found)} runs; CSV has all.")
    caption = (
        "Squared TID of each batch norm. Sentence sampling: that of random batches with as many "
        "tokens. Length bucketing: what batches as trained, of sentences of like length, have "
        "more (squared TID as trained minus that of random batches). Reference lines, no floor: "
        "tokens permuted across batches, and the closed form for independent Gaussian tokens, "
        "1 / n and 1 / (2 n); real sentences are stratified, and random batches may lie below."
    )
    parts = ("sampling", "bucketing", "permuted", "independent")
    header = ("run", "kind", "depth", *(f"{part}_squared_percent" for part in parts))
    return Figure(
        f"batching{suffix}", title, caption, lambda: _draw_bars(shown), header, tuple(rows),
        tuple(notes),
    )  # fmt: skip


def _draw_bars(shown: Sequence[Measured]) -> Canvas:
    with sheet(len(shown), len(_KINDS)) as (canvas, grid):
        for row, (series, run, points) in zip(grid, shown, strict=True):
            for axes, kind in zip(row, _KINDS, strict=True):
                _bars(axes, _columns(points, kind))
                heading = placed(series.placement, f"{run.name}, {kind} TID²")
                axes.set(title=heading, xlabel="batch norm, from input to output", ylabel="%²")
                axes.title.set_fontsize(9.5)
        legend_below(canvas, canvas.axes)
        return canvas


def _bars(axes: Axes, columns: dict[str, list[float]]) -> None:
    base = columns["sentence sampling"]
    depths = range(1, len(base) + 1)
    for name, colour in _PARTS.items():
        part = columns[name]
        # A negative part hangs from zero, beside what stands on it.
        bottom = [
            0 if name == "sentence sampling" or p < 0 else b
            for b, p in zip(base, part, strict=True)
        ]
        axes.bar(depths, part, 0.7, bottom=bottom, color=colour, label=name)
    for name, dash in (("permuted tokens", "-"), ("independent tokens", ":")):
        if not all(map(math.isnan, columns[name])):
            ends = [depth + side for depth in depths for side in (-0.45, 0.45, 0.45)]
            heights = [h for value in columns[name] for h in (value, value, math.nan)]
            axes.plot(ends, heights, dash, color="black", linewidth=1.4, label=name)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(depths)
    axes.grid(axis="x", visible=False)


def _by_number(points: dict[str, TIDPoint]) -> dict[int, TIDPoint]:
    """By number of length buckets that a batch is drawn from; as trained is one."""
    found = {1: points["as-trained"]} if "as-trained" in points else {}
    for way, point in points.items():
        match = re.fullmatch(r"mixed:(\d+)", way)
        if match:
            found[int(match[1])] = point
    return dict(sorted(found.items()))


def by_buckets(group: Group, colours: dict[str, str], suffix: str = "") -> Drawn:
    """TID of the last layer against K, the number of length buckets a batch is drawn from."""
    title = "TID by number of length buckets in a batch"
    found = [
        (series, run, points)
        for series, run, points in _measured(group, ("as-trained",))
        if len(_by_number(points)) > 1
    ]
    if not found:
        return Missing(title, "no run measured TID with mixed buckets", _COMMAND)
    rows = tuple(
        (run.name, series.norm, number, point.last.mean_tid, point.last.var_tid)
        for series, run, points in found
        for number, point in _by_number(points).items()
    )
    rows += tuple(
        (
            run.name,
            series.norm,
            "random",
            points["random"].last.mean_tid,
            points["random"].last.var_tid,
        )
        for series, run, points in found
        if "random" in points
    )
    caption = (
        "TID of the last batch norm where each batch is drawn from K random length buckets; K = 1 "
        "is fairseq's own batching. Grey: 1/sqrt(K) from the first run's K = 1. Dotted: random "
        "batches. A line a run; "
        "logarithmic axes."
    )
    return Figure(
        f"buckets{suffix}", title, caption, lambda: _draw_buckets(found, colours),
        ("run", "norm", "K", "mean_tid_last", "var_tid_last"), rows,
    )  # fmt: skip


def _draw_buckets(found: Sequence[Measured], colours: dict[str, str]) -> Canvas:
    with sheet(1, 2) as (canvas, (row,)):
        numbers = sorted({number for *_, points in found for number in _by_number(points)})
        for axes, (kind, name) in zip(row, _KINDS.items(), strict=True):
            first = 100 * getattr(found[0][2]["as-trained"].last, name)
            law = [first / math.sqrt(number) for number in numbers]
            axes.plot(numbers, law, "-.", color=GREY, label="1/sqrt(K)")
            for series, _, points in found:
                own = _by_number(points)
                values = [100 * getattr(point.last, name) for point in own.values()]
                style = {"color": colours[series.norm], "linewidth": 1.4}
                dash = "--" if series.placement == "Pre-Norm" else "-"
                label = placed(series.placement, series.norm)
                axes.plot(list(own), values, dash, marker="o", markersize=4, label=label, **style)
                if "random" in points:
                    level = 100 * getattr(points["random"].last, name)
                    axes.axhline(level, linestyle=":", **style)
            plain_log(axes.xaxis)
            plain_log(axes.yaxis)
            axes.xaxis.set_major_locator(FixedLocator(numbers))
            axes.set(title=f"{kind} TID, last layer", xlabel="K, length buckets", ylabel="%")
        legend_below(canvas, canvas.axes)
        return canvas
