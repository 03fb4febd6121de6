"""Tables 2 and 3: BLEU by norm, with the gap to layer norm and its significance."""

from collections.abc import Sequence
from pathlib import PurePath

from rbn_fairseq.report.blocks import Cell, Table
from rbn_fairseq.report.cells import empty, mean_cell, paper_cell
from rbn_fairseq.report.commands import AGAINST
from rbn_fairseq.report.gaps import nll_of, pairs
from rbn_fairseq.report.published import published
from rbn_fairseq.report.series import Series, mean_at_last
from rbn_fairseq.report.table_maker import TableMaker

__all__ = ["performance_table"]


def _significance(make: TableMaker, one: Series) -> Cell:
    """Give the paired bootstrap's p, run by run, where it is against layer norm's translations."""
    if one.norm == "LN" or not any(make.kind in run.scores for run in one.runs):
        return empty()
    layer_norms = {run.name: {it.name for it in them} for run, them in pairs(make.group, one)}
    found, others = [], []
    for run in one.runs:
        test = run.scores.get(make.kind, {}).get("significance")
        if test:
            directory = PurePath(str(test.get("against", ""))).parent.name
            (found if directory in layer_norms.get(run.name, ()) else others).append(test)
    if found:
        p = [float(it["p"]) for it in found]
        note = f"against {found[0]['against']}, {found[0].get('samples', '?')} samples"
        text = ", ".join(f"{it:.3f}" for it in p)
        return Cell(text, p[0], note=note, csv=(("", text),) if len(p) > 1 else ())
    if others:
        paths = ", ".join(str(it.get("against", "an unnamed file")) for it in others)
        return empty(f"p is against {paths}, which lies in no directory named as LN's run")
    return empty(f"{one.runs[0].name}: {AGAINST}")


def _measured(make: TableMaker, one: Series) -> tuple[Cell, ...]:
    base = one.norm == "LN"
    return (
        make.bleu(one),
        Cell(str(len(one.runs)), len(one.runs)),
        empty() if base else make.bleu_more(one),
        _significance(make, one),
        mean_cell(mean_at_last(one, nll_of), 3, len(one.runs)),
        empty() if base else make.nll_more(one),
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
