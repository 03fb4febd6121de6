"""Verbs that make the paper's corpora."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

if TYPE_CHECKING:
    from rbn_fairseq.corpora.build import Corpus

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    help="Prepare a corpus of the paper: tokenise, clean, split, apply BPE, make it binary.",
)

_CORES = os.cpu_count() or 1
_Jobs = Annotated[int, typer.Option(min=1, help="Processes at a time.", show_default="one a core")]
_Output = Annotated[Path, typer.Option(metavar="DIR", help="Directory for everything.")]
_Allow = Annotated[
    bool,
    typer.Option(
        "--allow-nonstandard",
        help="Go on if the text is not the standard, and mark the data as such.",
    ),
]


def _prepare(corpus: "Corpus", out: Path, allow_nonstandard: bool) -> None:
    from rbn_fairseq.corpora.build import build

    try:
        about = build(corpus, out, allow_nonstandard, typer.echo)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on from here")
        raise typer.Exit(130) from None
    pairs = "  ".join(f"{split} {number:,}" for split, number in about["pairs"].items())
    typer.echo(f"corpus      {about['corpus']}")
    typer.echo(f"pairs       {pairs}")
    typer.echo(f"tokeniser   {about['tokeniser'] or 'none; the text was tokenised before'}")
    typer.echo(
        f"BPE         {about['merges']:,} merges, {about['types']:,} types in the dictionary"
    )
    _finish(about, out)


def _finish(about: Mapping[str, Any], out: Path) -> None:
    typer.echo(f"for fairseq {out / 'bin'}")
    if about["standard"]:
        typer.echo("This is the standard text.")
    for difference in about["differences"]:
        typer.secho(f"NOT THE STANDARD: {difference}", bold=True)


def _check_archive(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"--archive: there is no file `{path}`.")


@app.command()
def iwslt14(
    archive: Annotated[
        Optional[Path], typer.Option(metavar="FILE", help="WIT3's archive de-en.tgz.")
    ] = None,
    from_tokenized: Annotated[
        Optional[Path],
        typer.Option(
            metavar="DIR",
            help="Instead: {train,valid,test}.{de,en}, tokenised and in lower case, used as they "
            "are.",
        ),
    ] = None,
    output: _Output = Path("data/iwslt14"),
    jobs: _Jobs = _CORES,
    merges: Annotated[int, typer.Option(min=1, help="Merges of the BPE to learn.")] = 10_000,
    allow_nonstandard: _Allow = False,
) -> None:
    """Prepare IWSLT14 German-English as fairseq's prepare-iwslt14.sh does.

    Leaves text/ (tokenised), bpe/ (subword units) and bin/ (for fairseq) in --output. The text is
    compared with the standard one. What is finished is not done again.
    """
    from rbn_fairseq.corpora.iwslt14 import IWSLT14

    path = archive or from_tokenized
    if path is None or (archive and from_tokenized):
        raise ValueError("Give --archive FILE or --from-tokenized DIR, one of the two.")
    if archive is not None:
        _check_archive(archive)
    _prepare(IWSLT14(path, jobs, merges), output, allow_nonstandard)


@app.command()
def wmt16(
    archive: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Google's preprocessed archive wmt16_en_de.tar.gz."),
    ],
    output: _Output = Path("data/wmt16"),
    jobs: _Jobs = _CORES,
    allow_nonstandard: _Allow = False,
) -> None:
    """Prepare WMT16 English-German: valid is newstest2013, test newstest2014.

    Leaves text/ (tokenised), bpe/ (pieces) and bin/ (for fairseq) in --output. What is finished is
    not done again.
    """
    from rbn_fairseq.corpora.wmt16 import WMT16

    _check_archive(archive)
    _prepare(WMT16(archive, jobs, WMT16.standard_merges), output, allow_nonstandard)


_Text = Annotated[Path, typer.Option(metavar="DIR", help="Where its files are.")]


def _prepare_text(name: str, text: Path, out: Path, jobs: int, allow_nonstandard: bool) -> None:
    from rbn_fairseq.corpora.monolingual import TEXTS, build_text

    about = build_text(TEXTS[name], text, out, jobs, allow_nonstandard, typer.echo)
    lines = "  ".join(f"{split} {number:,}" for split, number in about["lines"].items())
    typer.echo(f"corpus      {about['corpus']}")
    typer.echo(f"lines       {lines}")
    _finish(about, out)


@app.command()
def ptb(
    text: _Text,
    output: _Output = Path("data/ptb"),
    jobs: _Jobs = _CORES,
    allow_nonstandard: _Allow = False,
) -> None:
    """Prepare the Penn Treebank for language modelling: Mikolov's ptb.{train,valid,test}.txt.

    Leaves bin/ (for fairseq) in --output.
    """
    _prepare_text("ptb", text, output, jobs, allow_nonstandard)


@app.command()
def wikitext103(
    text: _Text,
    output: _Output = Path("data/wikitext103"),
    jobs: _Jobs = _CORES,
    allow_nonstandard: _Allow = False,
) -> None:
    """Prepare WikiText-103 for language modelling: wiki.{train,valid,test}.tokens.

    Leaves bin/ (for fairseq) in --output.
    """
    _prepare_text("wikitext103", text, output, jobs, allow_nonstandard)
