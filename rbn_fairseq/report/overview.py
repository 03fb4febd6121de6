"""What stands first on the page, and what was run: differences to LN, settings, trainings."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from rbn_fairseq.report.blocks import Table
from rbn_fairseq.report.figures.style import Colours
from rbn_fairseq.report.groups import Group
from rbn_fairseq.report.means import last_nll_gaps, name_diverged
from rbn_fairseq.report.setups import as_text, short_name


def _names(group: Group) -> "pd.Series[str]":
    """Return the settings' names by series, with the placement where there are several."""
    series = group.series
    names = [group.placed(one.placement, one.label) for one in series.itertuples()]
    return pd.Series(names, series.index)


# Differences to layer norm.


def differences(group: Group, colours: Colours) -> list[Table]:
    """Return each setting's validation nll minus that of the LN with its settings.

    It is that of :func:`last_nll_gaps`, with Student's 95 % interval where three seeds or more have
    an LN of the same seed each. What could not be compared has an empty row, and notes say why;
    where there is no LN, or nothing beside it, there is no table.
    """
    title, names, pairs = "Validation nll minus LN’s", _names(group), group.pairs
    known = group.series[group.series["settings"].map(bool)]
    compared, bases = {*pairs["series"]}, {*group.runs.loc[pairs["baseline"], "series"]}
    alone = sorted({*known.index[known["norm"] != "LN"]} - compared - bases)
    if not (bases or (known["norm"].eq("LN").any() and alone)):
        return []
    means = last_nll_gaps(group).reindex(sorted(compared.union(alone)))
    seeds = means["count"].fillna(0).astype(int)
    rest = pairs[~pairs["run"].isin(group.diverged)]
    unpaired = rest.loc[~rest["of_seed"].astype(bool), "series"]
    sure = (seeds > 2) & ~means.index.isin(unpaired)
    half = (stdtrit(seeds - 1, 0.975) * means["std"] / np.sqrt(seeds)).where(sure)
    columns = {
        "setting": names[means.index],
        "nll - LN's": means["mean"],
        "95 % from": means["mean"] - half,
        "to": means["mean"] + half,
        "epoch": means["epoch"].astype("Int64"),
        "seeds": seeds,
    }
    notes = [
        f"In {group.metric.unit}; below 0 is better than the LN of the same settings and seed (its "
        "mean where it lacks the seed). Mean over seeds, at the last epoch that all of them have, "
        "with Student’s 95 % interval."
    ]
    if len(few := means.index[(seeds > 0) & ~sure]):
        notes.append(
            "No interval, without three seeds or more that each have an LN: "
            f"{', '.join(names[few])}."
        )
    if alone:
        lost = group.runs.loc[group.diverged, "norm"].eq("LN").any()
        none = "No LN that did not diverge" if lost else "No LN"
        notes.append(f"{none} has the settings of: {', '.join(names[alone])}.")
    if apart := sorted({*rest["series"]} - {*means.index[seeds > 0]}):
        notes.append(
            "Not compared, as no epoch has validations of all seeds and of their LN after as many "
            f"updates, within 5 %: {', '.join(names[apart])}."
        )
    notes += name_diverged(group)
    digits = {name: 3 for name in ("nll - LN's", "95 % from", "to")}
    dots = tuple(colours[label] for label in group.series.loc[means.index, "label"])
    frame = pd.DataFrame(columns)
    frame = frame.loc[:, frame.notna().any() | frame.columns.isin(["nll - LN's"])]
    return [Table("differences", title, frame, digits, tuple(digits), tuple(notes), dots)]


# Settings and trainings.


def _option(name: str) -> str:
    """Return a setting's name as an option of the command line, if it is one."""
    return f"--{short_name(name).replace('_', '-')}" if "." in name else name


def _split(frame: pd.DataFrame) -> tuple["pd.Series[str]", pd.DataFrame]:
    """Return what all rows have in common, without what is empty, and what differs."""
    frame = frame.loc[:, frame.ne("").any()]
    differ = frame.nunique() > 1
    return frame.loc[:, ~differ].iloc[0], frame.loc[:, differ]


def _training(starts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return when, by which command and on what a training was started first."""
    start = starts[0] if starts else {}
    facts = {
        "started (UTC)": str(start.get("time") or "")[:16].replace("T", " "),
        "resumed": len(starts) - 1 if len(starts) > 1 else None,
        "command": start.get("command"),
        "commit": start.get("commit"),
        **(start.get("machine") or {}),
        **(start.get("versions") or {}),
    }
    return {name: as_text(value) for name, value in facts.items()}


def _settings(group: Group) -> pd.DataFrame:
    """Return the settings by series, as text."""
    rows = [
        {_option(name): as_text(value) for name, value in chosen.items()}
        for chosen in group.series["settings"]
    ]
    return pd.DataFrame(rows, group.series.index).fillna("")


def _trainings(group: Group) -> pd.DataFrame:
    """Return when and on what trainings were started, by run, as text."""
    return pd.DataFrame(map(_training, group.runs["starts"]), group.runs.index).fillna("")


def settings_tables(group: Group, colours: Colours) -> list[Table]:
    """Return what differs between settings, and what between trainings."""
    runs, series = group.runs, group.series
    by_series = runs.groupby("series")
    numbers = {
        "seeds": by_series["seed"].agg(lambda seeds: ", ".join(f"{s:.0f}" for s in seeds.dropna())),
        "parameters": by_series["parameters"].first(),
        "updates": by_series["updates"].max(),
    }
    table = _split(_settings(group))[1].assign(**numbers)
    # False and unknown, as of an option that another version does not have, is no difference.
    table = table.loc[:, ~(table.isna() | table.isin(["", "False"])).all()]
    table.insert(0, "setting", _names(group))
    dots = tuple(colours[label] for label in series["label"])
    digits = {name: 0 for name in ("parameters", "updates") if name in table}
    tables = [
        Table("settings", "Settings, and what differs between them", table, digits, colours=dots)
    ]
    trainings = _split(_trainings(group))[1]
    if len(trainings.columns):
        trainings.insert(0, "run", runs.index)
        dots = tuple(colours[label] for label in runs["label"])
        tables.append(Table("trainings", "Trainings", trainings, colours=dots))
    return tables


def common_settings(group: Group, colours: Colours) -> list[Table]:
    """Return what all settings and trainings have in common, but for what is empty."""
    common = pd.concat([_split(frame)[0] for frame in (_settings(group), _trainings(group))])
    table = common.rename_axis("setting").rename("value").reset_index()
    return [Table("common", "Common to all runs", table)] if len(table) else []
