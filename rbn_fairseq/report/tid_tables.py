"""Tables 1 and 4: TID of the last layer beside the gap between BN and LN."""

from rbn_fairseq.report.blocks import Cell, Table
from rbn_fairseq.report.cells import empty, paper_cell
from rbn_fairseq.report.published import published
from rbn_fairseq.report.series import Series
from rbn_fairseq.report.table_maker import TableMaker

__all__ = ["gap_table", "tid_table"]

_COLUMNS = (
    "mean TID, %", "variance TID, %", "mean TID given length, %", "variance TID given length, %",
)  # fmt: skip
_NAMES = ("mean_tid", "var_tid", "mean_conditional_tid", "var_conditional_tid")


def _row(make: TableMaker, placement: str, one: Series) -> tuple[Cell, ...]:
    layer = make.group.baseline(one)
    bins = one.norm.removeprefix("BN").strip()
    return (
        Cell(", ".join(filter(None, (placement, bins, one.detail, "here")))),
        make.bleu(layer) if layer else make.absent(placement, "LN"),
        make.bleu(one),
        make.bleu_more(one),
        make.nll_more(one),
        *(make.tid(one, name) for name in _NAMES),
        Cell(str(len(one.runs)), len(one.runs)),
    )


def _row_of_paper(placement: str, dataset: str) -> tuple[Cell, ...]:
    paper = published()
    layer, batch = (paper.performance(placement, norm, dataset) for norm in ("LN", "BN"))
    gap = None if layer is None or batch is None else batch - layer
    tids = (paper.last_tid(placement, it, "BN", dataset) for it in ("mean", "variance"))
    return (
        Cell(f"{placement}, paper, {dataset}", paper=True),
        paper_cell(layer),
        paper_cell(batch),
        paper_cell(gap, sign=True),
        empty(),
        *map(paper_cell, tids),
        *[empty()] * 3,
    )


def gap_table(make: TableMaker) -> Table:
    """Return Table 1: LN, BN, their gap, and BN's TID of the last layer."""
    columns = ("", f"LN, BLEU ({make.kind})", "BN, BLEU", "BN - LN, BLEU", "BN - LN, nll",
               *_COLUMNS, "n")  # fmt: skip
    rows = []
    for placement in make.placements():
        series = make.with_bins(placement, "BN")
        for one in series:
            rows.append(_row(make, placement, one))
        if not series:
            gap, ours = make.absent(placement, "BN"), make.series(placement, "LN")
            layer = make.bleu(ours[0]) if ours else make.absent(placement, "LN")
            rows.append((Cell(f"{placement}, here"), layer, gap, *[empty()] * 7))
        for dataset in make.datasets:
            rows.append(_row_of_paper(placement, dataset))
    return make.table("table1", "Table 1: BN against LN", columns, rows)


def tid_table(make: TableMaker) -> Table:
    """Return Table 4: TID of the last layer, BN and RBN."""
    columns = ["", *_COLUMNS, "n"]
    columns += [f"paper, {it}, {kind}, %" for it in make.datasets for kind in ("mean", "var.")]
    rows = []
    for placement in make.placements():
        for norm in ("BN", "RBN"):
            paper = [
                paper_cell(published().last_tid(placement, kind, norm, dataset))
                for dataset in make.datasets
                for kind in ("mean", "variance")
            ]
            short = placement.partition("-")[0]
            series = make.with_bins(placement, norm)
            for one in series:
                tids = (make.tid(one, it) for it in _NAMES)
                count = Cell(str(len(one.runs)), len(one.runs))
                rows.append((make.named(f"{short}-{one.label}", one.norm), *tids, count, *paper))
            if not series:
                gap = make.absent(placement, norm)
                rows.append((make.named(f"{short}-{norm}", norm), gap, *[empty()] * 4, *paper))
    return make.table("table4", "Table 4: TID of the last layer", columns, rows)
