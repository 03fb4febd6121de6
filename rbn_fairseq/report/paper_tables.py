"""Tables 1 to 4 of the paper, from our runs, the paper's numbers beside them."""

from collections.abc import Callable, Sequence
from typing import Optional

from rbn_fairseq.report.blocks import Cell, Table
from rbn_fairseq.report.cells import empty, mean_cell, number_cell, paper_cell
from rbn_fairseq.report.commands import benchmark_of, score_command, train_command
from rbn_fairseq.report.gaps import bleu_gap, bleu_kind, bleu_of, nll_gap
from rbn_fairseq.report.grouping import Group, Series, mean_over_seeds
from rbn_fairseq.report.published import published
from rbn_fairseq.report.runs import Run

__all__ = ["paper_tables"]

_MAIN = ("LN", "BN", "RBN")
_OTHERS = ("PN-only", "PN+LS", "BRN", "MABN")
_PLACED = ("Post-Norm", "Pre-Norm")


class _Tables:
    """Makes the tables of one group."""

    def __init__(self, group: Group, colours: dict[str, str], suffix: str) -> None:
        self.group, self.colours, self.suffix = group, colours, suffix
        self.kind = bleu_kind(group.runs)
        known = [one.setup.data for one in group.series if one.setup.data]
        wmt = bool(known) and benchmark_of(known[0]) == "wmt16"
        self.datasets = ("IWSLT14", "WMT16") if wmt else ("IWSLT14",)

    def series(self, placement: str, norm: str) -> tuple[Series, ...]:
        return tuple(one for one in self.group.of(placement) if one.norm == norm)

    def bleu(self, one: Series) -> Cell:
        mean = mean_over_seeds(one, lambda run: bleu_of(run, self.kind))
        return mean_cell(mean, 2, "" if mean else score_command(one.runs[0]))

    def tid(self, one: Series, name: str) -> Cell:
        def last(run: Run) -> Optional[float]:
            return 100 * float(getattr(run.tid[-1].last, name)) if run.tid else None

        mean = mean_over_seeds(one, last)
        return mean_cell(mean, 2, "" if mean else f"{one.runs[0].name}: `rbn tid SAVE_DIR`")

    def absent(self, placement: str, norm: str) -> Cell:
        return empty(train_command(self.group, placement, norm))

    def significance(self, one: Series) -> Cell:
        """P of the paired bootstrap, run by run."""
        if one.norm == "LN":
            return empty()
        found = [
            score["significance"]
            for score in (run.scores.get(self.kind, {}) for run in one.runs)
            if isinstance(score.get("significance"), dict) and "p" in score["significance"]
        ]
        if not found:
            return empty(f"{one.runs[0].name}: `rbn score … --against LN's generate.txt`")
        p = [float(it["p"]) for it in found]
        note = f"against {found[0].get('against', 'LN')}, {found[0].get('samples', '?')} samples"
        return Cell(", ".join(f"{it:.3f}" for it in p), p[0], note=note)

    def performance(self, number: int, norms: Sequence[str], title: str) -> Table:
        """Tables 2 and 3: a row a norm and placement."""
        columns = ["", f"BLEU ({self.kind})", "n", "BLEU - LN's", "p", "valid nll", "nll - LN's"]
        columns += [f"paper, {dataset}" for dataset in self.datasets]
        rows = []
        for placement in self.placements():
            for norm in norms:
                paper = [
                    paper_cell(published().performance(placement, norm, it)) for it in self.datasets
                ]
                name = f"{placement.partition('-')[0]}-{norm}"
                for one in self.series(placement, norm):
                    label = f"{name} ({one.detail})" if one.detail else name
                    rows.append((self.named(label, norm), *self.measured(one), *paper))
                if not self.series(placement, norm):
                    gap = self.absent(placement, norm)
                    rows.append((self.named(name, norm), gap, *[empty()] * 5, *paper))
        return self.table(f"table{number}", title, columns, rows)

    def named(self, label: str, norm: str) -> Cell:
        return Cell(label, colour=self.colours.get(norm, ""))

    def measured(self, one: Series) -> tuple[Cell, ...]:
        nll = mean_over_seeds(one, lambda run: _last_nll(run))
        gap = bleu_gap(self.group, one, self.kind)
        gap = None if gap is None or one.norm == "LN" else -gap
        nll_more = None if one.norm == "LN" else nll_gap(self.group, one)
        return (
            self.bleu(one),
            Cell(str(len(one.runs)), len(one.runs)),
            number_cell(gap, 2, sign=True),
            self.significance(one),
            mean_cell(nll, 3),
            number_cell(nll_more, 3, sign=True),
        )

    def placements(self) -> tuple[str, ...]:
        """Those of the paper that are present, or both where only others are."""
        return tuple(it for it in _PLACED if it in self.group.placements) or _PLACED

    def first(self) -> Table:
        """Table 1: LN, BN, the gap, and BN's TID of the last layer."""
        columns = ("", f"LN, BLEU ({self.kind})", "BN, BLEU", "BN - LN, BLEU", "BN - LN, nll",
                   "mean TID, %", "variance TID, %", "n")  # fmt: skip
        rows = []
        for placement in self.placements():
            for one in self.series(placement, "BN"):
                rows.append(self.first_row(placement, one))
            if not self.series(placement, "BN"):
                gap, ours = self.absent(placement, "BN"), self.series(placement, "LN")
                layer = self.bleu(ours[0]) if ours else self.absent(placement, "LN")
                rows.append((Cell(f"{placement}, here"), layer, gap, *[empty()] * 5))
            for dataset in self.datasets:
                rows.append(self.first_of_paper(placement, dataset))
        return self.table("table1", "Table 1: BN against LN", columns, rows)

    def first_row(self, placement: str, one: Series) -> tuple[Cell, ...]:
        layer = self.group.baseline(one)
        gap = bleu_gap(self.group, one, self.kind)
        return (
            Cell(", ".join(filter(None, (placement, one.detail, "here")))),
            self.bleu(layer) if layer else self.absent(placement, "LN"),
            self.bleu(one),
            number_cell(None if gap is None else -gap, 2, sign=True),
            number_cell(nll_gap(self.group, one), 3, sign=True),
            self.tid(one, "mean_tid"),
            self.tid(one, "var_tid"),
            Cell(str(len(one.runs)), len(one.runs)),
        )

    def first_of_paper(self, placement: str, dataset: str) -> tuple[Cell, ...]:
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
            empty(),
        )

    def fourth(self) -> Table:
        """Table 4: TID of the last layer, BN and RBN."""
        columns = ["", "mean TID, %", "variance TID, %", "n"]
        columns += [f"paper, {it}, {kind}, %" for it in self.datasets for kind in ("mean", "var.")]
        rows = []
        for placement in self.placements():
            for norm in ("BN", "RBN"):
                paper = [
                    paper_cell(published().last_tid(placement, kind, norm, dataset))
                    for dataset in self.datasets
                    for kind in ("mean", "variance")
                ]
                name = f"{placement.partition('-')[0]}-{norm}"
                for one in self.series(placement, norm):
                    label = f"{name} ({one.detail})" if one.detail else name
                    tids = (self.tid(one, it) for it in ("mean_tid", "var_tid"))
                    count = Cell(str(len(one.runs)), len(one.runs))
                    rows.append((self.named(label, norm), *tids, count, *paper))
                if not self.series(placement, norm):
                    gap = self.absent(placement, norm)
                    rows.append((self.named(name, norm), gap, empty(), empty(), *paper))
        return self.table("table4", "Table 4: TID of the last layer", columns, rows)

    def table(
        self, name: str, title: str, columns: Sequence[str], rows: Sequence[tuple[Cell, ...]]
    ) -> Table:
        notes = [
            "Mean over seeds ± sample standard deviation (n - 1), n seeds. Grey: the paper's "
            "numbers, means of at least three seeds, of its own model and data.",
        ]
        if any("BLEU" in column for column in columns):
            signatures = sorted(
                {
                    str(run.scores[self.kind].get("signature", "unknown"))
                    for run in self.group.runs
                    if self.kind in run.scores
                }
            )
            if signatures:
                notes.append(f"BLEU: {self.kind}, `{'`, `'.join(signatures)}`.")
            notes.append(
                "Differences to LN: same seed where there is one, else LN's mean; valid nll in "
                "bits per token at the last epoch that both have."
            )
        rows = tuple(rows)
        return Table(f"{name}{self.suffix}", title, tuple(columns), rows, tuple(notes))


def _last_nll(run: Run) -> Optional[float]:
    return run.validations[-1].nll_loss if run.validations else None


def paper_tables(group: Group, colours: dict[str, str], suffix: str = "") -> list[Table]:
    """Return Tables 1 to 4 with the group's runs; Table 3 has the norms that are there."""
    tables = _Tables(group, colours, suffix)
    present = {one.norm for one in group.series}
    first = [norm for norm in _OTHERS if norm in present]
    others = first + sorted(present - set(_MAIN) - set(first))
    make: list[Callable[[], Table]] = [
        tables.first,
        lambda: tables.performance(2, _MAIN, "Table 2: LN, BN and RBN"),
        lambda: tables.performance(3, others, "Table 3: other norms"),
        tables.fourth,
    ]
    if not others:
        del make[2]
    return [table() for table in make]
