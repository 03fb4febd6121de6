"""Verbs for scores, tables and reports of runs, and the quickstart."""

import os
import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import typer

from rbn_fairseq.cli.errors import plain_errors
from rbn_fairseq.cli.options import Json, Overwrite, check_json, console, write_json

if TYPE_CHECKING:
    from rich.console import Console

    from rbn_fairseq.report.blocks import Table

__all__ = ["quickstart", "report", "score", "table"]


def _read_lines(path: Path) -> list[str]:
    from rbn_fairseq.scoring import read_text

    return read_text(path).removesuffix("\n").split("\n")


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
    json: Json = None,
    overwrite: Overwrite = False,
) -> None:
    """Score translations of tokenised text: BLEU4 on the tokens, and sacreBLEU detokenised."""
    from rbn_fairseq.scoring import (
        bleu,
        detokenise,
        fetch_references,
        paired_bootstrap,
        read_generated,
        split_compounds,
    )

    if raw_reference is not None and test_set is not None:
        raise ValueError("--raw-reference and --test-set both name references; give one of them.")
    if (test_set is None) != (language_pair is None):
        raise ValueError("--test-set and --language-pair go together; give both or neither.")
    read = (generated, reference, raw_reference, against)
    check_json(json, [path for path in read if path is not None], overwrite)
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
    compared = [] if against is None else read_generated(against)
    others = [translation.hypothesis for translation in compared]
    texts = {"tokenised": (hypotheses, others, references, "none")}
    if compound_split:
        split = (split_compounds(side) for side in (hypotheses, others, references))
        texts["compound_split"] = (*split, "none")
    texts["sacrebleu"] = (detokenise(hypotheses, lang), detokenise(others, lang), plain, None)
    scores: dict[str, dict[str, Any]] = {}
    out = console(json)
    for kind, (ours, theirs, right, tokenize) in texts.items():
        named = {"lang": lang, "test_set": test_set} if kind == "sacrebleu" else {}
        value = bleu(ours, right, tokenize, **named)
        scores[kind] = asdict(value)
        line = f"{kind:14} BLEU {value.bleu:.2f}  BP {value.brevity_penalty:.3f}  {value.signature}"
        if against is not None:
            test = paired_bootstrap(ours, theirs, right, tokenize, lang, against=str(against))
            scores[kind]["significance"] = asdict(test)
            line += f"\n{'':14} BLEU {test.bleu:.2f} against it, p = {test.p:.3f}"
        out.print(line, highlight=False, markup=False, soft_wrap=True)
    write_json(json, scores)


@plain_errors()
def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]DIR...",
            help="Save directories with run.json, train.log (of --log-file) and tid.jsonl, of "
            "finished or running trainings; NAME is what tables and figures call the run, in place "
            "of as little of DIR as tells it from the others.",
        ),
    ],
    output: Annotated[Path, typer.Option(metavar="DIR", help="Directory to write to.")],
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "Runs",
    overwrite: Overwrite = False,
) -> None:
    """Draw the paper's figures and tables from runs: a page, and every figure and table as files.

    What was not measured is named with what measures it, and the paper's own numbers stand beside
    in grey. A report that is in DIR already is replaced.
    """
    from rbn_fairseq.report.content import sections
    from rbn_fairseq.report.export import check_directory, write_report
    from rbn_fairseq.report.runs import name_runs, read_runs
    from rbn_fairseq.version import __version__, commit

    check_directory("--output", output, overwrite)
    read = read_runs(name_runs(runs))
    for run in read:
        for problem in run.problems:
            typer.echo(f"{run.name}: {problem}", err=True)
    version = " ".join(filter(None, (f"rbn_fairseq {__version__}", commit())))
    about = (("this page", f"`{shlex.join(['rbn', 'report', *runs])}`"), ("version", version))
    page, *others = write_report(output, title, sections(read), about, overwrite)
    typer.echo(f"wrote {page} and {len(others)} files of figures and tables beside it")


