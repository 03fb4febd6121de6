"""Tables 2 and 3: BLEU by norm, with the gap to layer norm and its significance."""

from collections.abc import Sequence

from rbn_fairseq.report.blocks import Cell, Table
from rbn_fairseq.report.cells import empty, mean_cell, number_cell, paper_cell
from rbn_fairseq.report.commands import AGAINST
from rbn_fairseq.report.gaps import bleu_gap, last_nll, nll_gap
from rbn_fairseq.report.published import published
from rbn_fairseq.report.series import Series, mean_over_seeds
from rbn_fairseq.report.table_maker import TableMaker

__all__ = ["performance_table"]


def _significance(make: TableMaker, one: Series) -> Cell:
    """Give the paired bootstrap's p, run by run."""
    if one.norm == "LN":
        return empty()
    found = [
        score["significance"]
        for score in (run.scores.get(make.kind, {}) for run in one.runs)
        if isinstance(score.get("significance"), dict) and "p" in score["significance"]
    ]
    if not any(make.kind in run.scores for run in one.runs):
        return empty()
    if not found:
        return empty(f"{one.runs[0].name}: {AGAINST}")
    p = [float(it["p"]) for it in found]
    note = f"against {found[0].get('against', 'LN')}, {found[0].get('samples', '?')} samples"
    text = ", ".join(f"{it:.3f}" for it in p)
    return Cell(text, p[0], note=note, csv=(("", text),) if len(p) > 1 else ())


def _measured(make: TableMaker, one: Series) -> tuple[Cell, ...]:
    nll = mean_over_seeds(one, last_nll)
    gap = bleu_gap(make.group, one, make.kind)
    gap = None if gap is None or one.norm == "LN" else -gap
    nll_more = None if one.norm == "LN" else nll_gap(make.group, one)
    return (
        make.bleu(one),
        Cell(str(len(one.runs)), len(one.runs)),
        number_cell(gap, 2, sign=True),
        _significance(make, one),
        mean_cell(nll, 3, len(one.runs)),
        number_cell(nll_more, 3, sign=True),
    )


def performance_table(make: TableMaker, number: int, norms: Sequence[str], title: str) -> Table:
    """Return Table 2 or 3: a row a placement and norm, with the paper's number."""
    columns = ["", f"BLEU ({make.kind})", "n", "BLEU - LN's", "p", "valid nll", "nll - LN's"]
    columns += [f"paper, {dataset}" for dataset in make.datasets]
    rows = []
    for placement in make.placements():
        for norm in norms:
            paper = [
                paper_cell(published().performance(placement, norm, it)) for it in make.datasets
            ]
            name = f"{placement.partition('-')[0]}-{norm}"
            for one in make.series(placement, norm):
                label = f"{name} ({one.detail})" if one.detail else name
                rows.append((make.named(label, norm), *_measured(make, one), *paper))
            if not make.series(placement, norm):
                gap = make.absent(placement, norm)
                rows.append((make.named(name, norm), gap, *[empty()] * 5, *paper))
    return make.table(f"table{number}", title, columns, rows)
