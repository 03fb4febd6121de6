"""The quickstart: real text, three norms, TID, BLEU and a page about them."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

import torch
from rich.console import Console
from rich.table import Table

from rbn_fairseq.corpora.text import read_lines
from rbn_fairseq.quickstart.corpus import prepare
from rbn_fairseq.quickstart.jobs import Commands, run_jobs
from rbn_fairseq.report.blocks import Section, Sentences
from rbn_fairseq.report.content import sections
from rbn_fairseq.report.export import check_directory, write_report
from rbn_fairseq.report.figures.style import norm_colours
from rbn_fairseq.report.runs import LOG, SCORE, Run, read_run
from rbn_fairseq.scoring import Score, bleu, read_generated
from rbn_fairseq.writing import write_whole

#: What distinguishes the runs, by the name they have in tables and figures.
NORMS: dict[str, tuple[str, ...]] = {
    "layer": (),
    "batch": ("--norm-encoder", "batch"),
    "rbn": ("--norm-encoder", "batch", "--rbn-mean-weight", "60", "--rbn-std-weight", "60"),
}
_FAMILIES = {"layer": "LN", "batch": "BN", "rbn": "RBN"}  # what the report calls them
_AVERAGED = 2  # epochs
_AVERAGE = "average.pt"
_RECIPE = shlex.split(
    "--arch rbn_transformer_tiny --share-all-embeddings --dropout 0.1 "
    "--criterion label_smoothed_cross_entropy_rbn --label-smoothing 0.1 --optimizer adam "
    "--lr 0.004 --lr-scheduler inverse_sqrt --warmup-updates 400 --max-tokens 2000 --seed 1 "
    f"--num-workers 0 --log-interval 10 --keep-last-epochs {_AVERAGED} --adam-betas '(0.9, 0.98)'"
)


def _epochs_done(log: Path) -> float:
    """Read from fairseq's log how many epochs are over."""
    text = log.read_text(errors="replace") if log.exists() else ""
    epochs = re.findall(r'"update": ([0-9.]+),', text)
    return float(epochs[-1]) if epochs else 0.0


def _commands(name: str, out: Path, langs: tuple[str, str], epochs: int) -> Commands:
    """Return the commands of a run."""
    directory, data = out / name, str(out / "data" / "bin")
    averaged = directory / _AVERAGE
    device = () if torch.cuda.is_available() else ("--cpu",)
    # fairseq itself finds only those without a hyphen.
    pair = ("--source-lang", langs[0], "--target-lang", langs[1])
    options = (*_RECIPE, *device, *NORMS[name], "--max-epoch", str(epochs))
    note, begun = directory / "begun.json", json.dumps(options)
    if note.exists() and note.read_text(encoding="utf-8") != begun:
        raise ValueError(
            f"`{directory}` holds a training with other options ({note.name} in it), such as "
            "--epochs. Choose another place with --output, or remove that directory."
        )
    write_whole(note, begun)
    average = ("average", str(directory), "--last", str(min(_AVERAGED, epochs)))
    average += ("--output", str(averaged), "--overwrite", "--recalibrate")
    generate = ("generate", data, *pair, "--path", str(averaged), *device, "--beam", "5")
    generate += ("--remove-bpe", "sentencepiece", "--max-tokens", "4000", "--num-workers", "0")
    return {
        directory / "train.out": ("train", data, *pair, "--save-dir", str(directory), *options),
        directory / "average.out": average,
        directory / "generate.txt": generate,
    }


def _score(directory: Path, references: Sequence[str], lang: str) -> list[str]:
    """Write the score of a run's translations, and return them."""
    _, hypotheses = read_generated(directory / "generate.txt")
    score = bleu(hypotheses, references, lang=lang)
    write_whole(directory / SCORE, json.dumps({"sacrebleu": asdict(score)}, indent=1))
    return hypotheses


def _sample(texts: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Choose ten sentences of ordinary length, spread evenly over the test set."""
    lengths = [len(sentence.split()) for sentence in texts["source"]]
    ordinary = [i for i, length in enumerate(lengths) if 6 <= length <= 25] or range(len(lengths))
    step = max(1, len(ordinary) // 10)
    return [
        {name: sentences[index] for name, sentences in texts.items()}
        for index in ordinary[::step][:10]
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
) -> None:
    """Train the three norms on real text, measure, translate, score, and write the report.

    What an earlier call finished is not done again; what it began goes on where it stopped. The
    outcome is ``report/index.html`` in ``out``; ``workers`` runs go at a time, a thread each.

    Raises:
        ValueError: if the data cannot be used, or a run fails.
    """
    check_directory(out / "report", overwrite=False)
    out.mkdir(parents=True, exist_ok=True)
    about = prepare(out, data, (source_lang, target_lang), console)
    pairs = about["pairs"]
    console.print(
        f"text: {about['text']}\n{pairs['train']} pairs to train on, {pairs['valid']} to validate, "
        f"{pairs['test']} to translate",
        soft_wrap=True,
    )
    test = out / "data" / "text"
    source, reference = (
        list(read_lines(test / f"test.{lang}")) for lang in (source_lang, target_lang)
    )
    copying = bleu(source, reference, lang=target_lang)
    langs = (source_lang, target_lang)
    jobs = {name: _commands(name, out, langs, epochs) for name in NORMS}
    run_jobs(jobs, lambda name: _epochs_done(out / name / LOG) / epochs, workers, console)
    translations = {name: _score(out / name, reference, target_lang) for name in NORMS}
    sentences = _sample({"source": source, "reference": reference, **translations})
    runs = [read_run(name, out / name) for name in NORMS]
    result, *others = sections(runs)
    shown = [result, _translations(sentences, min(_AVERAGED, epochs), pairs["test"]), *others]
    facts = _about(about, copying, runs[0].starts[0], jobs)
    page, *_ = write_report(out / "report", "Layer norm, batch norm, RBN", shown, facts)
    _show(console, runs, copying)
    shortest = min((sentence["source"] for sentence in sentences), key=len)
    words = ["rbn", "translate", str(out / list(NORMS)[-1] / _AVERAGE), "--", shortest]
    console.print(f"\nreport:  {page}\ntry it:  {shlex.join(words)}", soft_wrap=True, markup=False)


def _translations(sentences: Sequence[Mapping[str, str]], averaged: int, number: int) -> Section:
    colours = norm_colours(list(_FAMILIES.values()))
    block = Sentences(
        "Ten sentences of the test set",
        tuple(sentences),
        {name: colours[_FAMILIES[name]] for name in NORMS},
        (
            f"Translated with the average of the last {averaged} epochs, batch norms recalibrated, "
            f"beam 5; so were all {number} that BLEU is of.",
        ),
    )
    return Section("Translations", "", (block,))


def _about(
    data: Mapping[str, Any], copying: Score, begun: Mapping[str, Any], jobs: Mapping[str, Commands]
) -> tuple[tuple[str, str], ...]:
    machine = begun["machine"]
    return (
        ("text", data["text"]),
        ("sentences", ", ".join(f"{number} {split}" for split, number in data["pairs"].items())),
        ("model", "rbn_transformer_tiny, Post-Norm, 2 + 2 layers, width 128, norms in the encoder"),
        ("copying the source", f"BLEU {copying.bleu:.1f}, {copying.signature}"),
        ("machine", machine["processor"] if machine["device"] == "cpu" else machine["device"]),
        ("versions", ", ".join(map(" ".join, begun["versions"].items()))),
        *(
            (name, f"`rbn {shlex.join(words)}`")
            for name, commands in jobs.items()
            for words in commands.values()
        ),
    )
