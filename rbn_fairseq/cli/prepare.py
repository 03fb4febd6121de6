"""Verbs that make the paper's corpora."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from rbn_fairseq.cli.errors import plain_errors

if TYPE_CHECKING:
    from rbn_fairseq.corpora.build import Recipe

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    help="Prepare a corpus of the paper: tokenise, clean, split, apply BPE, make it binary.",
)

_Jobs = Annotated[
    Optional[int],
    typer.Option(min=1, help="Processes at a time.", show_default="one a core"),
]
_Output = Annotated[Path, typer.Option(metavar="DIR", help="Directory for everything.")]
_Allow = Annotated[
    bool,
    typer.Option(
        "--allow-nonstandard",
        help="Go on if the text is not the standard, and mark the data as such.",
    ),
]


def _check_source(archive: Optional[Path], text: Optional[Path], option: str) -> None:
    if (archive is None) == (text is None):
        number = "neither" if archive is None else "both"
        raise ValueError(f"Give --archive FILE or {option} DIR, one of the two; {number} is there.")
    if archive is not None and not archive.is_file():
        raise ValueError(f"--archive: there is no file `{archive}`.")


def _print_summary(about: dict[str, Any], out: Path) -> None:
    pairs = "  ".join(f"{split} {number:,}" for split, number in about["pairs"].items())
    typer.echo(f"corpus      {about['corpus']}")
    typer.echo(f"pairs       {pairs}")
    typer.echo(f"tokeniser   {about['tokeniser'] or 'none; the text was tokenised before'}")
    typer.echo(
        f"BPE         {about['merges']:,} merges, {about['types']:,} types in the dictionary"
    )
    typer.echo(f"for fairseq {out / 'bin'}")
    if about["standard"]:
        typer.echo("This is the standard text.")
    for difference in about["differences"]:
        typer.secho(f"NOT THE STANDARD: {difference}", bold=True)


def _prepare(recipe: "Recipe", out: Path, allow_nonstandard: bool) -> None:
    from rbn_fairseq.corpora.build import build

    try:
        about = build(recipe, out, allow_nonstandard, typer.echo)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on from here")
        raise typer.Exit(130) from None
    _print_summary(about, out)


@app.command()
@plain_errors()
def iwslt14(
    archive: Annotated[
        Optional[Path], typer.Option(metavar="FILE", help="WIT3's archive de-en.tgz.")
    ] = None,
    from_tokenized: Annotated[
        Optional[Path],
        typer.Option(
            metavar="DIR",
            help="Instead: {train,valid,test}.{de,en}, tokenised and in lower case, each maybe "
            "with .gz behind; used as they are.",
        ),
    ] = None,
    output: _Output = Path("data/iwslt14"),
    jobs: _Jobs = None,
    merges: Annotated[
        Optional[int], typer.Option(min=1, help="Merges of the BPE to learn.", show_default="10000")
    ] = None,
    bpe_codes: Annotated[
        Optional[Path],
        typer.Option(metavar="FILE", help="Merges of subword-nmt to use instead of learning them."),
    ] = None,
    allow_nonstandard: _Allow = False,
) -> None:
    """Prepare IWSLT14 German-English as fairseq's prepare-iwslt14.sh does.

    Leaves text/ (tokenised), bpe/ (subword units) and bin/ (for fairseq) in --output. The text is
    compared with the standard one. What is finished is not done again.
    """
    from rbn_fairseq.corpora.iwslt14 import MERGES, IWSLT14FromArchive, IWSLT14FromTokenised

    _check_source(archive, from_tokenized, "--from-tokenized")
    if merges is not None and bpe_codes is not None:
        raise ValueError(
            f"--merges {merges} is for merges that are learnt, --bpe-codes {bpe_codes} holds them: "
            "leave out one of the two."
        )
    workers, learnt = jobs or os.cpu_count() or 1, merges or MERGES
    recipe: Recipe
    if archive is not None:
        recipe = IWSLT14FromArchive(archive, workers, learnt, bpe_codes)
    else:
        assert from_tokenized is not None
        recipe = IWSLT14FromTokenised(from_tokenized, workers, learnt, bpe_codes)
    _prepare(recipe, output, allow_nonstandard)


@app.command()
@plain_errors()
def wmt16(
    archive: Annotated[
        Optional[Path],
        typer.Option(metavar="FILE", help="Google's preprocessed archive wmt16_en_de.tar.gz."),
    ] = None,
    from_raw: Annotated[
        Optional[Path],
        typer.Option(
            metavar="DIR",
            help="Instead: {train,newstest2013,newstest2014}.{en,de}, raw text, each maybe with "
            ".gz behind.",
        ),
    ] = None,
    output: _Output = Path("data/wmt16"),
    jobs: _Jobs = None,
    merges: Annotated[
        Optional[int],
        typer.Option(
            min=1, help="Merges of the BPE to learn, with --from-raw.", show_default="32000"
        ),
    ] = None,
    allow_nonstandard: _Allow = False,
) -> None:
    """Prepare WMT16 English-German: valid is newstest2013, test newstest2014.

    Leaves text/ (tokenised), bpe/ (pieces) and bin/ (for fairseq) in --output, and with --from-raw
    the raw test text in raw/. What is finished is not done again.
    """
    from rbn_fairseq.corpora.wmt16 import MERGES, WMT16FromArchive, WMT16FromRaw

    _check_source(archive, from_raw, "--from-raw")
    workers = jobs or os.cpu_count() or 1
    recipe: Recipe
    if from_raw is not None:
        recipe = WMT16FromRaw(from_raw, workers, merges or MERGES)
    else:
        assert archive is not None
        if merges is not None:
            raise ValueError(
                f"--merges {merges} is for --from-raw: the archive has BPE applied already. Leave "
                "out --merges."
            )
        recipe = WMT16FromArchive(archive, workers)
    _prepare(recipe, output, allow_nonstandard)
