"""Tables of runs: all runs, and the paper's Tables 1 to 4, its numbers beside ours."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

import pandas as pd

from rbn_fairseq.report.blocks import SEEDS, SPREAD, Table
from rbn_fairseq.report.groups import Group, by_epoch, of_largest
from rbn_fairseq.report.means import (
    at_last_epoch,
    earlier_epochs,
    last_gaps,
    last_layer,
    name_diverged,
    name_unfinished,
)
from rbn_fairseq.report.setups import BY_LENGTH, LENGTH

#: The paper's placements.
PLACED = ("Post-Norm", "Pre-Norm")


@cache
def published_results() -> pd.DataFrame:
    """Return Tables 1 to 4, by placement, norm and data set.

    Columns ``score`` (BLEU, perplexity, F1 or accuracy), and ``mean_tid`` and ``var_tid`` of the
    last layer in per cent; NaN where the paper has no number.
    """
    with files("rbn_fairseq.report").joinpath("published.csv").open() as file:
        return pd.read_csv(file, comment="#", index_col=["placement", "norm", "dataset"])


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
    "Differences to LN: with FixNorm and the like where the run has it and there is such an LN; "
    "same seed where there is one, else LN's mean; valid nll in {unit} at the last epoch that both "
    "have; scores only where they were made alike as far as score.json says; neither where their "
    "numbers of updates differ by more than 5 %."
)
_WITHOUT = "without recalibration"
_FAMILIES = ("LN", "BN", "RBN", "PN-only", "PN+LS", "BRN", "MABN")


def _cells(group: Group) -> pd.DataFrame:
    """Return what the paper's tables show, a row a series.

    Means over seeds of ``score``, ``nll`` and the TID of the last layer, each with its columns of
    :data:`SPREAD`, which two seeds do not have, and :data:`SEEDS`; ``score gap`` and ``nll gap``
    to layer norm; and ``n``, the number of seeds.
    """
    last, of_seeds = last_layer(group), ["mean", "std", "count"]
    scores = group.final_scores
    without = scores.dropna(subset="averaged")
    means = {
        "score": scores.groupby("series")["score"].agg(of_seeds),
        _WITHOUT: without.groupby("series")["averaged"].agg(of_seeds),
        "nll": at_last_epoch(group, group.frames["valid"], "nll_loss"),
        **{name: at_last_epoch(group, last, name) for name in _TID.values()},
    }
    parts = [
        mean[of_seeds]
        .assign(std=mean["std"].where(mean["count"] > 2))
        .astype({"count": "Int64"})
        .set_axis([name, name + SPREAD, name + SEEDS], axis=1)
        for name, mean in means.items()
    ]
    gaps = last_gaps(group)
    more = gaps["score"] if group.metric.lower else -gaps["score"]
    parts.append(pd.DataFrame({"score gap": more, "nll gap": gaps["nll"]}))
    counts = gaps[["score_count", "nll_count"]].astype("Int64")
    parts.append(counts.set_axis([f"{name} gap{SEEDS}" for name in ("score", "nll")], axis=1))
    parts.append(group.runs.groupby("series").size().astype("Int64").rename("n"))
    return pd.concat(parts, axis=1)


def _look_up(cells: pd.DataFrame, series: pd.Series, columns: Mapping[str, str]) -> pd.DataFrame:
    """Return columns, by their headings, of series; rows without a series (NaN) are empty."""
    names = {
        cell + suffix: heading + suffix
        for heading, cell in columns.items()
        for suffix in ("", SPREAD, SEEDS)
        if cell + suffix in cells
    }
    return cells[list(names)].rename(columns=names).reindex(series).set_axis(series.index)


def _rows(group: Group, families: Sequence[str]) -> pd.DataFrame:
    """Return a row for each series of these norms, by placement; an empty one where none is.

    Batch norms with bins of lengths stand with those without; ``name`` names the row.
    """
    placements = [name for name in PLACED if name in group.placements]
    every = pd.MultiIndex.from_product([placements, families], names=["placement", "family"])
    series = group.series.reset_index()
    series["family"] = series["norm"].str.removesuffix(BY_LENGTH)
    rows = every.to_frame(index=False).merge(series, how="left")
    rows["label"] = rows["label"].fillna(rows["family"])
    return rows.assign(name=rows["placement"].str.split("-").str[0] + "-" + rows["label"])


def _signatures(group: Group) -> list[str]:
    """Say how translations were scored, and whose score is of another test set."""
    signatures = sorted(set(group.scores["signature"]) - {"unknown"})
    every = group.frames["scores"].query("kind == @group.score_kind")["run"]
    others = every[~every.isin(group.scores["run"])]
    told = [f"{group.scored}: `{'`, `'.join(signatures)}`."] if signatures else []
    if len(others):
        told.append(f"Left out, as scored on another number of sentences: {', '.join(others)}.")
    return told


def _name_unplaced(group: Group) -> list[str]:
    """Name the runs that no table has."""
    others = group.runs.index[~group.runs["placement"].isin(PLACED)]
    if not len(others):
        return []
    return [f"In none of these tables, being neither Post-Norm nor Pre-Norm: {', '.join(others)}."]


def _table(
    group: Group,
    number: int,
    title: str,
    frame: pd.DataFrame,
    colours: Sequence[str] = (),
    paper: frozenset[int] = frozenset(),
) -> Table:
    """Return a table with the notes that its columns need, without those that no run fills."""
    empty = frame.columns[frame.isna().all()]
    optional = [
        column
        for column in empty
        if "given length" in column or column.endswith(SEEDS) or column in (_WITHOUT, "n")
    ]
    spreads = {column.removesuffix(SEEDS) + SPREAD for column in optional if column.endswith(SEEDS)}
    frame = frame.drop(columns=[*optional, *spreads.intersection(frame)])
    notes = [
        "Mean over seeds ± sample standard deviation (n - 1) of three or more. The paper's numbers "
        "are means of at least three seeds, of its own model and data."
    ]
    if any(group.metric.name in column for column in frame):
        notes += [*_signatures(group), *name_unfinished(group)]
        notes.append(_GAPS.format(unit=group.metric.unit))
    if "valid nll" in frame:
        means = at_last_epoch(group, group.frames["valid"], "nll_loss")
        notes += earlier_epochs(group, "Valid nll", means)
    if any("TID" in column for column in frame):
        means = at_last_epoch(group, last_layer(group), "var_tid")
        notes += earlier_epochs(group, "TID", means)
    notes += [*name_diverged(group), *_name_unplaced(group)]
    if any("given length" in column for column in frame):
        notes.append(_GIVEN_LENGTH)
    digits = {column: 3 if "nll" in column else 2 for column in frame if column not in ("", "n")}
    signed = tuple(column for column in frame if " - " in column)
    return Table(
        f"table{number}", title, frame, digits, signed, tuple(notes), tuple(colours), paper
    )


def _gap_table(group: Group, cells: pd.DataFrame) -> Table:
    """Table 1: LN, BN, their gap, and BN's TID of the last layer."""
    rows = _rows(group, ["BN"])
    pairs = group.pairs.drop_duplicates("series").set_index("series")["baseline"]
    baseline = rows["series"].map(pairs.map(group.runs["series"]))
    metric, heading = group.metric.name, f"LN, {group.scored}"
    of_batch, gap = f"BN, {metric}", f"BN - LN, {metric}"
    columns = {of_batch: "score", gap: "score gap", "BN - LN, nll": "nll gap"}
    columns |= {**_TID, "n": "n"}
    layer = _look_up(cells, baseline, {heading: "score"})
    ours = pd.concat([layer, _look_up(cells, rows["series"], columns)], axis=1)
    ours.insert(0, "", rows["name"])
    datasets = group.metric.of_paper(group.runs["data"].iloc[0])
    keys = [(placement, data) for placement in rows["placement"].unique() for data in datasets]
    paper = published_results().unstack("norm").loc[keys].reset_index()
    theirs = pd.DataFrame(
        {
            "": paper["placement"] + ", paper, " + paper["dataset"],
            heading: paper["score", "LN"],
            of_batch: paper["score", "BN"],
            gap: paper["score", "BN"] - paper["score", "LN"],
            "mean TID, %": paper["mean_tid", "BN"],
            "variance TID, %": paper["var_tid", "BN"],
        }
    )
    frame = pd.concat([ours, theirs], ignore_index=True)
    shown = frozenset(range(len(ours), len(frame)))
    return _table(group, 1, "Paper's Table 1: BN against LN", frame, paper=shown)


