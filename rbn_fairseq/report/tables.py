"""Tables of runs: all runs, the paper's Tables 1 to 4, correlation of TID with the gap to LN."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Optional

import pandas as pd

from rbn_fairseq.report.blocks import SEEDS, SPREAD, Table
from rbn_fairseq.report.compare import Group, at_last_epoch, last_gaps, last_layer
from rbn_fairseq.report.paper import PLACED, published
from rbn_fairseq.report.setups import BY_LENGTH

__all__ = ["correlation_table", "mean_columns", "paper_tables", "summary"]

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
_MAIN = ("LN", "BN", "RBN")
_OTHERS = ("PN-only", "PN+LS", "BRN", "MABN")


def mean_columns(name: str, means: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a mean over seeds as a table's columns: mean, standard deviation (n - 1), seeds."""
    if means is None:
        return {name: None, name + SPREAD: None, name + SEEDS: None}
    return {name: means["mean"], name + SPREAD: means["std"], name + SEEDS: means["count"]}


def _row_of(frame: pd.DataFrame, series: int) -> Optional[pd.Series]:
    return frame.loc[series] if series in frame.index else None


class _Tables:
    """The means of a group's series, and rows made of them."""

    def __init__(self, group: Group, colours: Mapping[str, str]) -> None:
        self.group, self.colours = group, colours
        self.bleu = group.bleu.groupby("series")["bleu"].agg(["mean", "std", "count"])
        self.nll = at_last_epoch(group.frames["valid"], "nll_loss")
        last = last_layer(group)
        self.tid = {column: at_last_epoch(last, name) for column, name in _TID.items()}
        self.gaps = last_gaps(group)
        wmt = "wmt16" in str(group.runs["data"].iloc[0]).lower()
        self.datasets = ("IWSLT14", "WMT16") if wmt else ("IWSLT14",)
        self.placements = [it for it in PLACED if it in group.placements] or list(PLACED)
        self.size = group.runs.groupby("series").size()
        self.notes: list[str] = []

    def series(self, placement: str, *norms: str) -> list[tuple[int, pd.Series]]:
        own = self.group.series
        chosen = [own[(own.placement == placement) & (own.norm == norm)] for norm in norms]
        return [(int(str(number)), row) for part in chosen for number, row in part.iterrows()]

    def baseline(self, series: int) -> Optional[int]:
        pairs = self.group.pairs
        own = pairs[pairs["series"] == series]
        return self.group.runs.at[own["baseline"].iloc[0], "series"] if len(own) else None

    def mean(self, name: str, frame: pd.DataFrame, series: Optional[int]) -> dict[str, Any]:
        means = None if series is None else _row_of(frame, series)
        if series is not None and means is not None:
            label = self.group.series.at[series, "label"]
            if means["count"] < self.size[series]:
                self._note(f"{label}, {name}: {means['count']:g} of {self.size[series]} seeds.")
            if means.get("later", False):
                self._note(
                    f"{label}, {name}: at epoch {means['epoch']:g}, the last that all seeds have."
                )
        return mean_columns(name, means)

    def gap(self, series: int, kind: str) -> Optional[float]:
        gaps = _row_of(self.gaps, series)
        if gaps is None:
            return None
        label = self.group.series.at[series, "label"]
        if kind == "bleu":
            if gaps["differ"]:
                self._note(f"{label}: BLEU has other signatures than LN's.")
            return -gaps["bleu"]
        pairs = self.group.pairs
        own = pairs[pairs["series"] == series]
        ends = set(self.group.runs.loc[[*own["run"], *own["baseline"]], "epochs"]) - {0}
        if pd.notna(gaps["nll"]) and ends != {gaps["epoch"]}:
            self._note(
                f"{label}: nll against LN's at epoch {gaps['epoch']:g}, the last that all have."
            )
        return gaps["nll"]

    def significance(self, series: int) -> float | str | None:
        """Return the paired bootstrap's p where it is against layer norm's; several as a text."""
        tested = self.group.bleu[self.group.bleu["series"] == series].dropna(subset=["p"])
        pairs, label = self.group.pairs, self.group.series.at[series, "label"]
        p = []
        for row in tested.itertuples():
            baselines = pairs.loc[pairs["run"] == row.run, "baseline"]
            layer = set(self.group.runs.loc[baselines, "directory"])
            if PurePath(str(row.against)).parent.name in layer:
                p.append(float(row.p))
            else:
                self._note(
                    f"{label}: a p is against {row.against}, which lies in no directory named as "
                    "LN's run, and is left out."
                )
        return p[0] if len(p) == 1 else ", ".join(f"{it:.3f}" for it in p) or None

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def table(
        self, number: int, title: str, rows: Sequence[Mapping[str, Any]], **more: Any
    ) -> Table:
        """Return the table with the notes that its columns need.

        Columns of TID given length are left out where no run has it.
        """
        frame = pd.DataFrame(rows)
        empty = frame.columns[frame.isna().all()]
        optional = [it for it in empty if "given length" in it or it.endswith(SEEDS)]
        spreads = [it.removesuffix(SEEDS) + SPREAD for it in optional if it.endswith(SEEDS)]
        frame = frame.drop(columns=[*optional, *spreads])
        notes = [
            "Mean over seeds ± sample standard deviation (n - 1), n seeds. The paper's numbers are "
            "means of at least three seeds, of its own model and data."
        ]
        if any("BLEU" in column for column in frame):
            signatures = sorted(set(self.group.bleu["signature"]))
            if signatures:
                notes.append(f"BLEU: {self.group.bleu_kind}, `{'`, `'.join(signatures)}`.")
            notes.append(
                "Differences to LN: same seed where there is one, else LN's mean; valid nll in "
                "bits per token at the last epoch that both have; BLEU only where both trainings "
                "ended at the same epoch and were scored with the same signature."
            )
        if any("given length" in column for column in frame):
            notes.append(_GIVEN_LENGTH)
        notes += self.notes
        self.notes = []
        digits = {it: 3 if "nll" in it or it == "p" else 2 for it in frame if it not in ("", "n")}
        signed = tuple(column for column in frame if " - " in column)
        return Table(f"table{number}", title, frame, digits, signed, tuple(notes), **more)

    def colour(self, norms: Iterable[str]) -> tuple[str, ...]:
        return tuple(self.colours.get(norm, "") for norm in norms)


