"""What the tables of the paper share: rows by placement and norm, cells, notes."""

from collections.abc import Sequence
from dataclasses import replace

from rbn_fairseq.report.blocks import Cell, Table
from rbn_fairseq.report.cells import empty, mean_cell, number_cell
from rbn_fairseq.report.commands import SCORE, TID, benchmark_of, train_command
from rbn_fairseq.report.gaps import (
    bleu_gap,
    bleu_kind,
    bleu_of,
    last_epoch,
    last_tid,
    nll_gap,
    pairs,
    signature,
)
from rbn_fairseq.report.series import Group, Series, mean_at_last, mean_over_seeds
from rbn_fairseq.report.setups import BY_LENGTH

__all__ = ["GIVEN_LENGTH", "TableMaker"]

#: What a table says of such columns.
GIVEN_LENGTH = (
    "TID given length: batches compared with the population of batches of like length, in the same "
    "unit."
)
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

    def with_bins(self, placement: str, norm: str) -> tuple[Series, ...]:
        """Return these, and those with bins of lengths, whose TID is measured alike."""
        return self.series(placement, norm) + self.series(placement, norm + BY_LENGTH)

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
        mean = mean_at_last(one, lambda run: last_tid(run, name))
        return mean_cell(mean, 2, len(one.runs), "" if mean else TID)

    def bleu_more(self, one: Series) -> Cell:
        """BLEU minus layer norm's; a note where the two were computed in different ways."""
        gap = bleu_gap(self.group, one, self.kind)
        compared = [(run, it) for run, others in pairs(self.group, one) for it in others]
        scored = [both for both in compared if all(self.kind in run.scores for run in both)]
        differ = any(len({signature(run, self.kind) for run in both}) > 1 for both in scored)
        note = "BLEU has other signatures than LN's" if differ else ""
        return number_cell(None if gap is None else -gap, 2, note, sign=True)

    def nll_more(self, one: Series) -> Cell:
        """Validation nll minus layer norm's; a note where that is not of the last epoch of all."""
        gap = nll_gap(self.group, one)
        if gap is None:
            return empty()
        epoch, value = gap
        runs = {run.name: run for own, others in pairs(self.group, one) for run in (own, *others)}
        ends = {last_epoch(run) for run in runs.values()} - {None}
        note = "" if ends == {epoch} else f"at epoch {epoch}, the last that all seeds and LN have"
        return replace(number_cell(value, 3, sign=True), note=note)

    def table(
        self, name: str, title: str, columns: Sequence[str], rows: Sequence[tuple[Cell, ...]]
    ) -> Table:
        """Return the table with the notes that its columns need.

        Columns of TID given length are left out where no run has it, as none of older versions.
        """
        kept = [
            n
            for n, column in enumerate(columns)
            if "given length" not in column or any(row[n].text for row in rows)
        ]
        columns = [columns[n] for n in kept]
        rows = [tuple(row[n] for n in kept) for row in rows]
        notes = [
            "Mean over seeds ± sample standard deviation (n - 1), n seeds. Grey: the paper's "
            "numbers, means of at least three seeds, of its own model and data.",
        ]
        if any("BLEU" in column for column in columns):
            signatures = sorted(
                {signature(run, self.kind) for run in self.group.runs if self.kind in run.scores}
            )
            if signatures:
                notes.append(f"BLEU: {self.kind}, `{'`, `'.join(signatures)}`.")
            notes.append(
                "Differences to LN: same seed where there is one, else LN's mean; valid nll in "
                "bits per token at the last epoch that both have; BLEU only where both trainings "
                "ended at the same epoch and were scored with the same signature."
            )
        if any("given length" in column for column in columns):
            notes.append(GIVEN_LENGTH)
        return Table(f"{name}{self._suffix}", title, tuple(columns), tuple(rows), tuple(notes))
