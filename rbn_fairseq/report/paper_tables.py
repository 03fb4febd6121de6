"""Tables 1 to 4 of the paper, from our runs, the paper's numbers beside them."""

from rbn_fairseq.report.blocks import Table
from rbn_fairseq.report.performance_tables import performance_table
from rbn_fairseq.report.series import Group
from rbn_fairseq.report.table_maker import TableMaker
from rbn_fairseq.report.tid_tables import gap_table, tid_table

__all__ = ["paper_tables"]

_MAIN = ("LN", "BN", "RBN")
_OTHERS = ("PN-only", "PN+LS", "BRN", "MABN")


def paper_tables(group: Group, colours: dict[str, str], suffix: str = "") -> list[Table]:
    """Return Tables 1 to 4 with the group's runs; Table 3 has the other norms that are there."""
    make = TableMaker(group, colours, suffix)
    placed = {one.norm for placement in make.placements() for one in group.of(placement)}
    others = [norm for norm in _OTHERS if norm in placed]
    others += sorted(placed - set(_MAIN) - set(others))
    third = [performance_table(make, 3, others, "Table 3: other norms")] if others else []
    second = performance_table(make, 2, _MAIN, "Table 2: LN, BN and RBN")
    return [gap_table(make), second, *third, tid_table(make)]