def _gap_table(make: _Tables) -> Table:
    """Table 1: LN, BN, their gap, and BN's TID of the last layer."""
    layer_bleu = f"LN, BLEU ({make.group.bleu_kind})"
    rows: list[dict[str, Any]] = []
    paper: list[int] = []
    for placement in make.placements:
        series = make.series(placement, "BN", "BN" + BY_LENGTH)
        for number, one in series:
            kind = one.norm.removeprefix("BN").strip()
            rows.append(
                {
                    "": ", ".join(filter(None, (placement, kind, one.detail, "here"))),
                    **make.mean(layer_bleu, make.bleu, make.baseline(number)),
                    **make.mean("BN, BLEU", make.bleu, number),
                    "BN - LN, BLEU": make.gap(number, "bleu"),
                    "BN - LN, nll": make.gap(number, "nll"),
                    **_tid_columns(make, number),
                    "n": make.size[number],
                }
            )
        if not series:
            layer = make.series(placement, "LN")
            own = make.mean(layer_bleu, make.bleu, layer[0][0] if layer else None)
            rows.append({"": f"{placement}, here", **own, **_tid_columns(make, None), "n": None})
        for dataset in make.datasets:
            numbers = published()
            ours, theirs = (numbers.performance(placement, it, dataset) for it in ("LN", "BN"))
            tid = [numbers.last_tid(placement, it, "BN", dataset) for it in ("mean", "variance")]
            paper.append(len(rows))
            rows.append(
                {
                    "": f"{placement}, paper, {dataset}",
                    layer_bleu: ours,
                    "BN, BLEU": theirs,
                    "BN - LN, BLEU": theirs - ours if ours and theirs else None,
                    **dict(zip(_TID, tid, strict=False)),
                }
            )
    order = [layer_bleu, layer_bleu + SPREAD, layer_bleu + SEEDS, *mean_columns("BN, BLEU", None),
             "BN - LN, BLEU", "BN - LN, nll"]  # fmt: skip
    whole = [{"": row[""], **dict.fromkeys(order), **row} for row in rows]
    return make.table(1, "Table 1: BN against LN", whole, paper=frozenset(paper))


