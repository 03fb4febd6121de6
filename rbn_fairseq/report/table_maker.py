"""What the tables of the paper share: rows by placement and norm, cells, notes."""

from collections.abc import Sequence
from typing import Optional

from rbn_fairseq.report.blocks import Cell, Table
from rbn_fairseq.report.cells import empty, mean_cell
from rbn_fairseq.report.commands import SCORE, TID, benchmark_of, train_command
from rbn_fairseq.report.gaps import bleu_kind, bleu_of
from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.series import Group, Series, mean_over_seeds

__all__ = ["TableMaker"]

_PLACED = ("Post-Norm", "Pre-Norm")


class TableMaker:
    """Makes cells and tables from one group.

    Attributes:
        group: its runs.
        colours: of its norms.
        kind: of BLEU, one for all tables.
        datasets: of the paper, whose numbers stand beside ours.
    """

    def __init__(self, group: Group, colours: dict[str, str], suffix: str) -> None:
        self.group, self.colours, self._suffix = group, colours, suffix
        self.kind = bleu_kind(group.runs)
        known = [one.setup.data for one in group.series if one.setup.data]
        wmt = bool(known) and benchmark_of(known[0]) == "wmt16"
        self.datasets = ("IWSLT14", "WMT16") if wmt else ("IWSLT14",)

    def series(self, placement: str, norm: str) -> tuple[Series, ...]:
        """Return the series of a placement and norm."""
        return tuple(one for one in self.group.of(placement) if one.norm == norm)

    def placements(self) -> tuple[str, ...]:
        """Those of the paper that are present, or both where only others are."""
        return tuple(it for it in _PLACED if it in self.group.placements) or _PLACED

    def named(self, label: str, norm: str) -> Cell:
        """A norm's name with its colour."""
        return Cell(label, colour=self.colours.get(norm, ""))

    def absent(self, placement: str, norm: str) -> Cell:
        """An empty cell with the command that would train the norm."""
        return empty(train_command(self.group, placement, norm))

    def bleu(self, one: Series) -> Cell:
        """BLEU, mean over seeds."""
        mean = mean_over_seeds(one, lambda run: bleu_of(run, self.kind))
        return mean_cell(mean, 2, len(one.runs), "" if mean else SCORE)

    def tid(self, one: Series, name: str) -> Cell:
        """TID of the last layer in per cent, mean over seeds."""

        def last(run: Run) -> Optional[float]:
            return 100 * float(getattr(run.tid[-1].last, name)) if run.tid else None

        mean = mean_over_seeds(one, last)
        return mean_cell(mean, 2, len(one.runs), "" if mean else TID)

    def table(
        self, name: str, title: str, columns: Sequence[str], rows: Sequence[tuple[Cell, ...]]
    ) -> Table:
        """Return the table with the notes that its columns need."""
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
        return Table(f"{name}{self._suffix}", title, tuple(columns), rows, tuple(notes))
