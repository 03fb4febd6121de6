"""What stands first on the page, and what was run: findings in words, settings, trainings."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from rbn_fairseq.report.blocks import Table
from rbn_fairseq.report.compare import (
    Group,
    at_last_epoch,
    by_epoch,
    gaps_by_epoch,
    last_layer,
)
from rbn_fairseq.report.figures.style import Colours
from rbn_fairseq.report.setups import as_text, short_name

_NAMED = 3  # settings that a sentence tells of
_SHORT = 0.75  # of the longest training's epochs: one with fewer is not compared
#: What is told of settings that all runs share; those that differ are told whatever they are.
_COMMON = (
    "optimization.max_epoch", "optimization.max_update", "dataset.max_tokens",
    "dataset.batch_size", "micro-batches an update", "task.length_mixing", "optimization.lr",
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


def _interval(values: "pd.Series[float]") -> tuple[float, float]:
    """Return the 95 % interval of a mean, by Student's t; of three values or more."""
    mean, number = values.mean(), len(values)
    half = stdtrit(number - 1, 0.975) * values.std() / np.sqrt(number)
    return mean - half, mean + half


def _against_layer_norm(gaps: "pd.Series[float]", layer: str, paired: bool) -> str:
    """Say a difference to LN, and how sure it is; of one seed nothing, two are told one by one.

    ``layer`` is its name. Unless ``paired``, it lacks some of the seeds: differences to the mean of
    those that it has are not independent, and have no interval.
    """
    side, away = ("below", -gaps) if gaps.mean() < 0 else ("above", gaps)
    sure = ""
    if len(gaps) > 1 and not paired:
        sure = f" ({len(gaps)} seeds, of which {layer} lacks some: no interval)"
    elif len(gaps) == 2:
        sure = f" (two seeds: {' and '.join(f'{gap:.3f}' for gap in away)})"
    elif len(gaps) > 2:
        low, high = _interval(away)
        includes = ", which includes 0" if low <= 0 else ""
        sure = f" (95 % CI {low:.3f} to {high:.3f}{includes}; {len(gaps)} seeds)"
    return f"{away.mean():.3f} {side} {layer}{sure}".replace("-", "−").replace("−0.000", "0.000")


def _ranking(group: Group, epoch: int, values: Mapping[int, "pd.Series[float]"]) -> str:
    """Say which setting is ahead at an epoch, by how much against LN and how surely."""
    labels = group.series["label"]
    first, *later = sorted(values, key=lambda series: values[series].mean())
    pairs = group.pairs[group.pairs["series"].isin(values)]
    base = pairs.drop_duplicates("series").set_index("series")["baseline"].map(group.runs["norm"])
    several = group.runs.loc[pairs["baseline"], "series"].nunique() > 1
    ahead = values[first].mean() < 0
    best = labels[first] if ahead else base[first]
    verdict = "gains most on the LN of its settings" if several else "is ahead in validation loss"
    of_series = pairs.groupby("series")
    paired, layers = of_series["of_seed"].all(), of_series["baseline"].nunique()
    told = [
        f"{labels[one]} is {_against_layer_norm(values[one], base[one], paired[one])}"
        for one in (first, *later)[:_NAMED]
    ]
    if len(values) > _NAMED:
        told.append(f"{len(values) - _NAMED} more are in the tables")
    head = f"{best} {verdict} after epoch {epoch}."
    if several and not ahead:
        head = f"None gains on the LN of its settings after epoch {epoch}."
    apart = (values[first] - values[later[0]]).dropna() if ahead and later else []
    level = []
    if len(apart) > 2:
        second, (low, high) = labels[later[0]], _interval(apart)
        bounds = f"{low:.3f} to {high:.3f}".replace("-", "−")
        told.append(f"{best} minus {second}: 95 % CI {bounds}")
        level += [second] if low <= 0 <= high else []
    if len(values[first]) > 2 and paired[first]:
        low, high = _interval(values[first])
        layer = "the LN of its settings" if several else base[first]
        level += [layer] if low <= 0 <= high else []
    if level:
        *others, last = labels[first], *level
        head = f"{', '.join(others)} and {last} are level after epoch {epoch}."
    few = min(min(len(gaps), layers[one]) for one, gaps in values.items()) < 3
    chance = " Fewer than three seeds: how much of this is chance is not known." if few else ""
    return f"{head} In {group.metric.unit}, {'; '.join(told)}.{chance}"


def _still_falls(valid: pd.DataFrame, epoch: int, values: Mapping[int, "pd.Series[float]"]) -> str:
    """Warn of a ranking while losses fall faster than they differ."""
    valid = valid[valid["series"].isin(values) & (valid["epoch"] <= epoch)]
    means = valid.groupby("epoch")["nll_loss"].mean()
    fell = -means.diff().get(epoch, 0.0)
    if fell > max(abs(gaps.mean()) for gaps in values.values()):
        return f"Losses still fell by {fell:.2f} since the validation before: the order may change."
    return ""


