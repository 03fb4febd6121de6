"""Where TID comes from: sampling of sentences, batches by length, how many batches are joined."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator

from rbn_fairseq.report.blocks import Figure, Missing
from rbn_fairseq.report.compare import Group, first_seeds
from rbn_fairseq.report.figures.style import (
    GREY,
    Colours,
    legend_below,
    plain_log,
    sheet,
)

__all__ = ["by_buckets", "by_processes", "decomposition"]

_KINDS = {"mean": "mean_tid", "variance": "var_tid"}
_RUNS = 4
_PARTS = {"sentence sampling": "#56B4E9", "length bucketing": "#E69F00"}
_LINES = {"permuted tokens": "-", "independent tokens": ":", "as trained, given length": "--"}
_MEASURE = (
    "`rbn tid SAVE_DIR/checkpoint_last.pt --json SAVE_DIR/tid_batching.jsonl` with "
    "`--tid-batching {}` measures it."
)


def _latest(group: Group) -> pd.DataFrame:
    """Return the measurements of each run's last checkpoint, by way of making batches."""
    frame = group.frames["batching"]
    return frame[frame["update"] == frame.groupby("run")["update"].transform("max")]


def _squares(measured: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Return one run's parts of squared TID in squared per cent, a row a batch norm."""
    name = _KINDS[kind]
    by_way = measured.drop_duplicates(["depth", "batching"], keep="last").pivot(
        index="depth", columns="batching", values=name
    )
    squared = (100 * by_way) ** 2
    trained = measured[measured["batching"] == "as-trained"].drop_duplicates("depth", keep="last")
    trained = trained.set_index("depth").sort_index()
    missing = pd.Series(np.nan, squared.index)
    return pd.DataFrame(
        {
            "sentence sampling": squared["random"],
            "length bucketing": squared["as-trained"] - squared["random"],
            "permuted tokens": squared.get("permuted", missing),
            "independent tokens": (100 * trained[f"independent_{name}"]) ** 2,
            "as trained, given length": (
                100 * trained[name.replace("_tid", "_conditional_tid")]
            ) ** 2,
        }
    )  # fmt: skip


def decomposition(group: Group, colours: Colours) -> list[Figure | Missing]:
    """Squared TID by layer as stacked bars, a row a run."""
    title = "Where TID comes from"
    latest = _latest(group)
    ways = latest.groupby("run")["batching"].agg(set)
    runs = [run for run in first_seeds(group).index
            if {"as-trained", "random"} <= ways.get(run, set())]  # fmt: skip
    if not runs:
        return [Missing(title, _MEASURE.format("as-trained` and `--tid-batching random"))]
    shown = runs[:_RUNS]
    parts = [
        _squares(latest[latest["run"] == run], kind).reset_index().assign(run=run, kind=kind)
        for run in runs
        for kind in _KINDS
    ]
    notes = []
    if len(runs) > len(shown):
        notes.append(f"Drawn: the first {len(shown)} of {len(runs)} runs; CSV has all.")
    caption = (
        "Squared TID of each batch norm. Sentence sampling: that of random batches with as many "
        "tokens. Length bucketing: what batches as trained have more, which fairseq makes of "
        "sentences of like length, --length-mixing K of those of K lengths and --length-mixing "
        "random of any (squared TID as trained minus that of random batches; below zero where "
        "random batches have more). Reference lines, no floor: tokens permuted across batches, and "
        "the closed form for independent Gaussian "
        "tokens, (E 1/sqrt(n))² for the mean and half of it for the variance, over the batches as "
        "trained of n tokens; real sentences are stratified, and random batches may lie below. "
        "Dashed: batches as trained, compared with the population of batches of like length."
    )
    short = ("sampling", "bucketing", "permuted", "independent", "given_length")
    names = dict(zip(parts[0].columns[1:6], short, strict=True))
    numbers = pd.concat(parts).rename(columns={column: f"{to}_squared_percent"
                                               for column, to in names.items()})  # fmt: skip
    numbers = numbers[["run", "kind", "depth", *(f"{column}_squared_percent" for column in short)]]
    numbers = numbers.astype({"depth": int})
    if numbers["given_length_squared_percent"].isna().all():
        numbers = numbers.drop(columns="given_length_squared_percent")
    draw = lambda: _draw_parts(group, latest, shown)  # noqa: E731
    return [Figure("batching", title, caption, draw, numbers, tuple(notes))]


def _draw_parts(group: Group, latest: pd.DataFrame, shown: Sequence[str]) -> Canvas:
    with sheet(len(shown), len(_KINDS)) as (canvas, grid):
        for row, run in zip(grid, shown, strict=True):
            for axes, kind in zip(row, _KINDS, strict=True):
                _bars(axes, _squares(latest[latest["run"] == run], kind))
                heading = group.placed(group.runs.at[run, "placement"], f"{run}, {kind} TID²")
                axes.set(
                    title=heading, xlabel="batch norm, from input to output", ylabel="TID², %²"
                )
                axes.title.set_fontsize(9.5)
        legend_below(canvas, canvas.axes)
        return canvas


def _bars(axes: Axes, squares: pd.DataFrame) -> None:
    depths, base = squares.index, squares["sentence sampling"]
    for name, colour in _PARTS.items():
        part = squares[name]
        # A negative part hangs from zero, beside what stands on it.
        bottom = base.where(part >= 0, 0) if name == "length bucketing" else 0
        axes.bar(depths, part, 0.7, bottom=bottom, color=colour, label=name)
    for name, dash in _LINES.items():
        if squares[name].notna().any():
            ends = [depth + side for depth in depths for side in (-0.45, 0.45, 0.45)]
            heights = [h for value in squares[name] for h in (value, value, np.nan)]
            axes.plot(ends, heights, dash, color="black", linewidth=1.4, label=name)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(depths)
    axes.grid(axis="x", visible=False)


@dataclass(frozen=True)
class _Axis:
    """What a batch is made of, as ``--tid-batching KIND:NUMBER`` says it, and the figure of it."""

    kind: str
    symbol: str
    label: str
    name: str
    title: str
    caption: str


_DRAWN = (
    "Grey: proportional to 1/sqrt({}), through the first run's batches as trained. Dotted: random "
    "batches{}. A line a run; logarithmic axes."
)
_BUCKETS = _Axis(
    "mixed", "K", "length buckets", "buckets",
    "TID by number of length buckets in a batch",
    "TID of the last batch norm where each batch is drawn from K random length buckets; K = 1 "
    "is fairseq's own batching. Batches as trained stand at the K of --length-mixing, 1 "
    "without; runs on random batches have none, and are left out. " + _DRAWN.format("K", ""),
)  # fmt: skip
_PROCESSES = _Axis(
    "joint", "W", "processes", "processes",
    "TID by number of processes with --norm-sync",
    "TID of the last batch norm where W of fairseq's batches, one of each process, have their "
    "statistics together; the models were trained as their runs say, without --length-mixing. "
    + _DRAWN.format("W", " of one process"),
)  # fmt: skip


def by_buckets(group: Group, colours: Colours) -> list[Figure | Missing]:
    """TID of the last layer against K, the number of length buckets a batch is drawn from."""
    return _by_number(_BUCKETS, group, colours)


def by_processes(group: Group, colours: Colours) -> list[Figure | Missing]:
    """TID of the last layer against W, the number of processes that share statistics."""
    return _by_number(_PROCESSES, group, colours)


def _numbered(axis: _Axis, group: Group) -> pd.DataFrame:
    """Return the last batch norm's TID by run and ``number``; that of random batches has none.

    ``trained`` is the number that the training's own batches have. Runs without one are left out:
    on random batches, and on mixed ones where batches of the training were to be joined.
    """
    latest = _latest(group)
    last = latest[latest["depth"] == latest.groupby("run")["depth"].transform("max")]
    last = last.drop_duplicates(["run", "batching"], keep="last")
    mixing = last["run"].map(group.runs["mixing"]).astype(float)
    trained = mixing if axis.kind == "mixed" else mixing.where(mixing == 1)
    number = last["batching"].str.extract(f"^{axis.kind}:([1-9][0-9]*)$")[0].astype(float)
    as_trained = last["batching"] == "as-trained"
    points = last.assign(trained=trained, number=number.mask(as_trained, trained))
    points = points[points["number"].notna() | (points["batching"] == "random")]
    # Batches as trained count before others of their number.
    points = points.sort_values("batching", key=lambda way: way != "as-trained", kind="stable")
    points = points[~points.duplicated(["run", "number"]) | (points["batching"] == "random")]
    numbers = points.groupby("run")["number"].nunique()
    measured = set(last.loc[as_trained & trained.notna(), "run"]) & set(numbers.index[numbers > 1])
    order = {run: place for place, run in enumerate(first_seeds(group).index) if run in measured}
    points = points[points["run"].isin(order)]
    return points.assign(order=points["run"].map(order)).sort_values(["order", "number"])


def _by_number(axis: _Axis, group: Group, colours: Colours) -> list[Figure | Missing]:
    points = _numbered(axis, group)
    if not len(points):
        way = f"as-trained` and `--tid-batching {axis.kind}:4"
        return [Missing(axis.title, _MEASURE.format(way))]
    texts = points["number"].map(lambda number: "random" if np.isnan(number) else f"{number:g}")
    numbers = pd.DataFrame(
        {"run": points["run"], "norm": points["norm"], axis.symbol: texts,
         "mean_tid_last": points["mean_tid"], "var_tid_last": points["var_tid"]}
    )  # fmt: skip
    draw = lambda: _draw_numbers(axis, group, points, colours)  # noqa: E731
    return [Figure(axis.name, axis.title, axis.caption, draw, numbers)]


def _draw_numbers(axis: _Axis, group: Group, points: pd.DataFrame, colours: Colours) -> Canvas:
    numbered = points[points["number"].notna()]
    ticks = sorted(set(numbered["number"]))
    first = numbered[numbered["run"] == numbered["run"].iloc[0]].set_index("number")
    start_at = first["trained"].iloc[0]
    with sheet(1, 2) as (canvas, (row,)):
        for axes, (kind, name) in zip(row, _KINDS.items(), strict=True):
            start = 100 * first.at[start_at, name]
            law = [start * np.sqrt(start_at / number) for number in ticks]
            axes.plot(ticks, law, "-.", color=GREY, label=f"1/sqrt({axis.symbol})")
            for run, line in numbered.groupby("run", sort=False):
                about = line.iloc[0]
                style = {"color": colours[about["label"]], "linewidth": 1.4}
                axes.plot(
                    line["number"], 100 * line[name],
                    "--" if about["placement"] == "Pre-Norm" else "-", marker="o", markersize=4,
                    label=group.placed(about["placement"], about["label"]), **style,
                )  # fmt: skip
                random = points[(points["run"] == run) & points["number"].isna()]
                for level in 100 * random[name]:
                    axes.axhline(level, linestyle=":", **style)
            plain_log(axes.xaxis)
            plain_log(axes.yaxis)
            axes.xaxis.set_major_locator(FixedLocator(ticks))
            axes.set(
                title=f"{kind} TID, last layer",
                xlabel=f"{axis.symbol}, {axis.label}",
                ylabel="TID, % of ‖σ‖",
            )
        legend_below(canvas, canvas.axes)
        return canvas
