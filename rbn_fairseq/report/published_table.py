"""The paper's own Tables 1 to 4, of all its data sets."""

from rbn_fairseq.report.blocks import Cell, Section, Table
from rbn_fairseq.report.cells import paper_cell
from rbn_fairseq.report.published import published

__all__ = ["published_section"]

_PLACEMENTS = ("Post-Norm", "Pre-Norm")
#: The tables of the paper that have a norm's performance.
_TABLES = {"LN": "1, 2", "BN": "1, 2", "RBN": "2", "PN-only": "3", "PN+LS": "3", "BRN": "3",
           "MABN": "3"}  # fmt: skip


def published_section() -> Section:
    """Return a section with one table: a row a norm or its TID, a column a data set."""
    paper = published()
    rows = []
    for placement in _PLACEMENTS:
        place = placement.partition("-")[0]
        for norm, number in _TABLES.items():
            values = [paper.performance(placement, norm, it) for it in paper.datasets]
            rows.append((number, f"{place}-{norm}", [paper_cell(it) for it in values]))
        gaps = [paper.gap(placement, "BN", it) for it in paper.datasets]
        better = [paper_cell(None if it is None else 0.0 - it, sign=True) for it in gaps]
        rows.append(("1", f"{place}-BN, better than LN by", better))
        for norm, number in (("BN", "1, 4"), ("RBN", "4")):
            for kind in ("mean", "variance"):
                tids = [paper.last_tid(placement, kind, norm, it) for it in paper.datasets]
                name = f"{place}-{norm}, {kind} TID, %"
                rows.append((number, name, [paper_cell(it) for it in tids]))
    columns = ("model", "table", *map(", ".join, zip(paper.datasets, paper.metrics, strict=True)))
    table = Table(
        "published",
        "The paper's Tables 1 to 4, all data sets",
        columns,
        tuple((Cell(name, paper=True), Cell(at, paper=True), *own) for at, name, own in rows),
        (
            "Of perplexity (PPL) less is better. 0.0 and inf are trainings that failed, as the "
            "paper prints them. TID is that of the last layer.",
        ),
    )
    text = "Wang, Wu and Huang (NeurIPS 2022): means of at least 3 seeds, without error bars."
    return Section("The paper's own numbers", text, (table,))
