"""The paper's table of translation (Table 2) from directories of evaluated runs."""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from rbn_fairseq.report.blocks import SEEDS, SPREAD, Table
from rbn_fairseq.report.paper import BENCHMARKS, PLACED, Benchmark, published_results
from rbn_fairseq.report.runs import SCORE, read_run
from rbn_fairseq.report.setups import LENGTH, NORM_FAMILIES, OF_NORM, describe, matches

__all__ = ["benchmark_table", "read_evaluated", "score_rows"]

_PLACEMENTS = dict(zip(("post", "pre"), PLACED, strict=True))
_NAME = re.compile(rf"({'|'.join(_PLACEMENTS)})-(.+)-seed(\d+)")
_FAMILIES = {family.script: family.name for family in NORM_FAMILIES}
#: Rows that are there without runs, by the scripts' names; ``rbn_official`` is RBN with the weights
#: and the convention that the authors published.
_MAIN = {"ln": "LN", "bn": "BN", "rbn": "RBN", "rbn_official": "RBN (official)"}
_AVERAGED_STATISTICS = "score_averaged_statistics.json"


def _read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; an absent file is an empty one."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            return content
    except ValueError:
        pass
    raise ValueError(f"`{path}` must hold a JSON object. Remove it and make it anew.")


def _read_scores(path: Path, kinds: Sequence[str]) -> dict[str, Any]:
    scores = _read_object(path)
    for kind in kinds if scores else ():
        score = scores.get(kind)
        if not isinstance(score, dict) or not {"bleu", "signature"} <= score.keys():
            raise ValueError(
                f"`{path}` has no `{kind}` with `bleu` and `signature`. Remove it and evaluate "
                "the run again."
            )
    return scores


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
    made = [path.stat().st_mtime_ns for path in sources if path.exists()]
    return max(made) <= score.stat().st_mtime_ns


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
        (averaged), ``updates``, ``scores``, and ``averaged_statistics``, the scores without
        recalibration. And the names of runs that are not evaluated, or were trained on since.

    Raises:
        ValueError: if a file is missing or unreadable.
    """
    found = directory.iterdir() if directory.is_dir() else ()
    named = [match for path in found if path.is_dir() and (match := _NAME.fullmatch(path.name))]
    rows, unscored = [], []
    for match in sorted(named, key=lambda it: (it[1], it[2], int(it[3]))):
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
        about, epochs = _read_object(Path(data) / "about.json"), averaged(path / "average.pt")
        said = ("corpus", "standard", "differences", "pairs")
        settings = {
            **setup.settings,
            # Data are the same where they say the same of themselves, wherever they lie.
            "data": {key: about.get(key) for key in said} if about else os.path.realpath(data),
            "dictionaries": run.vocabularies,
            "averaged epochs": epochs,
            **{f"signature of {kind}": scores[kind]["signature"] for kind in kinds},
        }
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
                "averaged_statistics": _read_scores(path / _AVERAGED_STATISTICS, kinds),
            }
        )
    columns = ["directory", "placement", "norm", "seed", "settings", "scores"]
    runs = pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)
    _check_agreement(runs)
    return runs, unscored


def _agree(runs: pd.DataFrame, what: str, counts: Callable[[str], bool]) -> None:
    first = runs.iloc[0]
    for _, other in runs.iloc[1:].iterrows():
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
    for (placement, norm), own in runs.groupby(["placement", "norm"]):
        _agree(own, f"the row {placement} {norm}", lambda name: name not in LENGTH)
    for placement, own in runs.groupby("placement"):
        what = f"one placement ({placement})"
        _agree(own, what, lambda name: not matches(name, (*OF_NORM, *LENGTH)))
    if len(runs):
        _agree(
            runs,
            "a table",
            lambda name: matches(name, of_table) and not matches(name, not_of_table),
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


def _spans(numbers: Sequence[int]) -> str:
    """Write ascending numbers shortly: ``1-3, 7``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ", ".join(f"{it[0]}-{it[-1]}" if len(it) > 1 else str(it[0]) for it in spans)


def benchmark_table(name: str, runs: pd.DataFrame, unscored: Sequence[str] = ()) -> Table:
    """Return the table: a row a placement and norm, means over seeds.

    Args:
        name: the benchmark's.
        runs: those evaluated, of :func:`read_evaluated`.
        unscored: names of the others.
    """
    benchmark = BENCHMARKS[name]
    differs = _differs(benchmark, runs.iloc[0]) if len(runs) else ["data"]
    main = [(placement, norm) for placement in _PLACEMENTS for norm in _MAIN]
    others = set(zip(runs["placement"], runs["norm"], strict=True)) - set(main)
    rows = []
    for placement, norm in [*main, *sorted(others)]:
        own = runs[(runs["placement"] == placement) & (runs["norm"] == norm)]
        label = _MAIN.get(norm, _FAMILIES.get(norm, norm))
        row = {"": f"{_PLACEMENTS[placement].partition('-')[0]}-{label}", **_row(benchmark, own)}
        family = "RBN" if norm == "rbn_official" else _FAMILIES.get(norm, norm)
        key = (_PLACEMENTS[placement], family, benchmark.dataset)
        number = published_results()["performance"].get(key)
        rows.append({**row, "paper": None if differs or not len(own) else number})
    digits = {benchmark.heading: 2, "without recalibration": 2, "sacreBLEU": 2, "paper": 1}
    notes = _notes(benchmark, runs, differs)
    if unscored:
        notes.append(f"not evaluated, or trained on since: {', '.join(unscored)}")
    title = f"{benchmark.corpus}, BLEU"
    return Table("benchmark", title, pd.DataFrame(rows), digits, (), tuple(notes))


def _row(benchmark: Benchmark, own: pd.DataFrame) -> dict[str, Any]:
    if not len(own):
        columns = (benchmark.heading, benchmark.heading + SPREAD, benchmark.heading + SEEDS,
                   "without recalibration", "sacreBLEU", "n (seeds)")  # fmt: skip
        return dict.fromkeys(columns)
    kind = benchmark.kinds[0]
    bleu = pd.Series([scores[kind]["bleu"] for scores in own["scores"]], dtype=float)
    without = [it[kind]["bleu"] for it in own["averaged_statistics"] if it]
    # A mean over some of the seeds would be of other runs than the one beside it.
    whole = len(without) == len(own)
    return {
        benchmark.heading: bleu.mean(),
        benchmark.heading + SPREAD: bleu.std(),
        benchmark.heading + SEEDS: len(bleu),
        "without recalibration": sum(without) / len(without) if whole else None,
        "sacreBLEU": sum(it["sacrebleu"]["bleu"] for it in own["scores"]) / len(own),
        "n (seeds)": f"{len(own)} ({_spans(sorted(own['seed']))})",
    }


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
