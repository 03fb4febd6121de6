"""Which runs may stand in one table, and which in one mean."""

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.series import LENGTH, Group, Series
from rbn_fairseq.report.setups import PLACEMENTS, Setup, describe

__all__ = ["group_runs"]

# What differs between norms by nature, and what changes no training.
_OF_NORM = ("model.norm_*", "criterion.rbn_*", "processes that share statistics")
_FREE = ("task.conditioning*", "task.monitor*", "*histogram*", "optimization.stop_time_hours")
_NAMES = {"rbn_mean_weight": "λ", "rbn_std_weight": "ν", "rbn_convention": "convention"}
_FIRST = ("LN", "BN", "RBN")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _details(setups: Sequence[Setup], shared: Sequence[str]) -> list[str]:
    """Say of each of several series of one norm in what it differs from the others."""
    differing = [
        name for name in shared if len({json.dumps(it.settings[name]) for it in setups}) > 1
    ]
    short = {name: name.rpartition(".")[2] for name in differing}
    return [
        ", ".join(
            f"{_NAMES.get(short[name], short[name])} {_text(it.settings[name])}"
            for name in differing
        )
        for it in setups
    ]


def _order(series: Series) -> tuple[int, int, int]:
    norm = series.norm
    rank = _FIRST.index(norm) if norm in _FIRST else len(_FIRST)
    if norm.startswith("BN@"):  # between LN and BN
        rank = 1
    return PLACEMENTS.index(series.placement), rank, 0 if norm.startswith("BN@") else 1


def _make_series(members: Sequence[tuple[Run, Setup]]) -> tuple[Series, ...]:
    shared = sorted(set.intersection(*(set(setup.settings) for _, setup in members)))
    shared = [name for name in shared if not _matches(name, _FREE)]
    cells: dict[tuple[str, ...], list[tuple[Run, Setup]]] = {}
    for run, setup in members:
        settings = json.dumps([setup.settings[name] for name in shared])
        cells.setdefault((setup.placement, setup.norm, settings), []).append((run, setup))
    alike: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for key in cells:
        alike.setdefault(key[:2], []).append(key)
    details = {
        key: detail
        for keys in alike.values()
        for key, detail in zip(
            keys, _details([cells[key][0][1] for key in keys], shared), strict=True
        )
    }
    recipe = [name for name in shared if not _matches(name, (*_OF_NORM, *LENGTH))]
    found = []
    for key, cell in cells.items():
        cell.sort(key=lambda member: -1 if member[1].seed is None else member[1].seed)
        runs, setups = zip(*cell, strict=True)
        text = json.dumps([setups[0].settings[name] for name in recipe])
        seeds = tuple(setup.seed for setup in setups)
        found.append(Series(setups[0], details[key], text, runs, seeds))
    return tuple(sorted(found, key=_order))


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Put runs of the same data and model size together, in the order of their first.

    Runs whose settings are unknown make a group of their own. Settings that only some runs of a
    group know, as runs of an older version, are not compared.
    """
    groups: dict[tuple[Any, ...], list[tuple[Run, Setup]]] = {}
    for run in runs:
        setup = describe(run)
        groups.setdefault((setup.data, setup.sizes), []).append((run, setup))
    found = []
    for (data, sizes), members in groups.items():
        known = bool(sizes)
        title = f"{data}; {members[0][1].size}" if known else "Settings unknown"
        found.append(Group(title, _make_series(members)))
    return found
