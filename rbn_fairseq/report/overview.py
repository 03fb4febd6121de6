"""What stands first on the page, and what was run: findings in words, settings, trainings."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from rbn_fairseq.report.blocks import Table
from rbn_fairseq.report.compare import Group, at_last_epoch, gaps_by_epoch, last_layer
from rbn_fairseq.report.figures.style import Colours

__all__ = ["findings", "settings_tables"]

_NAMED = 3  # settings that a sentence tells of besides the best
_SHORT = 0.75  # of the longest training's epochs: one with fewer is not compared
_NAMES = {"effective batch": "--update-freq x processes"}
_UNIT = "bits per target token"
#: What is told of settings that all runs share; those that differ are told whatever they are.
_COMMON = (
    "optimization.max_epoch", "optimization.max_update", "dataset.max_tokens",
    "dataset.batch_size", "effective batch", "task.length_mixing", "optimization.lr",
    "lr_scheduler._name", "lr_scheduler.warmup_updates", "optimizer._name",
    "optimizer.adam_betas", "optimizer.weight_decay", "optimization.clip_norm",
    "criterion.label_smoothing", "criterion.rbn_mean_weight", "criterion.rbn_std_weight",
    "model.norm_encoder", "model.norm_decoder", "model.norm_batch_momentum", "model.dropout",
    "model.attention_dropout", "model.activation_dropout", "model.share_all_embeddings",
    "common.fp16", "common.bf16", "common.amp",
)  # fmt: skip


# Findings.


def _values(frame: pd.DataFrame, column: str) -> tuple[int, dict[int, "pd.Series[float]"]]:
    """Return the last epoch that all runs have, and the column there by series and seed.

    Settings that ended long before the others are left out.
    """
    ends = frame.groupby(["series", "run"])["epoch"].max().groupby("series").min()
    frame = frame[frame["series"].isin(ends.index[ends >= _SHORT * ends.max()])]
    runs = frame.groupby("epoch")["run"].nunique()
    shared = runs.index[runs == frame["run"].nunique()]
    if not len(shared):
        return 0, {}
    last = frame[frame["epoch"] == shared.max()].set_index("seed")
    return int(shared.max()), {key: part[column] for key, part in last.groupby("series")}


def _half(values: "pd.Series[float]") -> float:
    """Return half the 95 % interval of a mean, by Student's t; infinite for fewer than three."""
    number = len(values)
    return np.inf if number < 3 else stdtrit(number - 1, 0.975) * values.std() / np.sqrt(number)


def _after(epoch: int) -> str:
    return f"after {epoch} {'epoch' if epoch == 1 else 'epochs'}"


def _against_layer_norm(gaps: "pd.Series[float]") -> str:
    """Say a difference to LN, and how sure it is; of one seed nothing, two are told one by one."""
    side, sign = ("below", -1) if gaps.mean() < 0 else ("above", 1)
    mean, half = sign * gaps.mean(), _half(gaps)
    if len(gaps) == 1:
        sure = ""
    elif len(gaps) == 2:
        sure = " (two seeds: " + " and ".join(f"{sign * gap:.3f}" for gap in gaps) + ")"
    else:
        includes = ", which includes 0" if mean <= half else ""
        sure = (
            f" (95 % interval {mean - half:.3f} to {mean + half:.3f}{includes}; {len(gaps)} seeds)"
        )
    return f"{mean:.3f} {side} LN{sure}".replace("-", "−").replace("−0.000", "0.000")


def _ended_early(number: int) -> list[str]:
    what = "1 setting" if number == 1 else f"{number} settings"
    return [f"{what} with far fewer epochs: not compared."] if number else []


def _losses(group: Group, placement: str) -> list[str]:
    """Say which setting of a placement has the lowest loss, and by how much."""
    labels = group.series["label"]
    valid = group.frames["valid"]
    valid = valid[valid["placement"] == placement].drop_duplicates(["run", "epoch"], keep="last")
    last = valid.drop_duplicates("run", keep="last").set_index("run")
    lost = last.index[~np.isfinite(last["nll_loss"].astype(float))]
    diverged = [f"{run} diverged: its last validation loss is not finite." for run in lost]
    valid = valid[~valid["run"].isin(lost)]
    gaps = gaps_by_epoch(group).join(group.runs["seed"], on="run")
    gaps = gaps[gaps["run"].isin(valid["run"]) & np.isfinite(gaps["gap"].astype(float))]
    epoch, values = _values(gaps, "gap")
    if values:
        order = sorted(values, key=lambda series: values[series].mean())
        short = gaps["series"].nunique() - len(values)
        told = [f"{labels[one]} is {_against_layer_norm(values[one])}" for one in order[:_NAMED]]
        if len(order) > _NAMED:
            told.append(f"{len(order) - _NAMED} more are in the tables")
        first, *later = order
        best = labels[first] if values[first].mean() < 0 else "LN"
        does = "has the lowest validation loss"
        baselines = group.pairs.loc[group.pairs["series"].isin(order), "baseline"]
        if group.runs.loc[baselines, "series"].nunique() > 1:
            does = "gains most on LN with its settings" if best != "LN" else "is ahead of all"
        text = f"{best} {does} {_after(epoch)}. In {_UNIT}, {'; '.join(told)}."
        if all(len(gaps) == 1 for gaps in values.values()):
            text += " One seed each: cannot tell how much of this is chance."
        elif best != "LN" and later:
            apart = (values[first] - values[later[0]]).dropna()
            if abs(apart.mean()) <= _half(apart) or not len(apart):
                text += f" These seeds do not tell {best} from {labels[later[0]]}."
        return [text, *_ended_early(short), *diverged]
    epoch, values = _values(valid, "nll_loss")
    if not values:
        why = "The runs share no epoch" if len(valid) else "No run has a validation loss yet"
        return [f"{why}, so they cannot be compared.", *diverged]
    order = sorted(values, key=lambda series: values[series].mean())
    losses = [f"{labels[one]} {values[one].mean():.3f}" for one in order[: _NAMED + 1]]
    text = f"Validation loss {_after(epoch)}, in {_UNIT}: {'; '.join(losses)}. "
    alone = "There is no other setting to compare it with."
    none = "There is no LN with the same settings, so no difference to it."
    short = valid["series"].nunique() - len(values)
    single = len(order) == 1 and not short
    return [text + (alone if single else none), *_ended_early(short), *diverged]