def _beside_paper(
    group: Group,
    cells: pd.DataFrame,
    colours: Mapping[str, str],
    number: int,
    title: str,
    families: Sequence[str],
    columns: Mapping[str, str],
    published: Mapping[str, str],
) -> Table:
    """Return a table with a row a placement and norm, and columns of the paper's numbers.

    ``columns`` are names of cells by heading; ``published`` names of the paper's numbers by what
    stands behind the data set in headings.
    """
    rows = _rows(group, families)
    frame = _look_up(cells, rows["series"], columns)
    frame.insert(0, "", rows["name"])
    paper = published_results()
    for dataset in group.metric.of_paper(group.runs["data"].iloc[0]):
        keys = [(*key, dataset) for key in zip(rows["placement"], rows["family"], strict=True)]
        for heading, name in published.items():
            frame[f"paper, {dataset}{heading}"] = paper[name].reindex(keys).to_numpy()
    dots = [colours.get(label, "") for label in rows["label"]]
    return _table(group, number, title, frame, dots)


def paper_tables(group: Group, colours: Mapping[str, str]) -> list[Table]:
    """Return Tables 1, 2 and 4 with the group's runs; Table 2 has the norms of Table 3, too.

    None where no run has a placement of the paper's.
    """
    if not set(PLACED).intersection(group.placements):
        return []
    cells = _cells(group)
    placed = group.series.loc[group.series["placement"].isin(PLACED), "norm"]
    present = set(placed.str.removesuffix(BY_LENGTH))
    families = [norm for norm in _FAMILIES if norm in present or norm in _FAMILIES[:3]]
    families += sorted(present - set(families))
    performance = {
        group.scored: "score", _WITHOUT: _WITHOUT, "n": "n",
        f"{group.metric.name} - LN's": "score gap", "valid nll": "nll", "nll - LN's": "nll gap",
    }  # fmt: skip
    discrepancy = {", mean, %": "mean_tid", ", var., %": "var_tid"}
    return [
        _gap_table(group, cells),
        _beside_paper(
            group, cells, colours, 2, "Paper's Tables 2 and 3: LN, BN, RBN and other norms",
            families, performance, {"": "score"},
        ),
        _beside_paper(
            group, cells, colours, 4, "Paper's Table 4: TID of the last layer", ["BN", "RBN"],
            {**_TID, "n": "n"}, discrepancy,
        ),
    ]  # fmt: skip


