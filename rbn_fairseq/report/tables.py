"""Tables of runs: all runs, the paper's Tables 1 to 4, correlation of TID with the gap to LN."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import pandas as pd

from rbn_fairseq.report.blocks import SEEDS, SPREAD, Table
from rbn_fairseq.report.compare import Group, at_last_epoch, last_gaps, last_layer
from rbn_fairseq.report.paper import PLACED, published_gaps, published_results
from rbn_fairseq.report.setups import BY_LENGTH

__all__ = ["ENOUGH", "correlation_table", "paper_tables", "summary"]

#: Points that a correlation, and settings that a scatter of them, must have.
ENOUGH = 3
_GIVEN_LENGTH = (
    "TID given length: batches compared with the population of batches of like length, in the same "
    "unit."
)
_TID = {
    "mean TID, %": "mean_tid",
    "variance TID, %": "var_tid",
    "mean TID given length, %": "mean_conditional_tid",
    "variance TID given length, %": "var_conditional_tid",
}
_GAPS = (
    "Differences to LN: same seed where there is one, else LN's mean; valid nll in bits per token "
    "at the last epoch that both have; BLEU only where both trainings ended at the same epoch and "
    "were scored with the same signature."
)
_MAIN = ("LN", "BN", "RBN")
_OTHERS = ("PN-only", "PN+LS", "BRN", "MABN")


class _Cells:
    """What the paper's tables show of each of a group's series.

    Attributes:
        cells: a row a series: means over seeds of ``BLEU``, ``nll`` and the TID of the last layer,
            each with its columns of :data:`SPREAD` and :data:`SEEDS`; ``BLEU gap`` and ``nll gap``
            to layer norm; ``p``; and ``n``, the number of seeds.
        notes: what a cell lacks, as series, column and text.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        seeds = group.runs.groupby("series").size()
        last = last_layer(group)
        means = {
            "BLEU": group.bleu.groupby("series")["bleu"].agg(["mean", "std", "count"]),
            "nll": at_last_epoch(group.frames["valid"], "nll_loss"),
            **{name: at_last_epoch(last, name) for name in _TID.values()},
        }
        self.notes: list[tuple[Any, str, str]] = []
        parts = []
        for name, mean in means.items():
            part = mean[["mean", "std", "count"]].astype({"count": "Int64"})
            parts.append(part.set_axis([name, name + SPREAD, name + SEEDS], axis=1))
            for series, row in mean.iterrows():
                if row["count"] < seeds[series]:
                    text = f"{row['count']:g} of {seeds[series]} seeds."
                    self.notes.append((series, name, text))
                if row.get("later", False):
                    text = f"at epoch {row['epoch']:g}, the last that all seeds have."
                    self.notes.append((series, name, text))
        gaps = last_gaps(group)
        parts.append(pd.DataFrame({"BLEU gap": -gaps["bleu"], "nll gap": gaps["nll"]}))
        parts += [self._significance().rename("p"), seeds.astype("Int64").rename("n")]
        self.cells = pd.concat(parts, axis=1)
        pairs = group.pairs.melt("series", ["run", "baseline"], value_name="of")
        ends = pairs["of"].map(group.runs["epochs"]).groupby(pairs["series"]).agg(set)
        for series, row in gaps.iterrows():
            if row["differ"]:
                self.notes.append((series, "BLEU gap", "BLEU has other signatures than LN's."))
            if pd.notna(row["nll"]) and ends[series] - {0} != {row["epoch"]}:
                text = f"nll against LN's at epoch {row['epoch']:g}, the last that all have."
                self.notes.append((series, "nll gap", text))

    def _significance(self) -> "pd.Series[Any]":
        """Return the paired bootstrap's p where it is against layer norm's; several as a text."""
        runs, pairs = self.group.runs, self.group.pairs
        directories = pairs["baseline"].map(runs["directory"]).groupby(pairs["run"]).agg(set)
        p: dict[Any, list[float]] = {}
        for row in self.group.bleu.dropna(subset=["p"]).itertuples():
            if PurePath(str(row.against)).parent.name in directories.get(row.run, ()):
                p.setdefault(row.series, []).append(row.p)
            elif row.norm != "LN":
                text = (
                    f"a p is against {row.against}, which lies in no directory named as LN's run, "
                    "and is left out."
                )
                self.notes.append((row.series, "p", text))
        texts = {
            series: values[0] if len(values) == 1 else ", ".join(f"{value:.3f}" for value in values)
            for series, values in p.items()
        }
        several = any(len(values) > 1 for values in p.values())
        return pd.Series(texts, dtype=object if several else float)

    def look_up(self, series: pd.Series, columns: Mapping[str, str]) -> pd.DataFrame:
        """Return columns, by their headings, of series; rows without a series (NaN) are empty."""
        names = {
            cell + suffix: heading + suffix
            for heading, cell in columns.items()
            for suffix in ("", SPREAD, SEEDS)
            if cell + suffix in self.cells
        }
        return self.cells[list(names)].rename(columns=names).reindex(series).set_axis(series.index)

    def notes_on(self, series: pd.Series, columns: Mapping[str, str]) -> list[str]:
        """Return the notes on these cells."""
        headings = {cell: heading for heading, cell in columns.items()}
        labels = self.group.series["label"]
        return [
            f"{labels[number]}{f', {headings[cell]}' if cell + SEEDS in self.cells else ''}: {text}"
            for shown in series
            for number, cell, text in self.notes
            if number == shown and cell in headings
        ]


