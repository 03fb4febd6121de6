"""The paper's table of translation (Table 2) from directories of evaluated runs."""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Any

import pandas as pd

from rbn_fairseq.report.blocks import SEEDS, SPREAD, Table
from rbn_fairseq.report.paper import BENCHMARKS, PLACED, Benchmark, published_results
from rbn_fairseq.report.runs import SCORE, read_run, read_scores
from rbn_fairseq.report.setups import LENGTH, NORM_FAMILIES, OF_NORM, describe, matches

__all__ = ["benchmark_table", "read_evaluated", "score_rows"]

_PLACEMENTS = dict(zip(("post", "pre"), PLACED, strict=True))
_NAME = re.compile(rf"({'|'.join(_PLACEMENTS)})-(.+)-seed(\d+)")
_FAMILIES = {family.script: family.name for family in NORM_FAMILIES}
#: Rows that are there without runs, by the scripts' names; ``rbn_official`` is RBN with the weights
#: and the convention that the authors published.
_MAIN = {"ln": "LN", "bn": "BN", "rbn": "RBN", "rbn_official": "RBN (official)"}
_AVERAGED_STATISTICS = "score_averaged_statistics.json"
_BLEU = ["bleu", "without", "sacrebleu"]


def _read_scores(path: Path, kinds: Sequence[str]) -> dict[str, Any]:
    problems: list[str] = []
    scores = read_scores(path, problems)
    if problems:
        raise ValueError(f"{path.parent}: {problems[0]}")
    for kind in kinds if scores else ():
        if "signature" not in scores.get(kind, {}):
            raise ValueError(
                f"`{path}` has no `{kind}` with `bleu` and `signature`. Remove it and evaluate "
                "the run again."
            )
    return scores


def _read_about(path: Path) -> dict[str, Any]:
    """Read what data say of themselves; nothing where there is no file."""
    try:
        about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return about
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"`{path}` must hold a JSON object. Prepare the data anew.") from error


def _is_scored(directory: Path) -> bool:
    """Return whether there is a score, of the averages and the training that are there now."""
    score, average = directory / SCORE, directory / "average.pt"
    if not score.exists():
        return False
    if not average.exists():
        raise ValueError(
            f"`{directory}` has a {SCORE} but no average.pt, so that nothing says what was scored. "
            f"Evaluate the run again, or remove {SCORE}."
        )
    sources = (average, directory / "average_recalibrated.pt", directory / "checkpoint_last.pt")
    times = [path.stat().st_mtime_ns for path in sources if path.exists()]
    return max(times) <= score.stat().st_mtime_ns


def read_evaluated(
    directory: Path, kinds: Sequence[str], averaged: Callable[[Path], tuple[int, ...]]
) -> tuple[pd.DataFrame, list[str]]:
    """Read all runs ``PLACEMENT-NORM-seedN`` of a directory, ordered by name and seed.

    Args:
        directory: holds the runs; what is called otherwise is passed over.
        kinds: kinds of BLEU that every score must have.
        averaged: returns the epochs that an ``average.pt`` averages.

    Returns:
        A row an evaluated run: ``directory``, ``placement``, ``norm``, ``seed``, ``settings``
        (what shapes the training and the scores), ``sizes``, ``about`` (of the data), ``epochs``
        (averaged), ``updates``, ``scores``, ``averaged_statistics`` (the scores without
        recalibration), and of the first kind of BLEU ``bleu`` and ``without`` recalibration, and
        ``sacrebleu``. And the names of runs that are not evaluated, or were trained on since.

    Raises:
        ValueError: if a file is missing or unreadable.
    """
    paths = directory.iterdir() if directory.is_dir() else ()
    named = [match for path in paths if path.is_dir() and (match := _NAME.fullmatch(path.name))]
    rows, unscored = [], []
    for match in sorted(named, key=lambda match: (match[1], match[2], int(match[3]))):
        path = directory / match[0]
        if not _is_scored(path):
            unscored.append(match[0])
            continue
        run = read_run(match[0], path)
        setup, scores = describe(run), _read_scores(path / SCORE, kinds)
        if not setup.sizes:
            raise ValueError(
                f"`{path}` has no run.json that tells its settings. Train it with rbn train."
            )
        data = str(run.config["task"]["data"]).split(os.pathsep)[0]
        about, epochs = _read_about(Path(data) / "about.json"), averaged(path / "average.pt")
        identity = ("corpus", "standard", "differences", "pairs")
        settings = {
            **setup.settings,
            # Data are the same where they say the same of themselves, wherever they lie.
            "data": {key: about.get(key) for key in identity} if about else os.path.realpath(data),
            "dictionaries": run.vocabularies,
            "averaged epochs": epochs,
            **{f"signature of {kind}": scores[kind]["signature"] for kind in kinds},
        }
        averaged_statistics = _read_scores(path / _AVERAGED_STATISTICS, kinds)
        rows.append(
            {
                "directory": path,
                "placement": match[1],
                "norm": match[2],
                "seed": int(match[3]),
                "settings": settings,
                "sizes": dict(setup.sizes),
                "about": about,
                "epochs": epochs,
                "updates": int(run.train["update"].max()) if len(run.train) else 0,
                "scores": scores,
                "averaged_statistics": averaged_statistics,
                "bleu": scores[kinds[0]]["bleu"],
                "without": averaged_statistics.get(kinds[0], {}).get("bleu"),
                "sacrebleu": scores["sacrebleu"]["bleu"],
            }
        )
    columns = ["directory", "placement", "norm", "seed", "settings", "scores", *_BLEU]
    runs = pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)
    _check_agreement(runs)
    return runs, unscored