def _discrepancy(group: Group, placement: str) -> list[str]:
    """Say what TID the last layer has, of the paper's two batch norms first."""
    last = last_layer(group)
    last = last[last["placement"] == placement]
    if not len(last):
        return []
    names = ("mean_tid", "var_tid")
    means = pd.DataFrame({name: at_last_epoch(last, name)["mean"] for name in names})
    means = means.join(group.series[["label", "norm"]])
    first = means["norm"].map(lambda norm: ["BN", "RBN", norm].index(norm))
    means = means.loc[first.sort_values(kind="stable").index].head(_NAMED)
    texts = [f"{row.label} {row.mean_tid:.1f} and {row.var_tid:.1f} %"
             for row in means.itertuples()]  # fmt: skip
    return [f"TID of the last batch norm, mean and variance: {'; '.join(texts)}."]


def findings(group: Group) -> tuple[str, ...]:
    """Return sentences on which norm is best, by how much and how surely, and on TID."""
    if not any(group.placements):
        return ("The runs’ settings are unknown, so they are shown, and not compared.",)
    texts = []
    for placement in group.placements:
        parts = [" ".join(_losses(group, placement)), *_discrepancy(group, placement)]
        texts += [group.placed(placement, parts[0]), *parts[1:]]
    return tuple(texts)


# Settings and trainings.


def _option(name: str) -> str:
    """Return a setting's name as an option of the command line, if it is one."""
    section, _, key = name.rpartition(".")
    option = section if key == "_name" else key
    return f"--{option.replace('_', '-')}" if section else _NAMES.get(name, name)


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _split(frame: pd.DataFrame) -> tuple["pd.Series[str]", pd.DataFrame]:
    """Return what all rows have in common, without what is empty, and what differs."""
    frame = frame.loc[:, frame.ne("").any()]
    differ = frame.nunique() > 1
    return frame.loc[:, ~differ].iloc[0], frame.loc[:, differ]


def _settings(group: Group) -> pd.DataFrame:
    """Return settings as text, a row a series; those of which all know something."""
    known = list(group.series["settings"])
    names = dict.fromkeys(
        name for chosen in known for name in (*_COMMON, *chosen) if name in chosen
    )
    rows = [{name: _text(chosen.get(name)) for name in names} for chosen in known]
    return pd.DataFrame(rows, index=group.series.index, columns=list(names), dtype=str)


def _training(starts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return when, by which command and on what a training was started first."""
    start = starts[0] if starts else {}
    facts = {
        "started (UTC)": str(start.get("time") or "")[:16].replace("T", " "),
        "resumed": _text(len(starts) - 1) if len(starts) > 1 else "",
        "command": start.get("command"),
        "commit": start.get("commit"),
        **(start.get("machine") or {}),
        **(start.get("versions") or {}),
    }
    return {name: _text(value) for name, value in facts.items()}


def settings_tables(group: Group, colours: Colours) -> list[Table]:
    """Return what differs between settings, what between trainings, and what all have in common."""
    runs, series = group.runs, group.series
    settings = _settings(group)
    common, differ = _split(settings)
    updates = group.frames["valid"].groupby("series")["update"].max()
    by_series = runs.groupby("series")
    numbers = {
        "seeds": by_series["seed"].agg(lambda seeds: ", ".join(f"{s:g}" for s in seeds.dropna())),
        "parameters": by_series["parameters"].first(),
        "updates": updates.reindex(series.index),
    }
    differ = differ.rename(columns=_option)
    rows = differ.assign(**numbers)
    rows = rows.loc[:, ~(rows.isna() | rows.eq("")).all()]
    labels = [group.placed(one.placement, one.label) for one in series.itertuples()]
    rows.insert(0, "setting", labels)
    dots = tuple(colours[label] for label in series["label"])
    digits = {name: 0 for name in ("parameters", "updates") if name in rows}
    tables = [
        Table("settings", "Settings, and what differs between them", rows, digits, colours=dots)
    ]
    facts = pd.DataFrame([_training(starts) for starts in runs["starts"]], runs.index).fillna("")
    shared, trainings = _split(facts) if facts.size else (pd.Series(dtype=str), facts)
    if len(trainings.columns):
        trainings.insert(0, "run", runs.index)
        dots = tuple(colours[label] for label in runs["label"])
        tables.append(Table("trainings", "Trainings", trainings, colours=dots))
    common = common[common.ne("False")]
    told = common[[name for name in common.index if name in _COMMON]].rename(_option)
    told = pd.concat([told, shared]).rename_axis("setting").rename("value").reset_index()
    if len(told):
        tables.append(Table("common", "Common to all runs", told))
    return tables
