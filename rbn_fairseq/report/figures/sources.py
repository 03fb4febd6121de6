"""Where TID comes from: sampling of sentences, batches by length, how many batches are joined."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator

from rbn_fairseq.report.blocks import Figure, Missing
from rbn_fairseq.report.compare import Group, of_largest
from rbn_fairseq.report.figures.style import GREY, Colours, legend_below, plain_log, sheet

_KINDS = {"mean": "mean_tid", "variance": "var_tid"}
_RUNS = 4
_PARTS = {
    "sampling": ("sentence sampling", "#56B4E9"),
    "bucketing": ("length bucketing", "#E69F00"),
}
_LINES = {
    "independent": ("independent tokens", ":"),
    "given_length": ("as trained, given length", "--"),
}
_UNIT = "_squared_percent"  # behind the names of parts and lines in CSV
_MEASURE = (
    "`rbn tid SAVE_DIR/checkpoint_last.pt --json SAVE_DIR/tid_batching.jsonl` with "
    "`--tid-batching {}` measures it."
)
#: By kind of --tid-batching KIND:NUMBER: the figure's name, the number's symbol, what it counts,
#: heading and caption.
_NUMBERS = {
    "mixed": (
        "buckets", "K", "length buckets", "TID by number of length buckets in a batch",
        "TID of the last batch norm where each batch is drawn from K random length buckets; K = 1 "
        "is fairseq's own batching. Batches as trained stand at the K of --length-mixing, 1 "
        "without; runs on random batches have none, and are left out. Dotted: random batches.",
    ),
    "joint": (
        "processes", "W", "processes", "TID by number of processes with --norm-sync",
        "TID of the last batch norm where W of fairseq's batches, one of each process, have their "
        "statistics together; the models were trained as their runs say, without --length-mixing. "
        "Dotted: random batches of one process.",
    ),
}  # fmt: skip


def _squares(measured: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Return one run's parts of squared TID in squared per cent, a row a batch norm."""
    name = _KINDS[kind]
    by_way = measured.drop_duplicates(["depth", "batching"], keep="last").pivot(
        index="depth", columns="batching", values=name
    )
    squared = (100 * by_way) ** 2
    trained = measured[measured["batching"] == "as-trained"].drop_duplicates("depth", keep="last")
    trained = trained.set_index("depth").sort_index()
    given_length = trained[name.replace("_tid", "_conditional_tid")]
    parts = {
        "sampling": squared["random"],
        "bucketing": squared["as-trained"] - squared["random"],
        "independent": (100 * trained[f"independent_{name}"]) ** 2,
        "given_length": (100 * given_length) ** 2,
    }
    return pd.DataFrame(parts).add_suffix(_UNIT).reset_index().astype({"depth": int})


def decomposition(group: Group, colours: Colours) -> list[Figure | Missing]:
    """Squared TID by layer as stacked bars, a row a run."""
    title = "Where TID comes from"
    latest = of_largest(group.frames["batching"], "update")
    ways = latest.groupby("run")["batching"].agg(set)
    runs = [run for run in group.runs.index if {"as-trained", "random"} <= ways.get(run, set())]
    if not runs:
        return [Missing(title, _MEASURE.format("as-trained` and `--tid-batching random"))]
    parts = [
        _squares(latest[latest["run"] == run], kind).assign(run=run, kind=kind)
        for run in runs
        for kind in _KINDS
    ]
    numbers = pd.concat(parts)
    numbers = numbers[["run", "kind", *numbers.columns.drop(["run", "kind"])]]
    if numbers["given_length" + _UNIT].isna().all():
        numbers = numbers.drop(columns="given_length" + _UNIT)
    caption = (
        "Squared TID of each batch norm. Sentence sampling: that of random batches with as many "
        "tokens. Length bucketing: what batches as trained have more, which fairseq makes of "
        "sentences of like length, --length-mixing K of those of K lengths and --length-mixing "
        "random of any (squared TID as trained minus that of random batches; below zero where "
        "random batches have more). Reference line, no floor: the closed form for independent "
        "Gaussian tokens, (E 1/sqrt(n))² for the mean and half of it for the variance, over the "
        "batches as trained of n tokens; real sentences are stratified, and random batches may lie "
        "below. Dashed: batches as trained, compared with the population of batches of like length."
    )
    notes = ()
    if len(runs) > _RUNS:
        notes = (f"Drawn: the first {_RUNS} of {len(runs)} runs; CSV has all.",)
    draw = partial(_draw_parts, group, numbers, runs[:_RUNS])
    return [Figure("batching", title, caption, draw, numbers, notes)]


