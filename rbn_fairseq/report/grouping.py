"""Which runs may stand in one table, and which in one mean."""

import json
from collections.abc import Sequence
from typing import Any, Optional

from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.series import Group, Series
from rbn_fairseq.report.settings import LENGTH, OF_NORM, matches
from rbn_fairseq.report.setups import PLACEMENTS, Setup, describe

__all__ = ["group_runs", "variants"]

# What changes no training, and the languages, which all runs of a group share.
_FREE = ("optimization.stop_time_hours", "task.source_lang", "task.target_lang")
_NAMES = {
    "rbn_mean_weight": "λ",
    "rbn_std_weight": "ν",
    "rbn_convention": "convention",
    "rbn_target_tid": "target TID, %",
    "rbn_target_step": "step",
    "rbn_target_cap": "cap",
    "length_mixing": "length mixing",
}
_FIRST = ("LN", "BN", "RBN")

Languages = tuple[tuple[str, Optional[int]], ...]


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


def _shared(setups: Sequence[Setup]) -> list[str]:
    """Name the settings that all of them know."""
    names = set.intersection(*(set(setup.settings) for setup in setups))
    return sorted(name for name in names if not matches(name, _FREE))


def variants(series: Sequence[Series], free: Sequence[str]) -> list[tuple[str, tuple[Series, ...]]]:
    """Put series of one placement together that differ in settings of these patterns only.

    Returns:
        Each set, after the settings in which it differs from the others, in words.
    """
    if not series:
        return []
    shared = [name for name in _shared([it.setup for it in series]) if not matches(name, free)]
    found: dict[str, list[Series]] = {}
    for one in series:
        key = json.dumps([one.setup.settings[name] for name in shared])
        found.setdefault(key, []).append(one)
    told = _details([own[0].setup for own in found.values()], shared)
    return [(detail, tuple(own)) for detail, own in zip(told, found.values(), strict=True)]


def _order(series: Series) -> tuple[int, int, int]:
    norm = series.norm
    rank = _FIRST.index(norm) if norm in _FIRST else len(_FIRST)
    if norm.startswith("BN@"):  # between LN and BN
        rank = 1
    return PLACEMENTS.index(series.placement), rank, 0 if norm.startswith("BN@") else 1


def _epochs(run: Run) -> int:
    return run.validations[-1].epoch if run.validations else 0


def _distinct(
    cell: Sequence[tuple[Run, Setup]], twice: list[tuple[str, str]]
) -> list[tuple[Run, Setup]]:
    """Keep one run a seed, the longest, in the order of seeds; the others go into ``twice``."""
    kept: dict[Optional[int], tuple[Run, Setup]] = {}
    for run, setup in sorted(cell, key=lambda member: -_epochs(member[0])):
        first, _ = kept.setdefault(setup.seed, (run, setup))
        if first is not run:
            problem = (
                f"It has the settings and the seed {setup.seed} of {first.name}, which has no "
                "fewer epochs and is counted alone. Give one of the two."
            )
            twice.append((run.name, problem))
    return sorted(kept.values(), key=lambda it: -1 if it[1].seed is None else it[1].seed)


def _make_series(
    members: Sequence[tuple[Run, Setup]], twice: list[tuple[str, str]]
) -> tuple[Series, ...]:
    recipe = _shared([setup for _, setup in members])
    recipe = [name for name in recipe if not matches(name, (*OF_NORM, *LENGTH))]
    alike: dict[tuple[str, str], list[tuple[Run, Setup]]] = {}
    for run, setup in members:
        alike.setdefault((setup.placement, setup.norm), []).append((run, setup))
    found = []
    for own in alike.values():
        # A criterion without a penalty, as layer norm may have, knows no weights.
        names = _shared([setup for _, setup in own])
        cells: dict[str, list[tuple[Run, Setup]]] = {}
        for run, setup in own:
            key = json.dumps([setup.settings[name] for name in names])
            cells.setdefault(key, []).append((run, setup))
        told = _details([cell[0][1] for cell in cells.values()], names)
        for detail, cell in zip(told, cells.values(), strict=True):
            runs, setups = zip(*_distinct(cell, twice), strict=True)
            text = json.dumps([setups[0].settings[name] for name in recipe])
            seeds = tuple(setup.seed for setup in setups)
            found.append(Series(setups[0], detail, text, runs, seeds))
    return tuple(sorted(found, key=_order))


def _languages(setup: Setup, others: Sequence[Setup]) -> Languages:
    """Return languages and sizes of dictionaries; what is unknown is that of the first like it."""
    own = setup.languages
    if own and own[0][1] is not None:
        return own
    names = [name for name, _ in own]
    full = (
        other.languages
        for other in others
        if (other.data, other.sizes) == (setup.data, setup.sizes)
        and any(types is not None for _, types in other.languages)
        and (not names or names == [name for name, _ in other.languages])
    )
    return next(full, own)


def _say_languages(languages: Languages) -> str:
    if not languages:
        return "languages unknown"
    types = [str(size) for _, size in languages if size is not None]
    pair = " to ".join(name for name, _ in languages)
    return f"{pair}, {' and '.join(types)} types" if types else pair


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Put runs of the same data and model size together, in the order of their first.

    Data are the same where their directory's name, languages and sizes of dictionaries are. Runs
    whose settings are unknown make a group of their own. Settings that only some runs of a group
    know, as runs of an older version, are not compared. Of runs with the same settings and seed
    the longest is counted.
    """
    setups = [describe(run) for run in runs]
    groups: dict[tuple[Any, ...], list[tuple[Run, Setup]]] = {}
    for run, setup in zip(runs, setups, strict=True):
        key = (setup.data, setup.sizes, _languages(setup, setups))
        groups.setdefault(key, []).append((run, setup))
    found = []
    for (data, sizes, languages), members in groups.items():
        several = len([key for key in groups if key[:2] == (data, sizes)]) > 1
        name = f"{data} ({_say_languages(languages)})" if several else data
        title = f"{name}; {members[0][1].size}" if sizes else "Settings unknown"
        twice: list[tuple[str, str]] = []
        series = _make_series(members, twice)
        found.append(Group(title, series, tuple(twice)))
    return found