def _averaged_epochs(path: Path) -> tuple[int, ...]:
    """Return the epochs that an average of epoch checkpoints is of, ascending."""
    from rbn_fairseq.checkpoints.files import read_checkpoint

    averaged = (read_checkpoint(path, mmap=True).get("rbn_fairseq") or {}).get("averaged", ())
    names = [Path(name).name for name in averaged]
    matches = [re.fullmatch(r"checkpoint(\d+)\.pt", name) for name in names]
    if not matches or None in matches:
        raise ValueError(
            f"`{path}` must be an average of epoch checkpoints, but it averages "
            f"{', '.join(names) or 'nothing that it names'}. Make it with rbn average "
            f"{path.parent} --last N, and evaluate the run again."
        )
    return tuple(sorted(int(match[1]) for match in matches if match))


def _print_table(console: "Console", table: "Table") -> None:
    """Print a table and its notes, narrow on a terminal, elsewhere as Markdown."""
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    texts = table.texts()
    if console.is_terminal:
        grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
        for place, column in enumerate(texts):
            words = column.replace(" ", "\n").replace("-", "-\n")
            style = "dim" if table.is_paper(0, column) else ""
            side: Literal["left", "right"] = "right" if place else "left"
            grid.add_column(words, justify=side, no_wrap=True, style=style)
        for row in texts.itertuples(index=False):
            grid.add_row(*map(Text, row))
        console.print(grid)
    else:
        sides = ["left", *["right"] * (len(texts.columns) - 1)]
        drawn = texts.to_markdown(
            index=False, tablefmt="pipe", colalign=sides, disable_numparse=True
        )
        console.print(Text(drawn), soft_wrap=True)
    console.print()
    for note in table.notes:
        console.print(Text(note), soft_wrap=not console.is_terminal)


@plain_errors()
def table(
    benchmark: Annotated[str, typer.Argument(help="iwslt14 or wmt16.")],
    runs: Annotated[
        Path,
        typer.Option(
            help="Directory of the runs that `rbn run` trained and `rbn evaluate` scored, "
            "PLACEMENT-NORM-seedSEED."
        ),
    ],
    json: Json = None,
    overwrite: Overwrite = False,
) -> None:
    """Print the paper's table of BLEU from runs: mean and standard deviation over seeds.

    The paper's numbers stand beside ours where data, model and averaged epochs are the paper's.
    Runs of mixed settings are refused. Not on a terminal, the table is Markdown.
    """
    from rbn_fairseq.report.evaluated import benchmark_table, read_evaluated, score_rows
    from rbn_fairseq.report.paper import BENCHMARKS

    check_json(json, overwrite=overwrite)
    if benchmark not in BENCHMARKS:
        raise ValueError(
            f"BENCHMARK: unknown benchmark `{benchmark}`. Known: {', '.join(BENCHMARKS)}."
        )
    if not runs.is_dir():
        raise ValueError(
            f"--runs: there is no directory `{runs}`. `rbn run {benchmark}` trains runs in "
            f"runs/{benchmark}, or where its --runs says."
        )
    kinds = BENCHMARKS[benchmark].kinds
    evaluated, others = read_evaluated(runs, kinds, _averaged_epochs)
    _print_table(console(json), benchmark_table(benchmark, evaluated, others))
    write_json(json, score_rows(evaluated, kinds))


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
    output: Annotated[
        Optional[Path],
        typer.Option(
            metavar="DIR",
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
    from rich.console import Console

    from rbn_fairseq import quickstart as pipeline

    if output is None:
        output = Path("runs") / (
            "quickstart" if data is None else f"quickstart-{Path(data).resolve().name}"
        )
    workers = jobs or min(len(pipeline.NORMS), os.cpu_count() or 1)
    display = Console(markup=False, highlight=False)
    try:
        pipeline.quickstart(output, data, source_lang, target_lang, epochs, workers, display)
    except KeyboardInterrupt:
        display.print("stopped; the same command goes on from here")
        raise typer.Exit(130) from None