def summary(group: Group, colours: Mapping[str, str]) -> list[Table]:
    """Return a row a run; columns that are empty throughout are left out."""
    runs, valid = group.runs, group.frames["valid"]
    nll, cost = valid.groupby("run")["nll_loss"], f"cost, {group.metric.unit}"
    last_nll = by_epoch(valid).groupby("run")["nll_loss"].last(skipna=False)
    tid = group.frames["tid"]
    latest = of_largest(tid, "update")
    last = 100 * of_largest(latest, "depth").set_index("run")[["mean_tid", "var_tid"]]
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
            "last valid nll": last_nll,
            group.metric.name: group.scores.set_index("run")["score"],
            "mean TID, last layer, %": last["mean_tid"],
            "variance TID, last layer, %": last["var_tid"],
            "mean TID, average, %": average["mean_tid"],
            "variance TID, average, %": average["var_tid"],
            "mean TID given length, average, %": average["mean_conditional_tid"],
            "variance TID given length, average, %": average["var_conditional_tid"],
            cost: _last_cost(group),
            "minutes": runs["minutes"],
        },
        index=runs.index,
    )
    frame = frame.loc[:, ~(frame.isna() | frame.eq("")).all()]
    frame = frame.drop(columns=["placement"] if len(group.placements) == 1 else [], errors="ignore")
    digits = {column: 2 for column in frame if "TID" in column or column == group.metric.name}
    digits |= {"best valid nll": 3, "last valid nll": 3, cost: 4, "minutes": 1}
    notes = [f"Validation nll in {group.metric.unit}: the best, and that of the last epoch."]
    notes += [*_signatures(group), *name_diverged(group)]
    if len(tid):
        notes.append(
            "TID at the last measurement, as trained: batches compared with population "
            "statistics, in per cent of the population's standard deviation; 0 is best. Norms "
            "without batch statistics have none."
        )
    if any("given length" in column for column in frame):
        notes.append(_GIVEN_LENGTH)
    if cost in frame:
        notes.append(
            "Cost: valid nll with running (else recalibrated) statistics minus that with each "
            "batch's own, of the last checkpoint measured."
        )
    if "minutes" in frame:
        notes.append(
            "Minutes: by fairseq's own count, with validation and measurements; of a process that "
            "was stopped, up to its last epoch's end."
        )
    if short := _shorter_than_planned(runs):
        notes.append(f"Fewer epochs or updates than planned: {', '.join(short)}.")
    dots = tuple(colours[label] for label in runs["label"])
    return [Table("summary", "All runs", frame, digits, (), tuple(notes), dots)]


def _shorter_than_planned(runs: pd.DataFrame) -> list[str]:
    """Name the runs that came to none of their limits, with how far they are from the nearest."""
    short = []
    for name, run in runs.iterrows():
        parts = [
            (run[unit] / limit, f"{name} ({run[unit]:,} of {limit:,} {unit})")
            for unit, option in zip(("epochs", "updates"), LENGTH, strict=False)
            if run[unit] and (limit := run["settings"].get(option))  # 0: there is no log
        ]
        part, text = max(parts, default=(1.0, ""))
        short += [text] if part < 1 else []
    return short


def _last_cost(group: Group) -> pd.Series:
    """Return the discrepancy cost as inference has it: with running statistics where measured.

    A cost that is not a number was measured, too: no other way stands in for it.
    """
    cost = of_largest(group.frames["cost"], "update")
    ways = ["running", "recalibrated", "pooled"]
    cost = cost[cost["statistics"].isin(ways)].drop_duplicates(["run", "statistics"], keep="last")
    first = cost.sort_values("statistics", key=lambda column: column.map(ways.index))
    return first.drop_duplicates("run").set_index("run")["cost"]