def _rows(group: Group, norms: Sequence[str], by: str = "norm") -> pd.DataFrame:
    """Return a row for each series of these norms, by placement; an empty one where none is."""
    placements = [name for name in PLACED if name in group.placements] or list(PLACED)
    every = pd.MultiIndex.from_product([placements, norms], names=["placement", by])
    series = group.series.reset_index()
    series["family"] = series["norm"].str.removesuffix(BY_LENGTH)
    series = series.rename(columns={"norm": "norm" if by == "norm" else "full_norm"})
    return every.to_frame(index=False).merge(series, how="left")


def _datasets(group: Group) -> tuple[str, ...]:
    wmt = "wmt16" in str(group.runs["data"].iloc[0]).lower()
    return ("IWSLT14", "WMT16") if wmt else ("IWSLT14",)


def _table(
    cells: _Cells, number: int, title: str, frame: pd.DataFrame, notes: Iterable[str], **more: Any
) -> Table:
    """Return a table with the notes that its columns need.

    Columns of TID given length are left out where no run has it, and so are the numbers of seeds.
    """
    empty = frame.columns[frame.isna().all()]
    optional = [
        column
        for column in empty
        if "given length" in column or column.endswith(SEEDS) or column in ("p", "n")
        or (column.startswith("paper") and not more.get("paper"))
    ]  # fmt: skip
    spreads = [column.removesuffix(SEEDS) + SPREAD for column in optional if column.endswith(SEEDS)]
    frame = frame.drop(columns=[*optional, *spreads])
    general = [
        "Mean over seeds ± sample standard deviation (n - 1), n seeds. The paper's numbers are "
        "means of at least three seeds, of its own model and data."
    ]
    if any("BLEU" in column for column in frame):
        signatures = sorted(set(cells.group.bleu["signature"]))
        if signatures:
            general.append(f"BLEU: {cells.group.bleu_kind}, `{'`, `'.join(signatures)}`.")
        general.append(_GAPS)
    if any("given length" in column for column in frame):
        general.append(_GIVEN_LENGTH)
    digits = {column: 3 if "nll" in column or column == "p" else 2 for column in frame}
    digits = {column: number for column, number in digits.items() if column not in ("", "n")}
    signed = tuple(column for column in frame if " - " in column)
    every = tuple(dict.fromkeys([*general, *notes]))
    return Table(f"table{number}", title, frame, digits, signed, every, **more)


