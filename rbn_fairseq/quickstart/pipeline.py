"""The quickstart: real text, three norms, TID, BLEU and a page about them."""

import fcntl
import json
import re
import shlex
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

import torch
from rich.console import Console
from rich.table import Table

from rbn_fairseq.quickstart.corpus import Data, prepare
from rbn_fairseq.quickstart.jobs import Job, Step, run_jobs
from rbn_fairseq.report.blocks import Section, Sentences
from rbn_fairseq.report.content import sections
from rbn_fairseq.report.figures.style import norm_colours
from rbn_fairseq.report.page import render
from rbn_fairseq.report.runs import LOG, RUN_FILE, SCORE, Run, read_run
from rbn_fairseq.scoring import Score, bleu, read_generated
from rbn_fairseq.writing import write_whole

__all__ = ["NORMS", "quickstart"]

#: What distinguishes the runs, by the name they have in tables and figures.
NORMS: dict[str, tuple[str, ...]] = {
    "layer": (),
    "batch": ("--norm-encoder", "batch"),
    "rbn": ("--norm-encoder", "batch", "--rbn-mean-weight", "60", "--rbn-std-weight", "60"),
}
_FAMILIES = {"layer": "LN", "batch": "BN", "rbn": "RBN"}  # what the report calls them
_AVERAGED = 2  # epochs
_AVERAGE = "average.pt"
_RECIPE = (
    "--arch rbn_transformer_tiny --share-all-embeddings --dropout 0.1 "
    "--criterion label_smoothed_cross_entropy_rbn --label-smoothing 0.1 --optimizer adam "
    "--lr 0.004 --lr-scheduler inverse_sqrt --warmup-updates 400 --max-tokens 2000 --seed 1 "
    f"--num-workers 0 --log-interval 10 --keep-last-epochs {_AVERAGED}"
).split()


def _epochs_done(log: Path) -> float:
    """Read from fairseq's log how many epochs are over."""
    text = log.read_text(errors="replace") if log.exists() else ""
    epochs = re.findall(r'"update": ([0-9.]+),', text)
    return float(epochs[-1]) if epochs else 0.0


def _claim(directory: Path, recipe: Sequence[str], epochs: int) -> None:
    """Make a run's directory, or go on with it if it holds the same run with no more epochs.

    Raises:
        ValueError: if the directory holds something else.
    """
    note = directory / "begun.json"
    begun = json.loads(note.read_text(encoding="utf-8")) if note.exists() else None
    if begun is not None:
        free = begun["recipe"] == list(recipe) and begun["epochs"] <= epochs
    else:
        free = not (directory.exists() and any(directory.iterdir()))
    if not free:
        raise ValueError(
            f"`{directory}` holds something else, or a training with another recipe, on another "
            f"device or for more than {epochs} epochs. Choose another place with --output, or "
            "remove that directory."
        )
    write_whole(note, json.dumps({"recipe": list(recipe), "epochs": epochs}, indent=1))


def _job(name: str, out: Path, data: Data, epochs: int) -> Job:
    directory = out / name
    log, averaged = directory / LOG, directory / _AVERAGE
    device = () if torch.cuda.is_available() else ("--cpu",)
    recipe = (*_RECIPE, "--adam-betas", "(0.9, 0.98)", *device, *NORMS[name])
    train = ("train", str(data.bin), "--save-dir", str(directory))
    average = ("average", str(directory), "--last", str(min(_AVERAGED, epochs)))
    average += ("--output", str(averaged), "--overwrite")
    if NORMS[name]:
        average += ("--recalibrate",)
    generate = ("generate", str(data.bin), "--path", str(averaged), *device, "--beam", "5")
    generate += ("--remove-bpe", "sentencepiece", "--max-tokens", "4000", "--num-workers", "0")
    _claim(directory, recipe, epochs)
    steps = (
        Step(
            "training",
            (*train, *recipe, "--max-epoch", str(epochs)),
            directory / "train.out",
            weight=0.9,
            done=lambda: _epochs_done(log) / epochs,
        ),
        Step("averaging", average, directory / "average.out", weight=0.04),
        Step("translating", generate, directory / "generate.txt", weight=0.06),
    )
    return Job(name, steps)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Hold the directory; two quickstarts would write into each other's files."""
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"Another quickstart is working in `{out}`. Wait for it, or stop it."
            ) from None
        yield


def _score(directory: Path, data: Data, lang: str) -> tuple[list[str], Score]:
    translations = read_generated(directory / "generate.txt")
    hypotheses = [translation.hypothesis for translation in translations]
    score = bleu(hypotheses, data.reference, lang=lang)
    text = json.dumps({"sacrebleu": asdict(score)}, indent=1)
    (directory / SCORE).write_text(text, encoding="utf-8")
    return hypotheses, score


def _first_start(directory: Path) -> dict[str, Any]:
    """Return the machine and the versions that a training was begun on."""
    run = json.loads((directory / RUN_FILE).read_text(encoding="utf-8"))
    start = run["starts"][0]
    machine = start["machine"]
    name = machine["processor"] if machine["device"] == "cpu" else machine["device"]
    return {"machine": name, "versions": start["versions"]}


