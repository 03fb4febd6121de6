"""Groups runs into comparable settings: series, which differ in the seed alone, and pairs with LN.

A *group* has the runs of one data set and model size. Within it, runs that differ in the seed only
are a *series*; a series has a placement, a norm, and a *label*, the norm followed by its *detail*,
which is what tells it from other series of that norm. How batches are made and what a training
began from are in it wherever runs of the placement differ in them. The *recipe* is all that a norm
is compared under: every setting but those of norms, the penalty and the length of training. A
*pair* is a run and the layer norm of its placement, recipe and, if there is one, seed.

Example: RBN with three seeds and λ = 1, one with λ = 60, and LN with three seeds are a group of
three series, ``LN``, ``RBN (λ 1)`` and ``RBN (λ 60)``, whose details are empty, ``λ 1`` and
``λ 60``. All have one recipe, and there are four pairs, each of an RBN with the LN of its seed.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from rbn_fairseq.report.runs import Run
from rbn_fairseq.report.setups import (
    LENGTH,
    OF_NORM,
    PLACEMENTS,
    Metric,
    Setup,
    as_text,
    describe,
    matches,
    short_name,
)

_FRAMES = ("valid", "train", "tid", "batching", "conditioning", "cost")
#: What each row of a group's frames says of its run.
IDENTITY = ["placement", "norm", "label", "detail", "series", "seed"]
_NAMES = {
    "rbn_mean_weight": "λ",
    "rbn_std_weight": "ν",
    "rbn_convention": "convention",
    "rbn_target_tid": "target TID",
    "length_mixing": "length mixing",
    "sample_break_mode": "break mode",
    "first weights": "from",
}
#: Losses and scores are compared after numbers of updates that differ by less than this part: in
#: half precision some are skipped, and a limit on updates or hours may end an epoch early.
_ALIKE = 0.05
_FIRST = ("LN", "BN@", "BN", "RBN")  # BN@: batch norm in a part of the layers
_KINDS = ("test", "compound_split", "tokenised", "sacrebleu")  # the paper's, on tokens, first


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of the same data and model size, which may be compared.

    Attributes:
        title: data and size of the model.
        runs: a row a run, by its name, in the order of tables: fields of :class:`Setup`,
            ``series`` (a number), ``detail``, ``label``, ``recipe`` and ``length`` (of training; as
            text), ``epochs`` (the last one), ``updates`` and ``minutes`` (to its end), and
            ``parameters`` and ``starts`` of :class:`Run`.
        frames: those of :class:`Run` by name, all runs in one, with a column ``run`` and those of
            :data:`IDENTITY`; ``scores``: a row a run and kind of score.
        metric: what they are scored by.
        twice: runs that are left out because another has their settings and seed, with a sentence.
    """

    title: str
    runs: pd.DataFrame
    frames: Mapping[str, pd.DataFrame]
    metric: Metric
    twice: Sequence[tuple[str, str]] = ()

    @property
    def series(self) -> pd.DataFrame:
        """A row a series: its first run's."""
        return self.runs.drop_duplicates("series").set_index("series")

    @property
    def placements(self) -> list[str]:
        """Those present, in the order of tables."""
        present = set(self.runs["placement"])
        return [placement for placement in PLACEMENTS if placement in present]

    def placed(self, placement: str, title: str) -> str:
        """Return a title with the placement before it, where there are several."""
        return f"{placement}: {title}" if placement and len(self.placements) > 1 else title

    @property
    def score_kind(self) -> str:
        """The kind of score that most runs have; of several kinds of BLEU that on tokens."""
        counts = self.frames["scores"]["kind"].value_counts()
        most = counts.index[counts == counts.max()]
        return next((kind for kind in (*_KINDS, *most) if kind in most), "tokenised")

    @property
    def scored(self) -> str:
        """The score in words."""
        name = self.metric.name
        told = name == "BLEU" or self.score_kind not in _KINDS  # of another part than the test set
        return f"{name} ({self.score_kind})" if told else name

    @property
    def scores(self) -> pd.DataFrame:
        """The scores of that kind, a row a run that has one on the test set of most.

        Test sets are told apart by their numbers of sentences, where these are known.
        """
        scores = self.frames["scores"]
        scores = scores[scores["kind"] == self.score_kind]
        most = scores["sentences"].mode()[-1:]
        return scores[scores["sentences"].isna() | scores["sentences"].isin(most)]

    @property
    def final_scores(self) -> pd.DataFrame:
        """Those but of runs that diverged, or made fewer updates than others of their series.

        With --patience each run has an end of its own; without a log it is not known.
        """
        runs = self.without_diverged(self.runs.reset_index())
        scores = self.without_diverged(self.scores)
        most = scores["series"].map(runs.groupby("series")["updates"].max())
        as_long = as_many_updates(scores["updates"], most) | scores["updates"].eq(0)
        patience = self.runs["settings"].map(lambda chosen: chosen.get("patience"))
        return scores[as_long | scores["run"].map(patience).notna()]

    @cached_property
    def diverged(self) -> list[str]:
        """The runs whose last validation nll is not finite."""
        last = by_epoch(self.frames["valid"]).drop_duplicates("run", keep="last")
        return list(last.loc[~np.isfinite(last["nll_loss"].astype(float)), "run"])

    def without_diverged(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of runs that did not diverge."""
        return frame[~frame["run"].isin(self.diverged)]

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """Each run but layer norm's with the layer norm that it is compared with.

        That did not diverge, and has the same placement and recipe, if possible what is changed
        beside the run's norm, such as FixNorm, and as long a training, and the same seed; where
        there is none of that seed, all of its seeds are there, a row each. Columns ``run``,
        ``series``, ``baseline`` (a run's name) and ``of_seed``, whether that has the run's seed.
        Runs whose settings are unknown are in none.
        """
        known = self.runs[self.runs["settings"].map(bool)]
        ended = known[~known.index.isin(self.diverged)]
        rows = []
        for series, runs in known[known["norm"] != "LN"].groupby("series"):
            first = runs.iloc[0]
            alike = ended[(ended.placement == first.placement) & (ended.recipe == first.recipe)]
            own, plain = (alike[alike.norm == name] for name in (f"LN{first.beside}", "LN"))
            alike = own if len(own) and first.norm != f"LN{first.beside}" else plain
            if not len(alike):
                continue
            long = alike[alike.length == first.length]
            longest = alike.sort_values("epochs", ascending=False, kind="stable")
            base = alike[alike.series == (long if len(long) else longest).series.iloc[0]]
            for run, seed in runs.seed.items():
                same = base[base.seed == seed]
                baselines = same if len(same) else base
                rows += [(run, series, baseline, len(same) > 0) for baseline in baselines.index]
        return pd.DataFrame(rows, columns=["run", "series", "baseline", "of_seed"])


def by_epoch(frame: pd.DataFrame) -> pd.DataFrame:
    """Return of each run and epoch the last row; of validations those of epochs that have ended.

    There may be validations within an epoch, of two runs at different updates.
    """
    if "ended" in frame:
        frame = frame[frame["ended"].eq(True)]
    return frame.drop_duplicates(["run", "epoch"], keep="last")


def of_largest(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return each run's rows with its largest value of a column, such as its last update."""
    return frame[frame[column] == frame.groupby("run")[column].transform("max")]


def as_many_updates(updates: "pd.Series[float]", others: "pd.Series[float]") -> "pd.Series[bool]":
    """Tell where two numbers of updates are near enough to compare what came of them."""
    return (updates - others).abs() <= _ALIKE * updates


def _shared(settings: Sequence[Mapping[str, Any]], free: Sequence[str]) -> list[str]:
    """Name the settings that all know, or all but those whose optimizer, say, is another."""

    def known(name: str) -> bool:
        kind = f"{name.rpartition('.')[0]}._name"
        with_it, without = (
            {chosen.get(kind) for chosen in settings if (name in chosen) is has}
            for has in (True, False)
        )
        return not with_it & without

    names = set().union(*settings)
    return sorted(name for name in names if not matches(name, free) and known(name))


def _details(settings: Sequence[Mapping[str, Any]], shared: Sequence[str]) -> list[dict[str, str]]:
    """Say of each in what it differs from the others, by option.

    An option that is not set is left out, and one that tells no more apart than those before it;
    the report's settings have them all.
    """
    values = {name: [json.dumps(chosen.get(name)) for chosen in settings] for name in shared}
    short = {name: short_name(name) for name in shared if len(set(values[name])) > 1}
    told: dict[str, str] = {}
    apart = [""] * len(settings)
    for name in sorted(short, key=lambda name: short[name] not in _NAMES):
        further = [f"{one} {value}" for one, value in zip(apart, values[name], strict=True)]
        if short[name] in _NAMES or len(set(further)) > len(set(apart)):
            told[name], apart = _NAMES.get(short[name], short[name]), further
    return [
        {
            name: f"{title} {as_text(chosen[name])}"
            for name, title in told.items()
            if chosen.get(name) is not None
        }
        for chosen in settings
    ]


def _sets(series: pd.DataFrame, names: Sequence[str]) -> list[tuple[dict[str, str], pd.DataFrame]]:
    keys = series["settings"].map(lambda chosen: json.dumps([chosen.get(name) for name in names]))
    sets = [part for _, part in series.groupby(keys, sort=False)]
    details = _details([part["settings"].iloc[0] for part in sets], names)
    return list(zip(details, sets, strict=True))


def variants(series: pd.DataFrame, free: Sequence[str]) -> list[tuple[str, pd.DataFrame]]:
    """Put series of one placement together that differ in settings of these patterns only.

    Returns:
        Each set, after the settings in which it differs from the others, in words.
    """
    if not len(series):
        return []
    sets = _sets(series, _shared(list(series["settings"]), free))
    return [(", ".join(detail.values()), alike) for detail, alike in sets]


def _rank(row: Any) -> tuple[int, int]:
    norm = "BN@" if row.norm.startswith("BN@") else row.norm
    known = _FIRST.index(norm) if norm in _FIRST else len(_FIRST)
    return PLACEMENTS.index(row.placement), known


def _number_series(runs: pd.DataFrame) -> pd.DataFrame:
    """Add ``detail``, ``label``, ``recipe``, ``length`` and ``series``; order by series."""
    recipe = _shared(list(runs["settings"]), (*OF_NORM, *LENGTH))
    for column, names in (("recipe", recipe), ("length", LENGTH)):
        runs[column] = [json.dumps([chosen.get(name) for name in names])
                        for chosen in runs["settings"]]  # fmt: skip
    named = [name for name in recipe if short_name(name) in _NAMES]
    of_recipe = {
        run: detail
        for _, placed in runs.groupby("placement")
        for detail, alike in _sets(placed, named)
        for run in alike.index
    }
    cells = []
    for _, alike in runs.groupby(["placement", "norm"], sort=False):
        for own, cell in _sets(alike, _shared(list(alike["settings"]), ())):
            detail = ", ".join((own | of_recipe[cell.index[0]]).values())
            behind = f" ({detail})" if detail else ""
            cells.append(cell.assign(detail=detail, label=cell["norm"] + behind))
    cells.sort(key=lambda cell: _rank(cell.iloc[0]))
    return pd.concat([cell.assign(series=number) for number, cell in enumerate(cells)])


def _distinct(runs: pd.DataFrame) -> tuple[pd.DataFrame, list[tuple[str, str]]]:
    """Keep one run a series and seed, the longest, in the order of seeds; say which others are."""
    runs = runs.sort_values("epochs", ascending=False, kind="stable")
    again = runs.duplicated(["series", "seed"])
    longest = runs[~again].reset_index().set_index(["series", "seed"])["run"]
    others = runs.loc[again, ["series", "seed"]].itertuples(name=None)
    twice = [
        (str(run), f"It has the settings and the seed of {longest[series, seed]}, which has no "
         "fewer epochs and is counted alone.")
        for run, series, seed in others
    ]  # fmt: skip
    return runs[~again].sort_values(["series", "seed"], kind="stable"), twice


def _how(score: Mapping[str, Any]) -> str:
    """Return sacreBLEU's signature of a score, and how its translations were searched for."""
    return ", ".join(filter(None, (str(score.get("signature", "unknown")), score.get("search"))))


def _scores(runs: Sequence[Run], key: str) -> pd.DataFrame:
    rows = [
        (run.name, kind, float(score[key]), _how(score),
         score.get("sentences"), run.averaged_scores.get(kind, {}).get(key))
        for run in runs for kind, score in run.scores.items() if key in score
    ]  # fmt: skip
    columns = ["run", "kind", "score", "signature", "sentences", "averaged"]
    frame = pd.DataFrame(rows, columns=columns).astype({"averaged": float})
    return frame.assign(sentences=pd.to_numeric(frame["sentences"], errors="coerce"))


def _make_group(data: str, members: Sequence[tuple[Run, Setup]]) -> Group:
    table = pd.DataFrame(
        [
            {**vars(setup), "epochs": run.last_epoch,
             "updates": max([0, *run.train["update"]]),
             "minutes": run.train["minutes"].tail(1).max(),
             "parameters": run.parameters, "starts": run.starts}
            for run, setup in members
        ],
        index=pd.Index([run.name for run, _ in members], name="run"),
    )  # fmt: skip
    table, twice = _distinct(_number_series(table))
    by_name = {run.name: run for run, _ in members}
    runs = [by_name[name] for name in table.index]
    frames = {}
    for name in _FRAMES:
        parts = [getattr(run, name).assign(run=run.name) for run in runs]
        full = [part for part in parts if len(part)] or parts[:1]
        frames[name] = pd.concat(full, ignore_index=True).join(table[IDENTITY], on="run")
    first = members[0][1]
    frames["scores"] = _scores(runs, first.metric.key).join(table[[*IDENTITY, "updates"]], on="run")
    title = f"{data}; {first.size}" if first.sizes else "Settings unknown"
    return Group(title, table, frames, first.metric, twice)


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Put runs of the same data and model size together, in the order of their first.

    Data are the same where their directory's name, languages, sizes of dictionaries and number of
    training sentences are. Runs whose settings are unknown make a group of their own. Settings that
    only some runs of a group know are not compared, unless it is their optimizer's, say. Of runs
    with the same settings and seed the longest is counted.
    """
    groups: dict[tuple[Any, ...], list[tuple[Run, Setup]]] = {}
    for run in runs:
        setup = describe(run)
        data = setup.data, setup.sizes, run.vocabularies, setup.sentences, setup.metric.key
        groups.setdefault(data, []).append((run, setup))
    number = Counter(key[:2] for key in groups)
    comparable = []
    for (data, sizes, vocabularies, sentences, _), members in groups.items():
        if number[data, sizes] > 1:
            languages = " to ".join(language for language, _ in vocabularies)
            types = " and ".join(str(size) for _, size in vocabularies)
            texts = "" if sentences is None else f", {sentences:,} training sentences"
            data = f"{data} ({languages}, {types} types{texts})"
        comparable.append(_make_group(data, members))
    return comparable
