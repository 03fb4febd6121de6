"""Verbs that score, report, and show the whole way once.

They import what they need when they run: matplotlib alone takes half a second.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console

from rbn_fairseq.cli.errors import plain_errors
from rbn_fairseq.files import write_whole

__all__ = ["quickstart", "report", "score", "table"]


def _read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


@plain_errors()
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
    compound_split: Annotated[
        bool,
        typer.Option(
            "--compound-split",
            help="Also BLEU4 on the tokens with hyphenated words split, as usual for WMT En-De.",
        ),
    ] = False,
    raw_reference: Annotated[
        Optional[Path],
        typer.Option(
            help="References for sacreBLEU that were never tokenised, a line a sentence.",
            show_default="the tokenised ones, detokenised",
        ),
    ] = None,
    test_set: Annotated[
        Optional[str],
        typer.Option(help="Score sacreBLEU on its own test set, such as wmt14/full (downloads)."),
    ] = None,
    language_pair: Annotated[
        Optional[str], typer.Option(help="With --test-set: such as en-de.")
    ] = None,
    against: Annotated[
        Optional[Path],
        typer.Option(
            metavar="GENERATED",
            help="Also test the difference to these translations, such as layer norm's (paired "
            "bootstrap, 1,000 samples).",
        ),
    ] = None,
    output: Annotated[Optional[Path], typer.Option(help="Also write the scores as JSON.")] = None,
) -> None:
    """Score translations of tokenised text: BLEU4 on the tokens, and sacreBLEU detokenised."""
    from rbn_fairseq.scoring import (
        bleu,
        detokenise,
        fetch_references,
        read_generated,
        split_compounds,
    )
    from rbn_fairseq.significance import paired_bootstrap

    if raw_reference is not None and test_set is not None:
        raise ValueError("--raw-reference and --test-set both name references; give one of them.")
    if (test_set is None) != (language_pair is None):
        raise ValueError("--test-set and --language-pair go together; give both or neither.")
    translations = read_generated(generated)
    hypotheses = [translation.hypothesis for translation in translations]
    references = [translation.reference for translation in translations]
    if reference is not None:
        references = _read_lines(reference)
    if test_set is not None and language_pair is not None:
        plain = fetch_references(test_set, language_pair)
    elif raw_reference is not None:
        plain = _read_lines(raw_reference)
    else:
        plain = detokenise(references, lang)
    others = [] if against is None else [it.hypothesis for it in read_generated(against)]
    texts = {"tokenised": (hypotheses, others, references, "none")}
    if compound_split:
        split = (split_compounds(side) for side in (hypotheses, others, references))
        texts["compound_split"] = (*split, "none")
    texts["sacrebleu"] = (detokenise(hypotheses, lang), detokenise(others, lang), plain, None)
    scores = {}
    for kind, (own, other, right, tokenize) in texts.items():
        named = {"lang": lang, "test_set": test_set} if kind == "sacrebleu" else {}
        value = bleu(own, right, tokenize, **named)
        scores[kind] = asdict(value)
        told = f"{kind:14} BLEU {value.bleu:.2f}  BP {value.brevity_penalty:.3f}  {value.signature}"
        if against is not None:
            found = paired_bootstrap(own, other, right, tokenize, lang, against=str(against))
            scores[kind]["significance"] = asdict(found)
            told += f"\n{'':14} BLEU {found.bleu:.2f} against it, p = {found.p:.3f}"
        typer.echo(told)
    if output is not None:
        text = json.dumps(scores, indent=1)
        write_whole(output, text + "\n")


def _read_name(text: str) -> tuple[str, Path]:
    """Read ``[NAME=]DIR``; directories of Hydra's sweeps have an equals sign themselves."""
    name, equals, path = text.partition("=")
    if not equals or "/" in name or Path(text).is_dir():
        return Path(text).resolve().name, Path(text)
    return name, Path(path)


@plain_errors()
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
    """Draw the paper's figures and tables from runs: a page, and every figure and table as files.

    What was not measured is named with the command that measures it, and the paper's own numbers
    stand beside in grey.
    """
    from rbn_fairseq.report.content import sections
    from rbn_fairseq.report.export import write_report
    from rbn_fairseq.report.runs import read_runs

    read = read_runs(map(_read_name, runs))
    for run in read:
        for problem in run.problems:
            typer.echo(f"{run.name}: {problem}", err=True)
    page, *others = write_report(out, title, sections(read))
    typer.echo(f"wrote {page} and {len(others)} files of figures and tables beside it")


@plain_errors()
def table(
    benchmark: Annotated[str, typer.Argument(help="iwslt14 or wmt16.")],
    runs: Annotated[
        Path,
        typer.Option(
            help="Directory of the runs that scripts/BENCHMARK/train.sh and evaluate.sh made, "
            "PLACEMENT-NORM-seedN."
        ),
    ],
    options: Annotated[
        str, typer.Option(help="Text that follows each command that the table names.")
    ] = "",
    output: Annotated[
        Optional[Path], typer.Option(help="Also write the scores as CSV, a line a run.")
    ] = None,
) -> None:
    """Print the paper's table of BLEU from runs: mean and standard deviation over seeds.

    The paper's numbers stand beside ours where data, model and averaged epochs are the paper's.
    Runs of mixed settings are refused. Not on a terminal, the table is Markdown.
    """
    from rbn_fairseq.report.benchmark import read_benchmark
    from rbn_fairseq.report.benchmark_table import print_benchmark
    from rbn_fairseq.report.paper import BENCHMARKS
    from rbn_fairseq.report.settings import check_agreement
    from rbn_fairseq.report.tables import benchmark_csv

    if benchmark not in BENCHMARKS:
        raise ValueError(
            f"BENCHMARK: unknown benchmark `{benchmark}`. Known: {', '.join(BENCHMARKS)}."
        )
    kinds = BENCHMARKS[benchmark].kinds
    scored, unscored = read_benchmark(runs, kinds)
    check_agreement(scored)
    if output is not None:
        output.write_text(benchmark_csv(scored, kinds), encoding="utf-8")
    print_benchmark(Console(), benchmark, scored, unscored, options)


@plain_errors()
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