def _agree(runs: pd.DataFrame, what: str, counts: Callable[[str], bool]) -> None:
    for _, other in runs.iloc[1:].iterrows():
        first = runs.iloc[0]
        for name in sorted(first["settings"].keys() | other["settings"].keys()):
            one, two = first["settings"].get(name), other["settings"].get(name)
            if counts(name) and one != two:
                raise ValueError(
                    f"All runs of {what} must agree on `{name}`, but it is {one} in "
                    f"`{first['directory']}` and {two} in `{other['directory']}`. Move one of them "
                    "elsewhere, or train or evaluate it anew with the settings of the other."
                )


def _check_agreement(runs: pd.DataFrame) -> None:
    """Refuse to compare runs of mixed settings.

    All runs share data, model sizes, size of batches, averaged epochs and signatures; those of one
    placement all that shapes a training except norms, penalty and how long it was to be; those of
    a row all except that length.

    Raises:
        ValueError: naming a setting, both values and both directories.
    """
    of_table = (
        "data", "dictionaries", "averaged epochs", "effective batch", "signature of *", "model.*",
        "dataset.max_tokens", "criterion.label_smoothing",
    )  # fmt: skip
    not_of_table = ("model.norm_*", "model.*_normalize_before")
    for (placement, norm), row in runs.groupby(["placement", "norm"]):
        _agree(row, f"the row {placement} {norm}", lambda name: name not in LENGTH)
    for placement, half in runs.groupby("placement"):
        what = f"one placement ({placement})"
        _agree(half, what, lambda name: not matches(name, (*OF_NORM, *LENGTH)))
    _agree(
        runs, "a table", lambda name: matches(name, of_table) and not matches(name, not_of_table)
    )


def _differs(benchmark: Benchmark, run: Mapping[str, Any]) -> list[str]:
    """Return in what runs differ from the paper's: its numbers stand beside equals only."""
    sizes = [
        run["sizes"][f"{side}_{name}"]
        for side in ("encoder", "decoder")
        for name in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
    ]
    about = run["about"]
    differences = {
        "data": about.get("corpus") != benchmark.corpus or about.get("standard") is not True,
        "model": sizes != [*benchmark.sizes] * 2,
        "epochs": benchmark.epochs not in (None, run["epochs"])
        or run["updates"] < benchmark.updates,
    }
    return [name for name, differs in differences.items() if differs]


def _spans(numbers: Iterable[int]) -> str:
    """Write ascending numbers shortly: ``1-3, 7``."""
    spans = []
    for _, pairs in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        first, *rest = [number for _, number in pairs]
        spans.append(f"{first}-{rest[-1]}" if rest else str(first))
    return ", ".join(spans)


