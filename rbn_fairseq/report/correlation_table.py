"""The correlation of TID with the gap to layer norm, ours and the paper's, as a table."""

from collections.abc import Sequence
from typing import Optional

from rbn_fairseq.report.blocks import Cell, Table
from rbn_fairseq.report.correlation import Correlation, pearson, spearman
from rbn_fairseq.report.figures.scatter import paper_points
from rbn_fairseq.report.gaps import Point

__all__ = ["correlation_table"]

_COLUMNS = ("settings", "n", "Spearman", "95 % interval", "Pearson", "95 % interval, Pearson")


def _cells(found: Optional[Correlation], paper: bool) -> tuple[Cell, Cell]:
    if found is None:
        return Cell("", paper=paper, note="units differ: ranks only"), Cell("", paper=paper)
    if found.value is None:
        why = "fewer than two settings" if found.number < 2 else "all values are the same"
        return Cell("", paper=paper, note=why), Cell("", paper=paper)
    value = Cell(f"{found.value:+.2f}", found.value, paper)
    if found.interval is None:
        why = "fewer than four settings" if found.number < 4 else "the coefficient is 1 or -1"
        return value, Cell("", paper=paper, note=f"no interval: {why}")
    low, high = found.interval
    ends = (("low", low), ("high", high))
    return value, Cell(f"{low:+.2f} to {high:+.2f}", low, paper, csv=ends)


def _row(
    name: str, pairs: Sequence[tuple[float, float]], paper: bool, linear: bool = True
) -> tuple[Cell, ...]:
    x, y = [tid for tid, _ in pairs], [gap for _, gap in pairs]
    ranks = spearman(x, y)
    lost = f"{ranks.left_out} more have a TID or a gap that is not finite" if ranks.left_out else ""
    return (
        Cell(name, paper=paper),
        Cell(str(ranks.number), ranks.number, paper, lost),
        *_cells(ranks, paper),
        *_cells(pearson(x, y) if linear else None, paper),
    )


def correlation_table(measured: Sequence[tuple[str, Point]]) -> Table:
    """Return the table; ``measured``: a group's title and a point, each."""
    titles = list(dict.fromkeys(title for title, _ in measured))
    rows = []
    for title in titles:
        for name, label in (("bleu", "BLEU"), ("nll", "valid nll")):
            pairs = [
                (point.tid, getattr(point, name))
                for own, point in measured
                if own == title and getattr(point, name) is not None
            ]
            where = f", {title}" if len(titles) > 1 else ""
            rows.append(_row(f"here, {label}{where}", pairs, paper=False))
    theirs = paper_points()
    rows.append(
        _row("paper, all metrics", [(it.tid, it.gap) for it in theirs], paper=True, linear=False)
    )
    for metric in dict.fromkeys(it.metric for it in theirs):
        pairs = [(it.tid, it.gap) for it in theirs if it.metric == metric]
        rows.append(_row(f"paper, {metric}", pairs, paper=True))
    notes = (
        "Total TID of the last layer (mean + variance) against the gap to layer norm, positive = "
        "worse than LN in the metric's own unit. n counts settings, each a mean over its seeds; "
        "the gap is to the same seed's LN where there is one, else to LN's mean.",
        "Intervals: Pearson by Fisher's z with standard error 1 / sqrt(n - 3); Spearman the same "
        "with sqrt((1 + r^2 / 2) / (n - 3)) (Bonett and Wright, 2000). They take the settings for "
        "independent, which settings of one data set and one layer norm are not. Fewer than 4 "
        "settings have none.",
        "The paper's metrics have different units (points of BLEU, perplexity, F1, accuracy), so "
        "all 20 of its settings together have ranks only.",
    )
    return Table(
        "correlation", "Correlation of TID with the gap to LN", _COLUMNS, tuple(rows), notes
    )