def _gap_table(cells: _Cells) -> Table:
    """Table 1: LN, BN, their gap, and BN's TID of the last layer."""
    group = cells.group
    rows = _rows(group, ["BN"], by="family").set_index("placement", drop=False)
    pairs = group.pairs.drop_duplicates("series").set_index("series")["baseline"]
    layers = group.series.reset_index().query("norm == 'LN'").drop_duplicates("placement")
    baseline = rows["series"].map(pairs.map(group.runs["series"]))
    without = rows["placement"].map(layers.set_index("placement")["series"])
    baseline = baseline.where(rows["series"].notna(), without)
    heading = f"LN, BLEU ({group.bleu_kind})"
    columns = {"BN, BLEU": "BLEU", "BN - LN, BLEU": "BLEU gap", "BN - LN, nll": "nll gap"}
    columns |= {**_TID, "n": "n"}
    names = [
        ", ".join(filter(None, (row.placement, row.full_norm.removeprefix("BN").strip(), row.detail,
                                "here")))
        if pd.notna(row.series) else f"{row.placement}, here"
        for row in rows.itertuples()
    ]  # fmt: skip
    layer = cells.look_up(baseline, {heading: "BLEU"})
    ours = pd.concat([layer, cells.look_up(rows["series"], columns)], axis=1)
    ours.insert(0, "", names)
    paper = published_results()
    theirs = pd.DataFrame(
        [
            {
                "": f"{placement}, paper, {dataset}",
                heading: paper.at[(placement, "LN", dataset), "performance"],
                "BN, BLEU": paper.at[(placement, "BN", dataset), "performance"],
                "mean TID, %": paper.at[(placement, "BN", dataset), "mean_tid"],
                "variance TID, %": paper.at[(placement, "BN", dataset), "var_tid"],
                "placement": placement,
            }
            for placement in rows["placement"].unique() for dataset in _datasets(group)
        ]
    ).set_index("placement")  # fmt: skip
    theirs["BN - LN, BLEU"] = theirs["BN, BLEU"] - theirs[heading]
    parts = [part.loc[[placement]].assign(paper=part is theirs)
             for placement in rows["placement"].unique() for part in (ours, theirs)]  # fmt: skip
    frame = pd.concat(parts, ignore_index=True)
    is_paper = frame.pop("paper")
    notes = cells.notes_on(baseline, {heading: "BLEU"}) + cells.notes_on(rows["series"], columns)
    shown = frozenset(frame.index[is_paper])
    return _table(cells, 1, "Paper's Table 1: BN against LN", frame, notes, paper=shown)


def _performance_table(
    cells: _Cells, colours: Mapping[str, str], number: int, norms: Sequence[str], title: str
) -> Table:
    """Table 2 or 3: a row a placement and norm, with the paper's number."""
    rows = _rows(cells.group, norms)
    columns = {
        f"BLEU ({cells.group.bleu_kind})": "BLEU", "n": "n", "BLEU - LN's": "BLEU gap", "p": "p",
        "valid nll": "nll", "nll - LN's": "nll gap",
    }  # fmt: skip
    frame = cells.look_up(rows["series"], columns)
    details = (" (" + rows["detail"] + ")").where(rows["detail"].fillna("") != "", "")
    frame.insert(0, "", rows["placement"].str.split("-").str[0] + "-" + rows["norm"] + details)
    paper = published_results()["performance"]
    for dataset in _datasets(cells.group):
        keys = zip(rows["placement"], rows["norm"], strict=True)
        frame[f"paper, {dataset}"] = [paper.get((*key, dataset)) for key in keys]
    dots = tuple(colours.get(label, "") for label in rows["label"].fillna(rows["norm"]))
    return _table(
        cells, number, title, frame, cells.notes_on(rows["series"], columns), colours=dots
    )


