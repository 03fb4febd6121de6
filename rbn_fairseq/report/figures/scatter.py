"""TID of the last layer against the gap to layer norm: ours, and the paper's 20 settings."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure as Canvas

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.figures.style import GREY, legend_below, sheet
from rbn_fairseq.report.gaps import Point
from rbn_fairseq.report.published import published

__all__ = ["PaperPoint", "paper_points", "scatter"]

_MARKERS = {"BLEU": "o", "PPL": "s", "F1": "^", "accuracy": "D"}


@dataclass(frozen=True)
class PaperPoint:
    """One of the paper's settings of BN: total TID in per cent; gap, positive = worse than LN."""

    placement: str
    dataset: str
    metric: str
    tid: float
    gap: float


def paper_points() -> list[PaperPoint]:
    """Return the paper's 20 settings, Post- and Pre-Norm on ten data sets."""
    paper, found = published(), []
    for placement in ("Post-Norm", "Pre-Norm"):
        for dataset, metric in zip(paper.datasets, paper.metrics, strict=True):
            gap = paper.gap(placement, "BN", dataset)
            parts = [paper.last_tid(placement, it, "BN", dataset) for it in ("mean", "variance")]
            if gap is not None and parts[0] is not None and parts[1] is not None:
                found.append(PaperPoint(placement, dataset, metric, parts[0] + parts[1], gap))
    return found


def scatter(measured: Sequence[tuple[str, Point]], colours: dict[str, str]) -> Figure:
    """Return the figure; ``measured``: a group's title and a point, each."""
    rows = [
        (title, p.series.placement, p.series.label, "here", p.tid, p.bleu, p.nll)
        for title, p in measured
    ]
    rows += [
        (it.dataset, it.placement, "BN", f"paper, {it.metric}", it.tid, it.gap, None)
        for it in paper_points()
    ]
    caption = (
        "Total TID (mean + variance) of the last batch norm against how much worse than layer norm "
        "the model is; above 0: worse. Left and middle: our settings, mean over seeds. Right: the "
        "paper's 20 settings of BN in the units of their metrics, which cannot be compared in "
        "size (PPL on language models: BN is better)."
    )
    header = ("group", "placement", "norm", "source", "total_tid_percent", "gap", "nll_gap")
    return Figure(
        "tid_against_gap", "TID and the gap to layer norm", caption,
        lambda: _draw(measured, colours), header, tuple(rows),
    )  # fmt: skip


def _draw(measured: Sequence[tuple[str, Point]], colours: dict[str, str]) -> Canvas:
    ours = [
        (heading, unit, name)
        for heading, unit, name in (
            ("here: BLEU", "BLEU, LN - BN", "bleu"),
            ("here: valid nll", "bits per token, BN - LN", "nll"),
        )
        if any(getattr(point, name) is not None for _, point in measured)
    ]
    with sheet(1, len(ours) + 1, width=4.0, height=3.2) as (canvas, (row,)):
        for axes, (heading, unit, name) in zip(row, ours, strict=False):
            for _, point in measured:
                gap = getattr(point, name)
                if gap is not None:
                    norm = point.series.norm
                    hollow = {} if point.series.placement == "Post-Norm" else {"mfc": "white"}
                    label = ", ".join(filter(None, (norm, point.series.placement)))
                    axes.plot([point.tid], [gap], "o", color=colours[norm], label=label, **hollow)
            axes.set(title=heading, ylabel=unit)
        for it in paper_points():
            mark = {"marker": _MARKERS[it.metric], "color": GREY, "linestyle": "none"}
            row[-1].plot([it.tid], [it.gap], markersize=4, label=f"paper, {it.metric}", **mark)
        row[-1].set(title="paper: 20 settings of BN", ylabel="gap, unit of the metric")
        for axes in row:
            axes.axhline(0, color="black", linewidth=0.8)
            axes.set_xlabel("total TID of the last layer, %")
        legend_below(canvas, canvas.axes)
        return canvas