def benchmark_table(name: str, runs: pd.DataFrame, unscored: Sequence[str] = ()) -> Table:
    """Return the table: a row a placement and norm, means over seeds.

    Args:
        name: the benchmark's.
        runs: those evaluated, of :func:`read_evaluated`.
        unscored: names of the others.
    """
    benchmark = BENCHMARKS[name]
    differs = _differs(benchmark, runs.iloc[0]) if len(runs) else ["data"]
    main = list(product(_PLACEMENTS, _MAIN))
    others = sorted({*zip(runs["placement"], runs["norm"], strict=True)} - {*main})
    by_norm = runs.astype(dict.fromkeys(_BLEU, float)).groupby(["placement", "norm"])
    # A mean over some of the seeds would be of other runs than the one beside it.
    means = by_norm[_BLEU].agg(lambda values: values.mean(skipna=False))
    heading = benchmark.heading
    seeds = by_norm["seed"].agg(lambda seeds: f"{len(seeds)} ({_spans(sorted(seeds))})")
    cells = pd.DataFrame(
        {
            heading: means["bleu"],
            heading + SPREAD: by_norm["bleu"].std(),
            heading + SEEDS: by_norm.size(),
            "without recalibration": means["without"],
            "sacreBLEU": means["sacrebleu"],
            "n (seeds)": seeds,
        }
    ).reindex(pd.MultiIndex.from_tuples([*main, *others]))
    paper = published_results()["performance"]
    labels, numbers = [], []
    for placement, norm in cells.index:
        label = _MAIN.get(norm, _FAMILIES.get(norm, norm))
        labels.append(f"{_PLACEMENTS[placement].partition('-')[0]}-{label}")
        key = (_PLACEMENTS[placement], label.removesuffix(" (official)"), benchmark.dataset)
        numbers.append(paper.get(key))
    cells.insert(0, "", labels)
    shown = cells["n (seeds)"].notna() & (not differs)
    cells["paper"] = pd.Series(numbers, cells.index, dtype=float).where(shown)
    digits = {heading: 2, "without recalibration": 2, "sacreBLEU": 2, "paper": 1}
    notes = _notes(benchmark, runs, differs)
    if unscored:
        notes.append(f"not evaluated, or trained on since: {', '.join(unscored)}")
    return Table("benchmark", f"{benchmark.corpus}, BLEU", cells, digits, (), tuple(notes))


def _notes(benchmark: Benchmark, runs: pd.DataFrame, differs: Sequence[str]) -> list[str]:
    if not len(runs):
        return ["no run is evaluated yet: `rbn run` trains runs, `rbn evaluate` scores them"]
    first = runs.iloc[0]
    pairs = first["about"].get("pairs") or {}
    parts = [str(first["about"].get("corpus") or f"data in {first['settings']['data']}")]
    if pairs:
        parts.append(", ".join(f"{split} {number:,}" for split, number in pairs.items()) + " pairs")
    parts.append(f"average of epochs {_spans(first['epochs'])}")
    if first["settings"].get("dataset.max_tokens") is not None:
        parts.append(f"max_tokens {first['settings']['dataset.max_tokens']:,}")
    lines = ["; ".join(parts) + "."]
    for kind, heading in ((benchmark.kinds[0], benchmark.heading), ("sacrebleu", "sacreBLEU")):
        lines.append(f"{heading}: {first['scores'][kind]['signature']}")
    if differs:
        lines.append(f"paper's numbers withheld: other {', '.join(differs)} than the paper's")
    elif benchmark.reading:
        lines.append(benchmark.reading)
    return lines


def score_rows(runs: pd.DataFrame, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Return the scores of runs for JSON: by kind, with and without recalibration.

    Without running statistics there is nothing to recalibrate, and the latter is ``None``.
    """
    return [
        {
            "placement": run["placement"],
            "norm": run["norm"],
            "seed": run["seed"],
            **{
                kind: {
                    "bleu": run["scores"][kind]["bleu"],
                    "without_recalibration": run["averaged_statistics"].get(kind, {}).get("bleu"),
                    "signature": run["scores"][kind]["signature"],
                }
                for kind in kinds
            },
            "averaged_epochs": list(run["epochs"]),
        }
        for run in runs.to_dict("records")
    ]