def _tid_table(cells: _Cells, colours: Mapping[str, str]) -> Table:
    """Table 4: TID of the last layer, BN and RBN."""
    rows = _rows(cells.group, ["BN", "RBN"], by="family")
    columns = {**_TID, "n": "n"}
    frame = cells.look_up(rows["series"], columns)
    label = rows["label"].fillna(rows["family"])
    frame.insert(0, "", rows["placement"].str.split("-").str[0] + "-" + label)
    paper = published_results()
    for dataset in _datasets(cells.group):
        keys = [(*key, dataset) for key in zip(rows["placement"], rows["family"], strict=True)]
        for name, kind in (("mean_tid", "mean"), ("var_tid", "var.")):
            frame[f"paper, {dataset}, {kind}, %"] = [paper.at[key, name] for key in keys]
    notes = cells.notes_on(rows["series"], columns)
    dots = tuple(colours.get(name, "") for name in label)
    return _table(cells, 4, "Paper's Table 4: TID of the last layer", frame, notes, colours=dots)


def paper_tables(group: Group, colours: Mapping[str, str]) -> list[Table]:
    """Return Tables 1 to 4 with the group's runs; Table 3 has the other norms that are there."""
    cells = _Cells(group)
    placed = set(group.runs.loc[group.runs["placement"].isin(PLACED), "norm"])
    others = [norm for norm in _OTHERS if norm in placed]
    others += sorted(placed - set(_MAIN) - set(others))
    second = _performance_table(cells, colours, 2, _MAIN, "Paper's Table 2: LN, BN and RBN")
    third = "Paper's Table 3: other norms"
    thirds = [_performance_table(cells, colours, 3, others, third)] if others else []
    return [_gap_table(cells), second, *thirds, _tid_table(cells, colours)]


def summary(group: Group, colours: Mapping[str, str]) -> Table:
    """Return a row a run; columns that are empty throughout are left out."""
    runs, valid = group.runs, group.frames["valid"]
    nll = valid.groupby("run")["nll_loss"]
    tid = group.frames["tid"]
    latest = tid[tid["update"] == tid.groupby("run")["update"].transform("max")]
    last = latest[latest["depth"] == latest.groupby("run")["depth"].transform("max")]
    last = 100 * last.set_index("run")[["mean_tid", "var_tid"]]
    names = ["mean_tid", "var_tid", "mean_conditional_tid", "var_conditional_tid"]
    average = 100 * latest.groupby("run")[names].agg(lambda values: values.mean(skipna=False))
    frame = pd.DataFrame(
        {
            "run": runs.index.to_series(),
            "placement": runs["placement"],
            "norm": runs["label"],
            "seed": runs["seed"],
            "epochs": runs["epochs"],
            "best valid nll": nll.min(),
            "last valid nll": nll.last(skipna=False),
            "BLEU": group.bleu.set_index("run")["bleu"],
            "mean TID, last layer, %": last["mean_tid"],
            "variance TID, last layer, %": last["var_tid"],
            "mean TID, average, %": average["mean_tid"],
            "variance TID, average, %": average["var_tid"],
            "mean TID given length, average, %": average["mean_conditional_tid"],
            "variance TID given length, average, %": average["var_conditional_tid"],
            "cost, bits per token": _last_cost(group),
            "minutes": runs["seconds"].astype(float) / 60,
        },
        index=runs.index,
    )
    frame = frame.loc[:, ~(frame.isna() | frame.eq("")).all()]
    frame = frame.drop(columns=["placement"] if len(group.placements) == 1 else [], errors="ignore")
    digits = {column: 2 for column in frame if "TID" in column or column == "BLEU"}
    digits |= {"best valid nll": 3, "last valid nll": 3, "cost, bits per token": 4, "minutes": 1}
    notes = ["Validation nll in bits per target token; best and last epoch."]
    if len(group.bleu):
        signatures = "`, `".join(sorted(set(group.bleu["signature"])))
        notes.append(f"BLEU: {group.bleu_kind}, `{signatures}`.")
    if len(tid):
        notes.append(
            "TID at the last measurement, as trained: batches compared with population "
            "statistics, in per cent of the population's standard deviation; 0 is best. Norms "
            "without batch statistics have none."
        )
    if any("given length" in column for column in frame):
        notes.append(_GIVEN_LENGTH)
    if "cost, bits per token" in frame:
        notes.append(
            "Cost: valid nll with running (else recalibrated) statistics minus that with each "
            "batch's own, of the last checkpoint measured."
        )
    if "minutes" in frame:
        notes.append("Minutes: by fairseq's own count, with validation and measurements.")
    planned = runs["settings"].map(lambda settings: settings.get("optimization.max_epoch") or 0)
    fewer = runs["epochs"] < planned
    if fewer.any():
        short = [
            f"{name} ({runs.at[name, 'epochs']} of {planned[name]})" for name in runs[fewer].index
        ]
        notes.append(f"Fewer epochs than planned: {', '.join(short)}.")
    going = runs.index[~runs["ended"].astype(bool) & (runs["sizes"].map(len) > 0)]
    if len(going):
        notes.append(f"The logs of these do not say that the training ended: {', '.join(going)}.")
    dots = tuple(colours[label] for label in runs["label"])
    return Table("summary", "All runs", frame, digits, (), tuple(notes), dots)


