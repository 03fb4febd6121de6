"""Which runs may stand in one table, and which in one mean."""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Optional

from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.setups import PLACEMENTS, Setup, describe

__all__ = ["Group", "Mean", "Series", "group_runs", "mean_over_seeds"]

# What differs between norms by nature, and what changes no training.
_OF_NORM = ("model.norm_*", "criterion.rbn_*", "processes that share statistics")
_FREE = ("task.conditioning*", "task.monitor*", "*histogram*", "optimization.stop_time_hours")
_LENGTH = ("optimization.max_epoch", "optimization.max_update")
_NAMES = {"rbn_mean_weight": "λ", "rbn_std_weight": "ν", "rbn_convention": "convention"}
_FIRST = ("LN", "BN", "RBN")


@dataclass(frozen=True)
class Series:
    """Runs with the same settings but for their seeds.

    Attributes:
        setup: what they share; its seed is that of the first.
        detail: settings in which series of the same norm and placement differ, in words.
        recipe: all settings but the norm's and the training's length, as text; norms are compared
            within one recipe, at the same epoch.
        runs: by seed, ascending.
        seeds: theirs.
    """

    setup: Setup
    detail: str
    recipe: str
    runs: tuple[Run, ...]
    seeds: tuple[Optional[int], ...]

    @property
    def placement(self) -> str:
        """``Post-Norm`` and so on."""
        return self.setup.placement

    @property
    def norm(self) -> str:
        """The norm's name."""
        return self.setup.norm

    @property
    def length(self) -> tuple[Any, ...]:
        """How long the training was to be."""
        return tuple(self.setup.settings.get(name) for name in _LENGTH)

    @property
    def label(self) -> str:
        """The norm, and the settings in which it differs from others of its name."""
        return f"{self.norm} ({self.detail})" if self.detail else self.norm


@dataclass(frozen=True)
class Group:
    """Runs of the same data and model size, which may be compared."""

    title: str
    series: tuple[Series, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        """All of them, in the order of the series."""
        return tuple(run for one in self.series for run in one.runs)

    @property
    def placements(self) -> tuple[str, ...]:
        """Those present, in the order of tables."""
        found = {one.placement for one in self.series}
        return tuple(placement for placement in PLACEMENTS if placement in found)

    def of(self, placement: str) -> tuple[Series, ...]:
        """The series of one placement."""
        return tuple(one for one in self.series if one.placement == placement)

    def baseline(self, series: Series) -> Optional[Series]:
        """Return layer norm with the same placement and recipe, if possible as long a training."""
        found = [
            one
            for one in self.of(series.placement)
            if one.norm == "LN" and one.recipe == series.recipe
        ]
        alike = [one for one in found if one.length == series.length]
        return next(iter(alike or found), None)


@dataclass(frozen=True)
class Mean:
    """A mean over seeds; ``deviation`` is the sample standard deviation (n - 1), if n > 1."""

    value: float
    deviation: Optional[float]
    number: int


def mean_over_seeds(series: Series, measure: Callable[[Run], Optional[float]]) -> Optional[Mean]:
    """Average a number over the runs that have it; ``None`` if none has."""
    values = [value for value in map(measure, series.runs) if value is not None]
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Mean(statistics.fmean(values), deviation, len(values))


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
    recipe = [name for name in shared if not _matches(name, (*_OF_NORM, *_LENGTH))]
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