def _draw_parts(group: Group, numbers: pd.DataFrame, shown: list[str]) -> Canvas:
    with sheet(len(shown), len(_KINDS)) as (canvas, grid):
        for row, run in zip(grid, shown, strict=True):
            for axes, kind in zip(row, _KINDS, strict=True):
                _bars(axes, numbers[(numbers["run"] == run) & (numbers["kind"] == kind)])
                heading = group.placed(group.runs.at[run, "placement"], f"{run}, {kind} TID²")
                axes.set(
                    title=heading, xlabel="batch norm, from input to output", ylabel="TID², %²"
                )
                axes.title.set_fontsize(9.5)
        legend_below(canvas, canvas.axes)
        return canvas


def _bars(axes: Axes, squares: pd.DataFrame) -> None:
    depths, base = squares["depth"], squares["sampling" + _UNIT]
    for name, (label, colour) in _PARTS.items():
        part = squares[name + _UNIT]
        # A negative part hangs from zero, beside what stands on it.
        bottom = base.where(part >= 0, 0) if name == "bucketing" else 0
        axes.bar(depths, part, 0.7, bottom=bottom, color=colour, label=label)
    for name, (label, dash) in _LINES.items():
        if name + _UNIT in squares and squares[name + _UNIT].notna().any():
            ends = [depth + side for depth in depths for side in (-0.45, 0.45, 0.45)]
            heights = [h for value in squares[name + _UNIT] for h in (value, value, np.nan)]
            axes.plot(ends, heights, dash, color="black", linewidth=1.4, label=label)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(depths)
    axes.grid(axis="x", visible=False)


def by_number(group: Group, colours: Colours) -> list[Figure | Missing]:
    """TID of the last layer by number of length buckets, and of processes, that make a batch."""
    blocks: list[Figure | Missing] = []
    for kind, (name, symbol, counted, title, caption) in _NUMBERS.items():
        points = _numbered(group, kind)
        if not len(points):
            blocks.append(
                Missing(title, _MEASURE.format(f"as-trained` and `--tid-batching {kind}:4"))
            )
            continue
        caption += (
            f" Grey: proportional to 1/sqrt({symbol}), through the first run's batches as trained. "
            "A line a run; logarithmic axes."
        )
        texts = points["number"].map(lambda number: "random" if np.isnan(number) else f"{number:g}")
        numbers = pd.DataFrame(
            {"run": points["run"], "norm": points["norm"], symbol: texts,
             "mean_tid_last": points["mean_tid"], "var_tid_last": points["var_tid"]}
        )  # fmt: skip
        draw = partial(_draw_numbers, group, points, symbol, counted, colours)
        blocks.append(Figure(name, title, caption, draw, numbers))
    return blocks


def _numbered(group: Group, kind: str) -> pd.DataFrame:
    """Return the last batch norm's TID by run and ``number``; that of random batches has none.

    ``trained`` is the number that the training's own batches have. Runs without one are left out:
    on random batches, and on mixed ones where batches of the training were to be joined.
    """
    last = of_largest(of_largest(group.frames["batching"], "update"), "depth")
    last = last.drop_duplicates(["run", "batching"], keep="last")
    settings = last["run"].map(group.runs["settings"])
    mixing = settings.map(lambda chosen: chosen.get("task.length_mixing", 1))
    mixing = pd.to_numeric(mixing, errors="coerce")  # `random` has no number
    trained = mixing if kind == "mixed" else mixing.where(mixing == 1)
    number = last["batching"].str.extract(f"^{kind}:([1-9][0-9]*)$")[0].astype(float)
    as_trained = last["batching"] == "as-trained"
    points = last.assign(trained=trained, number=number.mask(as_trained, trained))
    points = points[points["number"].notna() | (points["batching"] == "random")]
    # Batches as trained count before others of their number.
    points = points.sort_values("batching", key=lambda way: way != "as-trained", kind="stable")
    points = points[~points.duplicated(["run", "number"]) | (points["batching"] == "random")]
    numbers = points.groupby("run")["number"].nunique()
    measured = set(last.loc[as_trained & trained.notna(), "run"]) & set(numbers.index[numbers > 1])
    points = points[points["run"].isin(measured)]
    order = group.runs.index.get_indexer(points["run"])
    return points.assign(order=order).sort_values(["order", "number"])


def _draw_numbers(
    group: Group, points: pd.DataFrame, symbol: str, counted: str, colours: Colours
) -> Canvas:
    numbered = points[points["number"].notna()]
    ticks = sorted(set(numbered["number"]))
    first = numbered[numbered["run"] == numbered["run"].iloc[0]].set_index("number")
    start_at = first["trained"].iloc[0]
    with sheet(1, 2) as (canvas, (row,)):
        for axes, (kind, name) in zip(row, _KINDS.items(), strict=True):
            start = 100 * first.at[start_at, name]
            law = [start * np.sqrt(start_at / number) for number in ticks]
            axes.plot(ticks, law, "-.", color=GREY, label=f"1/sqrt({symbol})")
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
                xlabel=f"{symbol}, {counted}",
                ylabel="TID, % of ‖σ‖",
            )
        legend_below(canvas, canvas.axes)
        return canvas
