"""Runs that may be averaged, and those that may be compared."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.settings import LENGTH
from rbn_fairseq.report.setups import PLACEMENTS, Setup

__all__ = [
    "Group",
    "Mean",
    "Series",
    "first_seeds",
    "last_shared",
    "mean_at_last",
    "mean_over_seeds",
]


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
        return tuple(self.setup.settings.get(name) for name in LENGTH)

    @property
    def label(self) -> str:
        """The norm, and the settings in which it differs from others of its name."""
        return f"{self.norm} ({self.detail})" if self.detail else self.norm


@dataclass(frozen=True)
class Group:
    """Runs of the same data and model size, which may be compared.

    ``twice``: names of runs that are left out because another has their settings and seed, with a
    sentence each.
    """

    title: str
    series: tuple[Series, ...]
    twice: tuple[tuple[str, str], ...] = ()

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
    """A mean over seeds; ``deviation`` is the sample standard deviation (n - 1), if n > 1.

    ``note`` says at which epoch, where that is not each run's last.
    """

    value: float
    deviation: Optional[float]
    number: int
    note: str = ""


def mean_over_seeds(series: Series, measure: Callable[[Run], Optional[float]]) -> Optional[Mean]:
    """Average a number over the runs that have it; ``None`` if none has."""
    values = [value for value in map(measure, series.runs) if value is not None]
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Mean(statistics.fmean(values), deviation, len(values))


def last_shared(by_epoch: Sequence[Mapping[int, float]]) -> Optional[int]:
    """Return the last epoch that all have, ``None`` if there is none."""
    shared = set(by_epoch[0]).intersection(*by_epoch[1:]) if by_epoch else set()
    return max(shared, default=None)


def mean_at_last(series: Series, measure: Callable[[Run], Mapping[int, float]]) -> Optional[Mean]:
    """Average what was measured by epoch, at the last epoch that all seeds which have it have."""
    found = {run.name: values for run in series.runs if (values := measure(run))}
    last = last_shared(list(found.values()))
    if last is None:
        return None
    mean = mean_over_seeds(series, lambda run: found.get(run.name, {}).get(last))
    if mean is None or all(max(values) == last for values in found.values()):
        return mean
    return replace(mean, note=f"at epoch {last}, the last that all seeds have")


def first_seeds(group: Group) -> list[tuple[Series, Run]]:
    """All runs: BN's before others', and of each the first seed before the second."""
    ordered = sorted(group.series, key=lambda one: one.norm != "BN")
    found = [(at, one, run) for one in ordered for at, run in enumerate(one.runs)]
    return [(one, run) for _, one, run in sorted(found, key=lambda it: it[0])]
