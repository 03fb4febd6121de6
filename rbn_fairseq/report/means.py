"""Averages a group's runs over seeds, compares them with layer norm, and names those left out."""

import pandas as pd

from rbn_fairseq.report.groups import IDENTITY, Group, as_many_updates, by_epoch, of_largest


def at_last_epoch(group: Group, frame: pd.DataFrame, value: str) -> pd.DataFrame:
    """Average over seeds at the last epoch that all seeds which have the value have.

    Runs that diverged are left out: an earlier epoch of theirs would pass for their result.
    ``frame`` has columns ``series``, ``run``, ``epoch`` and that called ``value``.

    Returns:
        By series: ``mean``, ``std`` (n - 1), ``count``, the ``epoch``, and the ``longest`` run's
        last one.
    """
    frame = by_epoch(group.without_diverged(frame).dropna(subset=value))
    seeds = frame.groupby("series")["run"].transform("nunique")
    here = frame.groupby(["series", "epoch"])["run"].transform("nunique")
    shared = frame[here == seeds]
    last = shared[shared["epoch"] == shared.groupby("series")["epoch"].transform("max")]
    by_series = last.groupby("series")
    return (
        by_series[value]
        .agg(["mean", "std", "count"])
        .assign(epoch=by_series["epoch"].max(), longest=frame.groupby("series")["epoch"].max())
    )


def earlier_epochs(group: Group, name: str, means: pd.DataFrame) -> list[str]:
    """Name the series whose mean (of ``name``) is of an earlier epoch than any run's last.

    ``means``: those of :func:`at_last_epoch`.
    """
    epochs, longest = means["epoch"], means["longest"].max()
    earlier = epochs[epochs < longest].sort_index()
    if not len(earlier):
        return []
    names = group.series.loc[earlier.index, ["placement", "label"]].agg(" ".join, axis=1)
    listed = ", ".join(names.str.strip() + earlier.map(" ({:g})".format))
    return [
        f"{name} is of epoch {longest:g}; of an earlier one, the last that all seeds "
        f"have: {listed}."
    ]


def name_unfinished(group: Group) -> list[str]:
    """Name the runs whose scores count in no mean, as they ended earlier than others."""
    scores = group.without_diverged(group.scores)["run"]
    early = scores[~scores.isin(group.final_scores["run"])]
    if not len(early):
        return []
    return [
        f"Their {group.metric.name} is in no mean, as they ended earlier than other runs of the "
        f"same settings: {', '.join(early)}."
    ]


def name_diverged(group: Group) -> list[str]:
    """Name the runs that diverged."""
    if not group.diverged:
        return []
    return [
        "Diverged (the last validation nll is not finite), and so in no mean but those of curves: "
        f"{', '.join(group.diverged)}."
    ]


def gaps_by_epoch(group: Group, frame: str = "valid", column: str = "nll_loss") -> pd.DataFrame:
    """Return a quantity minus that of layer norm by run and epoch, after as many updates.

    Columns ``run``, ``epoch``, ``gap`` (in the quantity's unit: of validation nll bits per target
    token, positive = worse) and those of :data:`IDENTITY`.
    """
    values = by_epoch(group.frames[frame])
    values = values.reindex(columns=["run", "epoch", "update", column])
    theirs = group.pairs.merge(values.rename(columns={"run": "baseline"}), on="baseline")
    number = group.pairs.groupby("run")["baseline"].size()
    base = theirs.groupby(["run", "epoch"], as_index=False).agg(
        mean=(column, "mean"), count=(column, "count"), updates=("update", "mean")
    )
    base = base[base["count"] == base["run"].map(number)]
    both = base.merge(values, on=["run", "epoch"])
    both = both[as_many_updates(both["update"], both["updates"])]
    gaps = both.assign(gap=both[column] - both["mean"])[["run", "epoch", "gap"]]
    return gaps.join(group.runs[IDENTITY], on="run")


def last_layer(group: Group) -> pd.DataFrame:
    """Return the rows of TID of each run's last batch norm, with TID in per cent."""
    last = of_largest(group.frames["tid"], "depth").copy()
    columns = [name for name in last if name.endswith("_tid")]
    last[columns] *= 100
    return last


def last_nll_gaps(group: Group) -> pd.DataFrame:
    """Return gaps of validation nll to layer norm, as :func:`at_last_epoch` averages them."""
    return at_last_epoch(group, gaps_by_epoch(group), "gap")


def last_gaps(group: Group) -> pd.DataFrame:
    """Return gaps to layer norm at the end, by series; positive = worse.

    ``nll``, ``epoch`` and ``longest``: those of :func:`last_nll_gaps`. ``score``: of trainings that
    ended after as many updates, translated and scored alike. ``nll_count`` and ``score_count`` are
    the numbers of seeds.
    """
    nll = last_nll_gaps(group)
    scores = group.final_scores[["run", "score", "signature", "updates"]]
    both = group.pairs.merge(scores, on="run").merge(
        scores.rename(columns={"run": "baseline"}), on="baseline", suffixes=("", "_base")
    )
    same = both["signature"] == both["signature_base"]
    same &= as_many_updates(both["updates"], both["updates_base"])
    by_run = both[same].groupby(["series", "run"])[["score", "score_base"]].mean()
    behind = (by_run["score_base"] - by_run["score"]).groupby("series").agg(["mean", "count"])
    return pd.DataFrame(
        {"nll": nll["mean"], "nll_count": nll["count"],
         "epoch": nll["epoch"], "longest": nll["longest"],
         "score_count": behind["count"],
         "score": -behind["mean"] if group.metric.lower else behind["mean"]}
    )  # fmt: skip
