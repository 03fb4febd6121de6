"""Verbs for scores, tables and reports of runs, and the quickstart."""

import os
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from rbn_fairseq.cli.options import Json, Overwrite, check_json, console, stoppable, write_json

if TYPE_CHECKING:
    from rbn_fairseq.report.runs import Run


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
    from rbn_fairseq import scoring
    from rbn_fairseq.corpora.text import read_lines

    if (test_set is None) != (language_pair is None):
        raise ValueError("--test-set and --language-pair go together; give both or neither.")
    if test_set is not None and raw_reference is not None:
        raise ValueError(
            "--test-set and --raw-reference are two references. Leave one of them out."
        )
    read = [path for path in (generated, reference, raw_reference, against) if path is not None]
    check_json(json, read, overwrite)
    right, ours = scoring.read_generated(generated, references=reference is None)
    theirs: list[str] = []
    if against is not None:
        references, theirs = scoring.read_generated(against, references=False)
        pairs = [(a, b) for a, b in zip(right, references, strict=False) if a and b]
        if others := sum(a != b for a, b in pairs):
            typer.echo(
                f"{others} of {len(pairs)} references in {against} are others than in {generated}: "
                "are they of one test set?",
                err=True,
            )
    if reference is not None:
        right = list(read_lines(reference))
    if test_set is not None and language_pair is not None:
        plain = scoring.fetch_references(test_set, language_pair)
    elif raw_reference is not None:
        plain = list(read_lines(raw_reference))
    else:
        plain = scoring.detokenise(right, lang)
    texts: dict[str, tuple[Optional[str], list[list[str]]]]
    texts = {"tokenised": ("none", [ours, theirs, right])}
    if compound_split:
        split = [scoring.split_compounds(side) for side in (ours, theirs, right)]
        texts["compound_split"] = ("none", split)
    detokenised = [scoring.detokenise(side, lang) for side in (ours, theirs)]
    texts["sacrebleu"] = (None, [*detokenised, plain])
    scores: dict[str, dict[str, Any]] = {}
    search = scoring.read_search(generated)
    out = console(json)
    for kind, (tokenize, (ours, theirs, right)) in texts.items():
        named = {"lang": lang, "test_set": test_set} if kind == "sacrebleu" else {}
        value = scoring.bleu(ours, right, tokenize, **named)
        scores[kind] = asdict(value) | {"search": search}
        line = f"{kind:14} BLEU {value.bleu:.2f}  BP {value.brevity_penalty:.3f}  {value.signature}"
        if against is not None:
            test = scoring.paired_bootstrap(ours, theirs, right, tokenize, lang)
            scores[kind]["significance"] = {"against": str(against), **asdict(test)}
            line += f"\n{'':14} BLEU {test.bleu:.2f} of {against}; p of the difference {test.p:.3f}"
        out.print(line, highlight=False, markup=False, soft_wrap=True)
    if search:
        out.print(f"translated with {search}", highlight=False, markup=False, soft_wrap=True)
    other = "" if against is None else scoring.read_search(against)
    if search and other and other != search:
        typer.echo(
            f"{against} was translated with {other}: part of the difference is the search's, not "
            "the model's.",
            err=True,
        )
    write_json(json, scores)


def _read_runs(runs: list[str]) -> list["Run"]:
    """Read save directories; what is missing or damaged is told on stderr."""
    from rbn_fairseq.report.runs import name_runs, read_runs

    named = name_runs(runs)
    for _, directory in named:
        if not directory.is_dir():
            raise ValueError(f"There is no directory `{directory}`.")
    read = read_runs(named)
    for run in read:
        for problem in run.problems:
            typer.echo(f"{run.name}: {problem}", err=True)
    return read


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]DIR...",
            help="Save directories with run.json, train.log (of `rbn train`) and tid.jsonl, of "
            "finished or running trainings; NAME is what tables and figures call the run, in place "
            "of as little of DIR as tells it from the others.",
        ),
    ],
    output: Annotated[Path, typer.Option(metavar="DIR", help="Directory to write to.")],
    title: Annotated[
        Optional[str], typer.Option(help="Heading of the page.", show_default="data and norms")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Draw the paper's figures and tables from runs: a page, and every figure and table as files.

    What no run has measured is left out: docs/diagnostics.md lists what measures it. The paper's
    own numbers stand beside in grey. A report that is in DIR already is replaced.
    """
    from rbn_fairseq.report.content import heading, sections
    from rbn_fairseq.report.export import check_directory, write_report
    from rbn_fairseq.version import __version__, commit

    check_directory(output, overwrite)
    read = _read_runs(runs)
    version = " ".join(filter(None, (f"rbn_fairseq {__version__}", commit())))
    about = (("this page", f"`{shlex.join(['rbn', 'report', *runs])}`"), ("version", version))
    page, *others = write_report(output, title or heading(read), sections(read), about)
    typer.echo(f"wrote {page} and {len(others)} files of figures and tables beside it")


def table(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="[NAME=]DIR...", help="Save directories, as of `rbn report`."),
    ],
) -> None:
    """Print the paper's Tables 1, 2 (with 3) and 4 from runs: means over seeds, with n.

    BLEU is that of score.json, which `rbn evaluate` and `rbn score` write. The paper's own numbers
    stand beside. Not on a terminal, tables are Markdown.
    """
    from rich.markdown import Markdown

    from rbn_fairseq.report.export import to_markdown
    from rbn_fairseq.report.groups import group_runs
    from rbn_fairseq.report.tables import paper_tables

    out = console()
    for group in group_runs(_read_runs(runs)):
        tables = paper_tables(group, {})
        notes = dict.fromkeys(f"{note}\n" for table in tables for note in table.notes)
        drawn = (to_markdown(replace(table, notes=())) for table in tables)
        none = "No table: the paper's runs are Post-Norm or Pre-Norm, none here is known to be."
        text = "\n".join([f"{group.title}\n", *(drawn if tables else [none]), *notes])
        out.print(Markdown(text)) if out.is_terminal else typer.echo(text)


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

    from rbn_fairseq.quickstart import pipeline

    own = "" if data is None else f"-{Path(data).resolve().name}"
    output = output or Path("runs", f"quickstart{own}")
    workers = jobs or min(len(pipeline.NORMS), os.cpu_count() or 1)
    display = Console(markup=False, highlight=False)
    with stoppable():
        pipeline.quickstart(output, data, source_lang, target_lang, epochs, workers, display)
