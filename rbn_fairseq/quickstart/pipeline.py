"""The quickstart: real text, three norms, TID, BLEU and a page about them."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Optional

import torch
from rich.console import Console
from rich.table import Table

from rbn_fairseq.corpora.build import build
from rbn_fairseq.corpora.text import read_lines
from rbn_fairseq.quickstart.corpus import QuickstartText
from rbn_fairseq.quickstart.jobs import Commands, run_jobs
from rbn_fairseq.report.content import sections
from rbn_fairseq.report.export import check_directory, write_report
from rbn_fairseq.report.runs import LOG, SCORE, Run, read_run
from rbn_fairseq.scoring import Score, bleu, read_generated
from rbn_fairseq.writing import write_whole

#: What distinguishes the runs, by the name they have in tables and figures.
NORMS: dict[str, tuple[str, ...]] = {
    "layer": (),
    "batch": ("--norm-encoder", "batch"),
    "rbn": ("--norm-encoder", "batch", "--rbn-mean-weight", "60", "--rbn-std-weight", "60"),
}
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
            f"{run.train['minutes'].iloc[-1]:.1f}",
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
    langs = (source_lang, target_lang)
    corpus = QuickstartText(data, langs, out / "debian")
    about = build(corpus, out / "data", False, lambda line: console.print(line, soft_wrap=True))
    pairs = about["pairs"]
    console.print(
        f"text: {about['text']}\n{pairs['train']} pairs to train on, {pairs['valid']} to validate, "
        f"{pairs['test']} to translate",
        soft_wrap=True,
    )
    test = out / "data" / "text"
    source, reference = (list(read_lines(test / f"test.{lang}")) for lang in langs)
    copying = bleu(source, reference, lang=target_lang)
    jobs = {name: _commands(name, out, langs, epochs) for name in NORMS}
    run_jobs(jobs, lambda name: _epochs_done(out / name / LOG) / epochs, workers, console)
    for name in NORMS:
        _, hypotheses = read_generated(out / name / "generate.txt")
        score = bleu(hypotheses, reference, lang=target_lang)
        write_whole(out / name / SCORE, json.dumps({"sacrebleu": asdict(score)}, indent=1))
    runs = [read_run(name, out / name) for name in NORMS]
    facts = [
        ("text", about["text"]),
        ("sentences", ", ".join(f"{number} {split}" for split, number in pairs.items())),
        ("copying the source", f"BLEU {copying.bleu:.1f}, {copying.signature}"),
    ]
    for name, commands in jobs.items():
        facts += [(name, f"`rbn {shlex.join(words)}`") for words in commands.values()]
    page, *_ = write_report(out / "report", "Layer norm, batch norm, RBN", sections(runs), facts)
    _show(console, runs, copying)
    first, *_, last = (str(out / name / _AVERAGE) for name in NORMS)
    longer = [sentence for sentence in source if len(sentence.split()) >= 10]
    words = ["rbn", "translate", last, "--beside", first, "--", min(longer or source, key=len)]
    console.print(f"\nreport:  {page}\ntry it:  {shlex.join(words)}", soft_wrap=True, markup=False)
