"""Verbs that make the paper's corpora."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Optional

import typer

from rbn_fairseq.cli.options import Verbs, stoppable

if TYPE_CHECKING:
    from rbn_fairseq.corpora.build import Corpus

app = typer.Typer(
    cls=Verbs,
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

    with stoppable():
        about = build(corpus, out, allow_nonstandard, typer.echo)
    for name, value in about.items():
        if name not in ("standard", "differences", "request"):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            typer.echo(f"{name:11} {text}")
    typer.echo(f"for fairseq {out / 'bin'}")
    if about["standard"]:
        typer.echo("This is the standard text.")
    for difference in about["differences"]:
        typer.secho(f"NOT THE STANDARD: {difference}", bold=True)


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
    if from_tokenized is not None and not from_tokenized.is_dir():
        raise ValueError(f"--from-tokenized: there is no directory `{from_tokenized}`.")
    _prepare(IWSLT14(path, merges, jobs=jobs), output, allow_nonstandard)


@app.command()
def wmt16(
    archive: Annotated[
        Path, typer.Option(metavar="FILE", help="Google's preprocessed archive wmt16_en_de.tar.gz.")
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

    _prepare(WMT16(archive, WMT16.standard_merges, jobs=jobs), output, allow_nonstandard)


def _add_language_modelling(name: str, what: str) -> None:
    def verb(
        text: Annotated[Path, typer.Option(metavar="DIR", help="Where its files are.")],
        output: _Output = Path("data", name),
        jobs: _Jobs = _CORES,
        allow_nonstandard: _Allow = False,
    ) -> None:
        from rbn_fairseq.corpora.monolingual import STANDARDS, Text

        _prepare(Text(text, jobs=jobs, **STANDARDS[name]), output, allow_nonstandard)

    about = f"Prepare a text for language modelling, {what}."
    app.command(name, help=f"{about}\n\nLeaves bin/ (for fairseq) in --output.")(verb)


_add_language_modelling("ptb", "Mikolov's Penn Treebank: ptb.{train,valid,test}.txt")
_add_language_modelling("wikitext103", "wiki.{train,valid,test}.tokens")


@app.command()
def classification(
    train: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Training texts: label, tab, text, or one more column between them; also with "
            ".gz behind.",
        ),
    ],
    test: Annotated[Path, typer.Option(metavar="FILE", help="Test texts.")],
    valid: Annotated[
        Optional[Path],
        typer.Option(
            metavar="FILE", help="Validation texts.", show_default="drawn from the training's"
        ),
    ] = None,
    corpus: Annotated[
        Optional[Literal["imdb"]],
        typer.Option(
            help="Refuse texts that are not IMDB's reviews (Maas et al., 2011): 12,500 of each "
            "label, 0 (negative) and 1 (positive), to train and validate, and as many to test."
        ),
    ] = None,
    valid_part: Annotated[
        float,
        typer.Option(min=0.0001, max=0.9999, help="Part of the training texts to validate on."),
    ] = 0.3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of their draw.")] = 1,
    types: Annotated[
        int,
        typer.Option(
            min=5, help="Types in the dictionary of words, `<unk>` and the like included."
        ),
    ] = 100_000,
    output: _Output = Path("data/texts"),
    jobs: _Jobs = _CORES,
    allow_nonstandard: _Allow = False,
) -> None:
    """Prepare texts with labels for classification.

    Texts become lower case, words and punctuation apart. Leaves text/ and bin/ (for fairseq) in
    --output. What is finished is not done again.
    """
    from rbn_fairseq.corpora.classification import STANDARDS, Texts

    standard = STANDARDS[corpus] if corpus else {}
    texts = Texts(train, test, valid, valid_part, seed, types, jobs=jobs, **standard)
    _prepare(texts, output, allow_nonstandard)


_Tagged = Annotated[
    Path,
    typer.Option(
        metavar="FILE",
        help="Lines of a token and, last, its BIO, BIOES or BMES tag, such as CoNLL-2003's; an "
        "empty line behind each text; also with .gz behind.",
    ),
]


@app.command()
def tagging(
    train: _Tagged,
    valid: _Tagged,
    test: _Tagged,
    corpus: Annotated[
        Optional[Literal["conll2003", "resume"]],
        typer.Option(
            help="Refuse texts whose numbers are not those of CoNLL-2003 (English) or Resume."
        ),
    ] = None,
    min_count: Annotated[
        int,
        typer.Option(
            min=1, help="Training tokens that occur less often are `<unk>`, so that it is trained."
        ),
    ] = 2,
    output: _Output = Path("data/tagging"),
    jobs: _Jobs = _CORES,
    allow_nonstandard: _Allow = False,
) -> None:
    """Prepare texts with a tag for each token, such as CoNLL-2003's or Resume's named entities.

    Leaves text/ and bin/ (for fairseq) in --output. What is finished is not done again.
    """
    from rbn_fairseq.corpora.tagging import STANDARDS, TaggedTexts

    standard = STANDARDS[corpus] if corpus else {}
    texts = TaggedTexts(train, valid, test, min_count, jobs=jobs, **standard)
    _prepare(texts, output, allow_nonstandard)