def _losses(group: Group, placement: str) -> str:
    """Compare the losses of a placement's settings, and say which are not compared."""
    labels, valid = group.series["label"], group.frames["valid"]
    valid = by_epoch(valid[valid["placement"] == placement])
    last = valid.drop_duplicates("run", keep="last").set_index("run")["nll_loss"].astype(float)
    lost = last.index[~np.isfinite(last)]
    valid = valid[~valid["run"].isin(lost)]
    gaps = gaps_by_epoch(group)
    gaps = gaps[gaps["run"].isin(valid["run"]) & np.isfinite(gaps["gap"].astype(float))]
    frame, column = (gaps, "gap") if len(gaps) else (valid, "nll_loss")
    epoch, values = _values(frame, column)
    if not values:
        texts = ["The runs have no validation at the end of the same epoch: they are not compared."]
    elif len(gaps):
        texts = [_ranking(group, epoch, values)]
        texts += filter(None, [_still_falls(valid, epoch, values)])
    else:
        means = pd.Series({labels[one]: values[one].mean() for one in values}).sort_values()
        why = "No LN and another norm have the same settings"
        if group.pairs["run"].isin(valid["run"]).any():
            why = "No epoch has a finite loss of an LN and of another norm with its settings"
        losses = "; ".join(f"{label} {mean:.3f}" for label, mean in means.head(_NAMED + 1).items())
        texts = [
            f"Validation loss after epoch {epoch}, in {group.metric.unit}: {losses}. {why}, so no "
            "differences are shown."
        ]
    others = valid.loc[valid["norm"] != "LN", "series"]
    baselines = group.runs.loc[group.pairs["baseline"], "series"]
    alone = labels[sorted({*others} - {*group.pairs["series"], *baselines})]
    if len(gaps) and len(alone):
        texts.append(f"Not compared, as no LN has their settings: {', '.join(alone)}.")
    short = labels[sorted(set(frame["series"]) - values.keys())] if values else ()
    if len(short):
        texts.append(f"Not compared, with far fewer epochs: {', '.join(short)}.")
    texts += [f"{run} diverged: its last validation loss is not finite." for run in lost]
    return " ".join(texts)


def _discrepancy(group: Group, placement: str) -> list[str]:
    """Say what TID the last layer has."""
    last = last_layer(group)
    last = last[last["placement"] == placement]
    names = ("mean_tid", "var_tid")
    means = pd.DataFrame({name: at_last_epoch(last, name)["mean"] for name in names})
    texts = [
        f"{group.series.at[series, 'label']} {row['mean_tid']:.1f} and {row['var_tid']:.1f} %"
        for series, row in means.head(_NAMED).iterrows()
    ]
    if not texts:
        return []
    return [
        "Training Inference Discrepancy (TID) of the last batch norm, mean and variance, lower is "
        f"better: {'; '.join(texts)}."
    ]


def findings(group: Group) -> tuple[str, ...]:
    """Return sentences on which norm is best, by how much and how surely, and on TID."""
    if not any(group.placements):
        return ("The runs’ settings are unknown, so they are shown, and not compared.",)
    texts = []
    for placement in group.placements:
        texts.append(group.placed(placement, _losses(group, placement)))
        texts += _discrepancy(group, placement)
    return tuple(texts)


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


def settings_tables(group: Group, colours: Colours) -> list[Table]:
    """Return what differs between settings, what between trainings, and what all have in common."""
    runs, series = group.runs, group.series
    known = list(series["settings"])
    names = dict.fromkeys(
        name for chosen in known for name in (*_COMMON, *chosen) if name in chosen
    )
    rows = [
        {_option(name): as_text(chosen[name]) for name in names if name in chosen}
        for chosen in known
    ]
    settings = pd.DataFrame(rows, series.index, list(dict.fromkeys(map(_option, names)))).fillna("")
    common, differ = _split(settings)
    by_series = runs.groupby("series")
    numbers = {
        "seeds": by_series["seed"].agg(lambda seeds: ", ".join(f"{s:.0f}" for s in seeds.dropna())),
        "parameters": by_series["parameters"].first(),
        "updates": group.frames["valid"].groupby("series")["update"].max().reindex(series.index),
    }
    table = differ.assign(**numbers)
    table = table.loc[:, ~(table.isna() | table.eq("")).all()]
    labels = [group.placed(one.placement, one.label) for one in series.itertuples()]
    table.insert(0, "setting", labels)
    dots = tuple(colours[label] for label in series["label"])
    digits = {name: 0 for name in ("parameters", "updates") if name in table}
    tables = [
        Table("settings", "Settings, and what differs between them", table, digits, colours=dots)
    ]
    facts = pd.DataFrame([_training(starts) for starts in runs["starts"]], runs.index).fillna("")
    shared, trainings = _split(facts)
    if len(trainings.columns):
        trainings.insert(0, "run", runs.index)
        dots = tuple(colours[label] for label in runs["label"])
        tables.append(Table("trainings", "Trainings", trainings, colours=dots))
    common = common[common.ne("False")]
    told = common[common.index.isin(list(map(_option, _COMMON)))]
    told = pd.concat([told, shared]).rename_axis("setting").rename("value").reset_index()
    if len(told):
        tables.append(Table("common", "Common to all runs", told))
    return tables
