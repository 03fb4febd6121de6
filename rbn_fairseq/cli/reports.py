"""Verbs that score, report, and show the whole way once.

They import what they need when they run: matplotlib alone takes half a second.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console

__all__ = ["quickstart", "report", "score"]


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn the system's refusal of a file, such as a full disk, into a user's error."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{error.strerror or error}: `{error.filename or 'a file'}`.") from error


@_plain_errors()
def score(
    generated: Annotated[
        Path, typer.Argument(help="What `rbn generate` or fairseq-generate printed.")
    ],
    lang: Annotated[str, typer.Option(help="Language of the translations, to detokenise them.")],
    reference: Annotated[
        Optional[Path],
        typer.Option(
            help="Tokenised references, a line a sentence.", show_default="those in GENERATED"
        ),
    ] = None,
    output: Annotated[Optional[Path], typer.Option(help="Also write the scores as JSON.")] = None,
) -> None:
    """Score translations of tokenised text: BLEU4 on the tokens, and sacreBLEU detokenised."""
    from rbn_fairseq.scoring import bleu, detokenise, read_generated

    translations = read_generated(generated)
    hypotheses = [translation.hypothesis for translation in translations]
    references = [translation.reference for translation in translations]
    if reference is not None:
        references = reference.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    plain = (detokenise(side, lang) for side in (hypotheses, references))
    scores = {
        "tokenised": bleu(hypotheses, references, "none"),
        "sacrebleu": bleu(*plain, lang=lang),
    }
    for kind, value in scores.items():
        typer.echo(
            f"{kind:10} BLEU {value.bleu:.2f}  BP {value.brevity_penalty:.3f}  {value.signature}"
        )
    if output is not None:
        text = json.dumps({kind: asdict(value) for kind, value in scores.items()}, indent=1)
        output.write_text(text + "\n", encoding="utf-8")


@_plain_errors()
def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]DIR...",
            help="Save directories with train.log (of --log-file) and tid.jsonl, of finished or "
            "running trainings; NAME is what tables and figures call the run.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Directory to write to.")],
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "Runs",
) -> None:
    """Write a page with curves of validation loss and TID, the figures, and the numbers as CSV."""
    from rbn_fairseq.report.page import write_report
    from rbn_fairseq.report.runs import read_run

    named = [run.partition("=") if "=" in run else (Path(run).name, "=", run) for run in runs]
    names = [name for name, _, _ in named]
    if len(set(names)) < len(names):
        raise ValueError(
            f"Two runs are called the same ({', '.join(names)}); give them as NAME=DIR."
        )
    for path in write_report(out, title, [read_run(name, Path(path)) for name, _, path in named]):
        typer.echo(f"wrote {path}")


@_plain_errors()
def quickstart(
    data: Annotated[
        Optional[str],
        typer.Option(
            metavar="PREFIX",
            help="Your own text instead of LibreOffice's help: PREFIX/train.SOURCE, "
            "PREFIX/train.TARGET and so on for valid and test (or PREFIX.train.SOURCE), one "
            "sentence a line, not tokenised.",
        ),
    ] = None,
    source_lang: Annotated[str, typer.Option(help="Language to translate from.")] = "de",
    target_lang: Annotated[str, typer.Option(help="Language to translate into.")] = "en",
    out: Annotated[
        Optional[Path],
        typer.Option(
            help="Where everything goes.",
            show_default="runs/quickstart; with --data, runs/quickstart-NAME",
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs to train.")] = 5,
    jobs: Annotated[
        Optional[int],
        typer.Option(
            min=1, help="Trainings at a time, one thread each.", show_default="one a core"
        ),
    ] = None,
) -> None:
    """Train layer norm, batch norm and RBN on real text; measure TID, translate, score, report.

    Without --data the text is German-English LibreOffice help from two Debian packages, which are
    downloaded and unpacked, not installed. What is finished is not done again.
    """
    from rbn_fairseq import quickstart as pipeline

    if out is None:
        out = Path("runs") / (
            "quickstart" if data is None else f"quickstart-{Path(data).resolve().name}"
        )
    workers = jobs or min(len(pipeline.NORMS), os.cpu_count() or 1)
    console = Console(markup=False, highlight=False)
    try:
        pipeline.quickstart(out, data, source_lang, target_lang, epochs, workers, console)
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on from here")
        raise typer.Exit(130) from None