def _last_cost(group: Group) -> pd.Series:
    """Return the discrepancy cost as inference has it: with running statistics where measured."""
    cost = group.frames["cost"]
    cost = cost[cost["update"] == cost.groupby("run")["update"].transform("max")]
    table = cost.pivot_table(index="run", columns="statistics", values="cost", aggfunc="last")
    ways = [way for way in ("running", "recalibrated", "pooled") if way in table]
    if not ways:
        return pd.Series(dtype=float)
    return table[ways].bfill(axis=1).iloc[:, 0]


def correlation_table(measured: pd.DataFrame) -> Table:
    """Return the correlation of total TID with the gap to LN, ours and the paper's.

    Args:
        measured: rows of :func:`rbn_fairseq.report.compare.points`, with their group's title.
    """
    titles = list(dict.fromkeys(measured["group"]))
    rows = []
    for title in titles:
        part = measured[measured["group"] == title]
        where = f", {title}" if len(titles) > 1 else ""
        for gap, label in (("bleu", "BLEU"), ("nll", "valid nll")):
            rows.append(_coefficients(f"here, {label}{where}", part["tid"], part[gap]))
    theirs, first = published_gaps(), len(rows)
    rows.append(_coefficients("paper, all metrics", theirs["tid"], theirs["gap"]))
    rows[-1]["Pearson"] = None  # their units differ
    for metric, part in theirs.groupby("metric", sort=False):
        rows.append(_coefficients(f"paper, {metric}", part["tid"], part["gap"]))
    notes = (
        "Total TID of the last layer (mean + variance) against the gap to layer norm, positive = "
        "worse than LN in the metric's own unit. n counts settings, each a mean over its seeds; "
        "the gap is to the same seed's LN where there is one, else to LN's mean. Settings of one "
        "data set and one layer norm are not independent: with a handful of them a coefficient "
        "says little.",
        "The paper's metrics have different units (points of BLEU, perplexity, F1, accuracy), so "
        "all 20 of its settings together have ranks only.",
    )
    frame = pd.DataFrame(rows)
    paper = frozenset(range(first, len(rows)))
    digits = {"Spearman": 2, "Pearson": 2}
    title = "Correlation of TID with the gap to LN"
    return Table("correlation", title, frame, digits, tuple(digits), notes, (), paper)


def _coefficients(name: str, tid: pd.Series, gap: pd.Series) -> dict[str, Any]:
    pairs = pd.DataFrame({"tid": tid, "gap": gap}).astype(float)
    pairs = pairs.replace([float("inf"), float("-inf")], float("nan")).dropna()
    defined = len(pairs) >= ENOUGH and (pairs.nunique() > 1).all()
    return {
        "settings": name,
        "n": len(pairs),
        "Spearman": pairs["tid"].rank().corr(pairs["gap"].rank()) if defined else None,
        "Pearson": pairs["tid"].corr(pairs["gap"]) if defined else None,
    }