def _sample(data: Data, hypotheses: dict[str, list[str]], number: int = 10) -> list[dict[str, str]]:
    """Choose sentences of ordinary length, spread evenly over the test set."""
    lengths = [len(sentence.split()) for sentence in data.source]
    ordinary = [i for i, length in enumerate(lengths) if 6 <= length <= 25] or range(len(lengths))
    step = max(1, len(ordinary) // number)
    return [
        {
            "source": data.source[index],
            "reference": data.reference[index],
            **{name: lines[index] for name, lines in hypotheses.items()},
        }
        for index in ordinary[::step][:number]
    ]


def _show(console: Console, runs: Sequence[Run], copying: Score) -> None:
    table = Table("norm", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("BLEU", "valid nll", "mean TID %", "variance TID %", "minutes"):
        table.add_column(column, justify="right")
    table.add_row("copying the source", f"{copying.bleu:.1f}")
    for run in runs:
        last = run.tid[["mean_tid", "var_tid"]].tail(1)
        tid = [f"{100 * value:.2f}" for value in last.to_numpy().ravel()] or ["", ""]
        table.add_row(
            run.name,
            f"{run.scores['sacrebleu']['bleu']:.1f}",
            f"{run.valid['nll_loss'].iloc[-1]:.3f}",
            *tid,
            f"{(run.seconds or 0) / 60:.1f}",
        )
    console.print(table)


def quickstart(
    out: Path,
    data: Optional[str],
    source_lang: str,
    target_lang: str,
    epochs: int,
    workers: int,
    console: Console,
) -> dict[str, Any]:
    """Train the three norms on real text, measure, translate, score, and write the report.

    What an earlier call finished is not done again; what it began goes on where it stopped.

    Args:
        out: directory for everything; ``results.json`` and ``report.html`` are the outcome.
        data: directory or prefix of the user's text; ``None`` = LibreOffice's help pages.
        source_lang: language of the sources.
        target_lang: language of the targets.
        epochs: to train.
        workers: number of runs at a time, one thread each.
        console: for the display.

    Returns:
        What ``results.json`` holds (docs/diagnostics.md).

    Raises:
        ValueError: if the data cannot be used, or a run fails.
    """
    out.mkdir(parents=True, exist_ok=True)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _alone(out):
            prepared = prepare(out, data, source_lang, target_lang, console)
            pairs = prepared.about["pairs"]
            console.print(
                f"text: {prepared.about['text']}\n"
                f"{pairs['train']} pairs to train on, {pairs['valid']} to validate, "
                f"{pairs['test']} to translate",
                soft_wrap=True,
            )
            copying = bleu(prepared.source, prepared.reference, lang=target_lang)
            jobs = [_job(name, out, prepared, epochs) for name in NORMS]
            if not all(job.is_finished() for job in jobs):
                console.print(f"training {', '.join(NORMS)}: {workers} at a time, {epochs} epochs")
                run_jobs(jobs, workers, console)
            return _conclude(out, prepared, jobs, copying, target_lang, console)
    finally:
        signal.signal(signal.SIGTERM, before)


def _conclude(
    out: Path,
    data: Data,
    jobs: Sequence[Job],
    copying: Score,
    target_lang: str,
    console: Console,
) -> dict[str, Any]:
    scored = {name: _score(out / name, data, target_lang) for name in NORMS}
    hypotheses = {name: lines for name, (lines, _) in scored.items()}
    runs = [read_run(name, out / name) for name in NORMS]
    results: dict[str, Any] = {
        "schema": 1,
        "data": {key: data.about[key] for key in ("text", "pairs", "request")},
        "copying": asdict(copying),
        "runs": {
            run.name: {
                "commands": ["rbn " + shlex.join(step.arguments) for step in job.steps],
                **_first_start(run.directory),
                **run.to_dict(),
            }
            for run, job in zip(runs, jobs, strict=True)
        },
        "translations": _sample(data, hypotheses),
    }
    write_whole(out / "results.json", json.dumps(results, indent=1, ensure_ascii=False))
    begun = results["runs"]["layer"]
    sentences = ", ".join(f"{number} {split}" for split, number in data.about["pairs"].items())
    about = (
        ("text", data.about["text"]),
        ("sentences", sentences),
        ("model", "rbn_transformer_tiny, Post-Norm, 2 + 2 layers, width 128, norms in the encoder"),
        ("copying the source", f"BLEU {copying.bleu:.1f}, {copying.signature}"),
        ("machine", begun["machine"]),
        ("versions", ", ".join(map(" ".join, begun["versions"].items()))),
    )
    colours = norm_colours(list(_FAMILIES.values()))
    translations = Sentences(
        "Ten sentences of the test set",
        tuple(results["translations"]),
        {name: colours[_FAMILIES[name]] for name in NORMS},
        (
            f"Translated with the average of the last "
            f"{min(_AVERAGED, runs[0].last_epoch)} epochs, batch norms recalibrated, "
            f"beam 5; so were all {len(data.reference)} that BLEU is of.",
        ),
    )
    result, *others = sections(runs)
    shown = [result, Section("Translations", "", (translations,)), *others]
    page = render("Layer norm, batch norm, RBN", shown, about)
    write_whole(out / "report.html", page)
    _show(console, runs, copying)
    sources = (sentence["source"] for sentence in results["translations"])
    words = ["rbn", "translate", str(out / list(NORMS)[-1] / _AVERAGE), "--", min(sources, key=len)]
    console.print(
        f"\nreport:  {out / 'report.html'}\nresults: {out / 'results.json'}\n"
        f"try it:  {shlex.join(words)}",
        soft_wrap=True,
        markup=False,
    )
    return results
