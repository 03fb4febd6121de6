"""The verb that evaluates runs of the paper's benchmarks, command by command."""

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from rbn_fairseq.cli.options import UserDir, stoppable

#: Options of the search, by corpus as `rbn prepare` calls it.
_SEARCH = {
    "IWSLT14 De-En": ("--beam", "5", "--lenpen", "1", "--max-len-a", "1", "--max-len-b", "50"),
    "WMT16 En-De": ("--beam", "4", "--lenpen", "0.6"),
}
_SACREBLEU = ("wmt14/full", "en-de")  # of WMT16
_AVERAGED = 6  # epochs


def _execute(arguments: Sequence[str], dry_run: bool) -> None:
    """Run an `rbn` command, or print it."""
    text = shlex.join(["rbn", *arguments])
    if dry_run:
        typer.echo(text)
        return
    typer.echo(f"+ {text}", err=True)
    status = subprocess.run([sys.executable, "-m", "rbn_fairseq", *arguments]).returncode
    if status != 0:
        raise typer.Exit(status)


def _read(path: Path, name: str, way_out: str) -> Any:
    """Return an entry of a file of JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))[name]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"There is no `{path}` with a `{name}`: {way_out}") from error


def _has_running_statistics(run: Path, model: Mapping[str, Any]) -> bool:
    """Tell whether any norm of a model has running statistics, by the plans of its settings.

    Raises:
        ValueError: for a norm that is not known.
    """
    from rbn_fairseq.norms import NORMS, NormPlan, PopulationNorm, parse_norms

    names: set[str] = set()
    for place in ("encoder", "encoder_final", "decoder", "decoder_final"):
        option = f"`{run}` has --norm-{place.replace('_', '-')}"
        for rule in NormPlan.parse(str(model.get(f"norm_{place}") or "layer"), option).rules:
            names |= {*parse_norms("+".join(rule.norms), NORMS, option)}
    return any(issubclass(NORMS[name], PopulationNorm) for name in names)


def _commands(run: Path, data: Optional[Path], user_dir: Optional[Path]) -> list[list[str]]:
    """Return the commands that evaluate a run, without `rbn`.

    Raises:
        ValueError: if the run has no settings or a norm that is not known, or its data are of no
            benchmark.
    """
    from rbn_fairseq.checkpoints.files import epoch_checkpoints

    settings = _read(run / "run.json", "config", "RUN must be the save directory of a training.")
    data = data or Path(settings["task"]["data"])
    prepared = "give --data DATA-BIN, the `bin` of what `rbn prepare iwslt14` or `wmt16` made."
    corpus = _read(data / "about.json", "corpus", prepared)
    if corpus not in _SEARCH:
        raise ValueError(f"`{data}` is {corpus}, not {' or '.join(_SEARCH)}: {prepared}")
    target = settings["task"]["target_lang"]
    translating = ["generate", str(data), "--gen-subset", "test", *_SEARCH[corpus]]
    translating += "--remove-bpe --batch-size 64 --num-workers 0 --no-progress-bar".split()
    reference, raw = (data.parent / kind / f"test.{target}" for kind in ("text", "raw"))
    scoring = ["score", "--lang", target, "--reference", str(reference)]
    if corpus == "WMT16 En-De":
        scoring.append("--compound-split")
        if raw.is_file():
            scoring += ["--raw-reference", str(raw)]
        else:
            scoring += ["--test-set", _SACREBLEU[0], "--language-pair", _SACREBLEU[1]]
    own = [] if user_dir is None else ["--user-dir", str(user_dir)]
    scores, average = run / "score.json", run / "average.pt"
    last = min(_AVERAGED, settings["optimization"].get("max_epoch") or _AVERAGED)
    if settings["optimization"].get("max_update"):  # may end it sooner
        last = min(last, len(epoch_checkpoints(run)) or last)
    averaging = ["average", str(run), "--last", str(last), "--output", str(average)]
    commands = [[*averaging, "--overwrite", *own]]
    results = {average: scores}
    if _has_running_statistics(run, settings["model"]):
        recalibrated = run / "average_recalibrated.pt"
        words = ["recalibrate", str(average), "--data", str(data)]
        commands.append([*words, "--output", str(recalibrated), "--overwrite", *own])
        results = {average: run / "score_averaged_statistics.json", recalibrated: scores}
    for checkpoint, file in results.items():
        translations = checkpoint.with_suffix("")
        words = ["--path", str(checkpoint), "--results-path", str(translations)]
        commands.append([*translating, *words, *own])
        words = [str(translations / "generate-test.txt"), "--json", str(file), "--overwrite"]
        commands.append([*scoring, *words])
    return commands


def _is_evaluated(run: Path) -> bool:
    """Tell whether a run's scores are newer than its checkpoints and its averages' translations."""
    scores = run / "score.json"
    averages = ("average", "average_recalibrated")
    translations = [
        file for name in averages if (file := run / name / "generate-test.txt").exists()
    ]
    before = [path.stat().st_mtime_ns for path in (*run.glob("checkpoint*.pt"), *translations)]
    return bool(translations) and scores.is_file() and scores.stat().st_mtime_ns >= max(before)


def evaluate(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Save directories of trainings.")
    ],
    data: Annotated[
        Optional[Path],
        typer.Option(
            metavar="DATA-BIN",
            help="The `bin` of what `rbn prepare iwslt14` or `wmt16` made.",
            show_default="the run's own",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print every command instead of running it.")
    ] = False,
    user_dir: UserDir = None,
) -> None:
    """Average, recalibrate, translate and score runs of IWSLT14 De-En or WMT16 En-De.

    Averages the last 6 epochs of each run (all, if it was to have fewer), estimates the population
    statistics of the averaged weights anew, translates the test set with and without that, and
    scores: BLEU4 on the tokens (of WMT16 with compounds split), and sacreBLEU. The scores are in
    the run's score.json, and in score_averaged_statistics.json without new statistics; these files,
    average.pt and average_recalibrated.pt are overwritten. A run whose scores are newer than its
    checkpoints is left as it is.
    """
    from rbn_fairseq.scoring import fetch_references

    planned = {run: _commands(run, data, user_dir) for run in runs}
    for run in [*planned]:
        if _is_evaluated(run):
            typer.echo(f"{run}: is evaluated", err=True)
            del planned[run]
    commands = [*chain.from_iterable(planned.values())]
    if not dry_run and any("--test-set" in words for words in commands):
        fetch_references(*_SACREBLEU)  # before hours of translating, not after
    with stoppable():
        for words in commands:
            _execute(words, dry_run)
