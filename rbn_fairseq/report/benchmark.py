"""The runs of a benchmark: one directory a run, read with its settings and scores."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rbn_fairseq.checkpoints.files import epoch_checkpoints, read_checkpoint
from rbn_fairseq.report.parsing import parse_json
from rbn_fairseq.report.settings import flatten

__all__ = ["PLACEMENTS", "BenchmarkRun", "UnscoredRun", "read_benchmark", "spans"]

PLACEMENTS = ("post", "pre")
_NORMS = {  # by name: batch norm in the encoder, RBN penalty
    "ln": (False, False),
    "bn": (True, False),
    "rbn": (True, True),
    "rbn_official": (True, True),
}
_PLANS = {  # by name: norms of the encoder
    "pn": "power",
    "pn_ls": "groupscale+power",
    "brn": "renorm",
    "mabn": "mabn",
}
_NAME = re.compile(rf"({'|'.join(PLACEMENTS)})-(.+)-seed(\d+)")


@dataclass(frozen=True)
class UnscoredRun:
    """A run without scores of its average; ``trained``: only the evaluation is missing."""

    placement: str
    norm: str
    seed: int
    trained: bool


@dataclass(frozen=True)
class BenchmarkRun:
    """An evaluated run.

    Attributes:
        directory: where it lies.
        placement: ``post`` or ``pre``.
        norm: what its directory calls the norm.
        seed: of the training.
        epochs: those whose weights were averaged, ascending.
        updates: of the training, up to the last of them.
        settings: what shaped the training and the scores, by names such as ``optimization.lr``.
        about: what ``about.json`` says of the data; empty if there is none.
        scores: by kind of BLEU, as ``rbn score`` wrote them.
        unrecalibrated: the same with averaged running statistics; empty without running statistics.
    """

    directory: Path
    placement: str
    norm: str
    seed: int
    epochs: tuple[int, ...]
    updates: int
    settings: Mapping[str, Any]
    about: Mapping[str, Any]
    scores: Mapping[str, Mapping[str, Any]]
    unrecalibrated: Mapping[str, Mapping[str, Any]]


def _read_json(path: Path) -> dict[str, Any]:
    """Read an object; an absent file is an empty one."""
    if not path.exists():
        return {}
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"`{path}` is not JSON ({error}). Remove it and make it anew.") from error
    if not isinstance(content, dict):
        raise ValueError(f"`{path}` must hold a JSON object. Remove it and make it anew.")
    return content


def _read_scores(path: Path, kinds: Sequence[str]) -> dict[str, Any]:
    scores = _read_json(path)
    for kind in kinds if path.exists() else ():
        score = scores.get(kind)
        if not isinstance(score, dict) or not {"bleu", "signature"} <= score.keys():
            raise ValueError(
                f"`{path}` has no `{kind}` with `bleu` and `signature`. Remove it and evaluate "
                "the run again."
            )
    return scores


def _updates(state: Mapping[str, Any]) -> int:
    history = state.get("optimizer_history") or [{}]
    return int(history[-1].get("num_updates", 0))


def _averaged_epochs(path: Path, state: Mapping[str, Any]) -> tuple[int, ...]:
    names = [Path(name).name for name in (state.get("rbn_fairseq") or {}).get("averaged", ())]
    found = [re.fullmatch(r"checkpoint(\d+)\.pt", name) for name in names]
    if not found or None in found:
        raise ValueError(
            f"`{path}` must be an average of epoch checkpoints, but it averages "
            f"{', '.join(names) or 'nothing that it names'}. Make it with rbn average "
            f"{path.parent} --last N, and evaluate the run again."
        )
    return tuple(sorted(int(match[1]) for match in found if match))


def _check_name(run: BenchmarkRun, cfg: Mapping[str, Any]) -> None:
    """Compare what the directory is called with what was trained in it."""
    pre = run.placement == "pre"
    weights = (cfg["criterion"].get(f"rbn_{kind}_weight") or 0 for kind in ("mean", "std"))
    held = cfg["criterion"].get("rbn_target_tid") is not None
    penalised = held or any(weight > 0 for weight in weights)
    plan = run.settings["model.norm_encoder"]
    batch = "batch" in plan
    expected = _NORMS.get(run.norm, (batch, penalised))
    called = {
        "common.seed": (run.seed, cfg["common"]["seed"]),
        "batch norm in the encoder": (expected[0], batch),
        "RBN penalty": (expected[1], penalised),
        "model.norm_encoder": (_PLANS.get(run.norm, plan), plan),
        **{
            name: (pre, run.settings[name])
            for name in ("model.encoder_normalize_before", "model.decoder_normalize_before")
        },
    }
    for name, (wanted, value) in called.items():
        if value != wanted:
            raise ValueError(
                f"By its name, the run in `{run.directory}` has `{name}` {wanted}, but its "
                f"checkpoint says {value}. Call the directory what it holds, or train it anew."
            )


def _read_run(
    directory: Path, placement: str, norm: str, seed: int, kinds: Sequence[str]
) -> BenchmarkRun:
    path = directory / "average.pt"
    state = read_checkpoint(path, mmap=True)
    if not state.get("cfg"):
        raise ValueError(f"`{path}` holds no settings (`cfg`). Train the run with rbn train.")
    cfg, settings = state["cfg"], flatten(state["cfg"])
    epochs = _averaged_epochs(path, state)
    scores = _read_scores(directory / "score.json", kinds)
    data = str(cfg["task"]["data"]).split(os.pathsep)[0]
    about = _read_json(Path(data) / "about.json")
    # Data are the same where they say the same of themselves, wherever they lie.
    said = ("corpus", "standard", "differences", "pairs")
    settings["data"] = {key: about.get(key) for key in said} if about else os.path.realpath(data)
    settings["dictionaries"] = (state.get("task_state") or {}).get("dictionaries")
    settings["averaged epochs"] = epochs
    unrecalibrated = _read_scores(directory / "score_averaged_statistics.json", kinds)
    for kind in kinds:
        signature = settings[f"signature of {kind}"] = scores[kind]["signature"]
        other = unrecalibrated.get(kind, scores[kind])["signature"]
        if other != signature:
            raise ValueError(
                f"`{directory}`: the `{kind}` scores with and without recalibration have different "
                f"signatures, `{signature}` and `{other}`. Evaluate the run again."
            )
    run = BenchmarkRun(
        directory,
        placement,
        norm,
        seed,
        epochs,
        max(map(_updates, (state, _last_state(directory)))),  # the end may lie within an epoch
        settings,
        about,
        scores,
        unrecalibrated,
    )
    _check_name(run, cfg)
    return run


def _is_scored(directory: Path) -> bool:
    """Tell whether there is a score, of the averages and the training that are there now."""
    score = directory / "score.json"
    if not score.exists():
        return False
    averages = [directory / "average.pt", directory / "average_recalibrated.pt"]
    if not averages[0].exists():
        raise ValueError(
            f"`{directory}` has a score.json but no average.pt, so that nothing says what was "
            "scored. Evaluate the run again, or remove score.json."
        )
    sources = [*averages, directory / "checkpoint_last.pt"]
    made = [path.stat().st_mtime_ns for path in sources if path.exists()]
    return max(made) <= score.stat().st_mtime_ns


def _last_state(directory: Path) -> dict[str, Any]:
    """Read the last checkpoint; empty where there is none, or past whose damage one trains on."""
    try:
        return read_checkpoint(directory / "checkpoint_last.pt", mmap=True)
    except ValueError:
        return {}


def _is_trained(directory: Path) -> bool:
    """Tell whether the end is reached."""
    state = _last_state(directory)
    if not state:
        return False
    wanted = state["cfg"]["optimization"]
    if 0 < wanted["max_update"] <= _updates(state):
        return True
    epochs = epoch_checkpoints(directory)
    return 0 < wanted["max_epoch"] <= max(epochs, default=0)


def read_benchmark(
    directory: Path, kinds: Sequence[str]
) -> tuple[list[BenchmarkRun], list[UnscoredRun]]:
    """Read all runs ``PLACEMENT-NORM-seedN`` of a directory, ordered by name and seed.

    Args:
        directory: holds the runs; what is called otherwise is passed over.
        kinds: kinds of BLEU that every score must have.

    Returns:
        Evaluated runs, and the others; none where the directory is still to be made.

    Raises:
        ValueError: if a file is missing or unreadable, or a run is
            not what its directory's name says.
    """
    found = directory.iterdir() if directory.is_dir() else ()
    matches = [_NAME.fullmatch(path.name) for path in found if path.is_dir()]
    named = sorted((m[1], m[2], int(m[3]), m[0]) for m in matches if m)
    scored, unscored = [], []
    for placement, norm, seed, name in named:
        if _is_scored(directory / name):
            scored.append(_read_run(directory / name, placement, norm, seed, kinds))
        else:
            trained = _is_trained(directory / name)
            unscored.append(UnscoredRun(placement, norm, seed, trained))
    return scored, unscored


def records(runs: Sequence[BenchmarkRun], kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Return the scores of runs for JSON: by kind, with and without recalibration.

    Without running statistics there is nothing to recalibrate, and the latter is ``None``.
    """
    return [
        {
            "placement": run.placement,
            "norm": run.norm,
            "seed": run.seed,
            **{
                kind: {
                    "bleu": run.scores[kind]["bleu"],
                    "without_recalibration": run.unrecalibrated.get(kind, {}).get("bleu"),
                    "signature": run.scores[kind]["signature"],
                }
                for kind in kinds
            },
            "averaged_epochs": list(run.epochs),
        }
        for run in runs
    ]


def spans(numbers: tuple[int, ...]) -> str:
    """Write ascending numbers shortly: ``1-3, 7``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(f"{s[0]}-{s[-1]}" if len(s) > 1 else str(s[0]) for s in found)