def _tid_columns(make: _Tables, series: Optional[int]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, frame in make.tid.items():
        columns |= make.mean(name, frame, series)
    return columns


def _performance_table(make: _Tables, number: int, norms: Sequence[str], title: str) -> Table:
    """Table 2 or 3: a row a placement and norm, with the paper's number."""
    bleu = f"BLEU ({make.group.bleu_kind})"
    rows: list[dict[str, Any]] = []
    colours: list[str] = []
    for placement in make.placements:
        for norm in norms:
            paper = {
                f"paper, {dataset}": published().performance(placement, norm, dataset)
                for dataset in make.datasets
            }
            name = f"{placement.partition('-')[0]}-{norm}"
            for series, one in make.series(placement, norm) or [(None, None)]:
                base = norm == "LN" or series is None
                rows.append(
                    {
                        "": f"{name} ({one.detail})" if one is not None and one.detail else name,
                        **make.mean(bleu, make.bleu, series),
                        "n": None if series is None else make.size[series],
                        "BLEU - LN's": None if base else make.gap(series, "bleu"),
                        "p": None if base else make.significance(series),
                        **make.mean("valid nll", make.nll, series),
                        "nll - LN's": None if base else make.gap(series, "nll"),
                        **paper,
                    }
                )
                colours.append(norm)
    return make.table(number, title, rows, colours=make.colour(colours))


def _tid_table(make: _Tables) -> Table:
    """Table 4: TID of the last layer, BN and RBN."""
    rows: list[dict[str, Any]] = []
    colours: list[str] = []
    for placement in make.placements:
        for norm in ("BN", "RBN"):
            paper = {
                f"paper, {dataset}, {kind[:4].replace('vari', 'var.')}, %": published().last_tid(
                    placement, kind, norm, dataset
                )
                for dataset in make.datasets
                for kind in ("mean", "variance")
            }
            short = placement.partition("-")[0]
            series = make.series(placement, norm, norm + BY_LENGTH)
            for number, one in series:
                own = {**_tid_columns(make, number), "n": make.size[number]}
                rows.append({"": f"{short}-{one.label}", **own, **paper})
                colours.append(one.norm)
            if not series:
                blank = {**_tid_columns(make, None), "n": None}
                rows.append({"": f"{short}-{norm}", **blank, **paper})
                colours.append(norm)
    return make.table(4, "Table 4: TID of the last layer", rows, colours=make.colour(colours))


def paper_tables(group: Group, colours: Mapping[str, str]) -> list[Table]:
    """Return Tables 1 to 4 with the group's runs; Table 3 has the other norms that are there."""
    make = _Tables(group, colours)
    placed = set(group.runs.loc[group.runs["placement"].isin(make.placements), "norm"])
    others = [norm for norm in _OTHERS if norm in placed]
    others += sorted(placed - set(_MAIN) - set(others))
    second = _performance_table(make, 2, _MAIN, "Table 2: LN, BN and RBN")
    third = [_performance_table(make, 3, others, "Table 3: other norms")] if others else []
    return [_gap_table(make), second, *third, _tid_table(make)]


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
    seconds = pd.Series({name: it.seconds for name, it in group.members.items()}, dtype=float)
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
            "minutes": seconds / 60,
        },
        index=runs.index,
    )
    frame = frame.loc[:, ~(frame.isna() | frame.eq("")).all()]
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
    planned = {name: it.config.get("optimization", {}).get("max_epoch") or 0
               for name, it in group.members.items()}  # fmt: skip
    fewer = [f"{name} ({runs.at[name, 'epochs']} of {total})" for name, total in planned.items()
             if runs.at[name, "epochs"] < total]  # fmt: skip
    if fewer:
        notes.append(f"Fewer epochs than planned: {', '.join(fewer)}.")
    going = [name for name, run in group.members.items() if run.config and not run.ended]
    if going:
        notes.append(f"The logs of these do not say that the training ended: {', '.join(going)}.")
    dots = tuple(colours[norm] for norm in runs["norm"])
    return Table("summary", "Runs", frame, digits, (), tuple(notes), dots)


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
        own = measured[measured["group"] == title]
        where = f", {title}" if len(titles) > 1 else ""
        for gap, label in (("bleu", "BLEU"), ("nll", "valid nll")):
            rows.append(_coefficients(f"here, {label}{where}", own["tid"], own[gap]))
    theirs, first = published().settings(), len(rows)
    rows.append(_coefficients("paper, all metrics", theirs["tid"], theirs["gap"]))
    rows[-1]["Pearson"] = None  # their units differ
    for metric, own in theirs.groupby("metric", sort=False):
        rows.append(_coefficients(f"paper, {metric}", own["tid"], own["gap"]))
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
    defined = len(pairs) > 1 and (pairs.nunique() > 1).all()
    return {
        "settings": name,
        "n": len(pairs),
        "Spearman": pairs["tid"].rank().corr(pairs["gap"].rank()) if defined else None,
        "Pearson": pairs["tid"].corr(pairs["gap"]) if defined else None,
    }
