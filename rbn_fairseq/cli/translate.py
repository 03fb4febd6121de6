"""`rbn translate`: raw sentences through trained models."""

import os
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Optional

import typer

import rbn_fairseq
from rbn_fairseq.cli.errors import plain_errors
from rbn_fairseq.cli.fairseq_commands import hide_known_warnings
from rbn_fairseq.cli.options import Data, Device, UserDir, choose_device

__all__ = ["translate"]

_AT_A_TIME = 64  # lines of stdin


def _chunks(sentences: list[str]) -> Iterator[list[str]]:
    """Yield the sentences, or lines of stdin: many at a time, but each at once as it is typed."""
    if sentences:
        yield sentences
        return
    typed = sys.stdin.isatty()
    if typed:
        typer.echo("Type a sentence and press return; Ctrl-D ends.", err=True)
    lines = (line.rstrip("\r\n") for line in sys.stdin)
    while chunk := list(islice(lines, 1 if typed else _AT_A_TIME)):
        yield chunk


def _check_sentences(sentences: list[str]) -> None:
    for sentence in sentences:
        if os.path.exists(sentence):  # Path's refuses long names
            raise ValueError(
                f"SENTENCE `{sentence}` is a file or a directory. If it is another run, give "
                f"--beside {sentence}; if a file of sentences, give it to stdin (< {sentence}), as "
                "also a sentence of that name."
            )


@plain_errors()
def translate(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A save directory (its best checkpoint, else its last), or a file."
        ),
    ],
    sentences: Annotated[
        Optional[list[str]],
        typer.Argument(metavar="[SENTENCE]...", help="Raw text.", show_default="lines of stdin"),
    ] = None,
    beside: Annotated[
        Optional[list[str]],
        typer.Option(
            metavar="[NAME=]RUN", help="Another run to show beside it; may be given several times."
        ),
    ] = None,
    data: Data = None,
    beam: Annotated[int, typer.Option(min=1, help="Size of the beam.")] = 5,
    lenpen: Annotated[
        float, typer.Option(help="Length penalty: above 1 favours long translations.")
    ] = 1.0,
    device: Device = None,
    user_dir: UserDir = None,
) -> None:
    """Translate raw sentences, given as arguments or lines of stdin.

    They are tokenised and split as the run's data were, translated as by `rbn generate`, and put
    together for people; an empty line stays one.
    """
    from rbn_fairseq.report.runs import name_runs

    _check_sentences(sentences or [])
    hide_known_warnings()
    rbn_fairseq.register()
    from rbn_fairseq.translator import open_translator

    device = choose_device(device)
    translators = {
        name: open_translator(path, data, device)
        for name, path in name_runs([run, *(beside or [])])
    }
    width = max(map(len, translators))
    for lines in _chunks(sentences or []):
        outputs = {
            name: translator.translate_lines(lines, beam=beam, lenpen=lenpen)
            for name, translator in translators.items()
        }
        for number, line in enumerate(lines):
            if len(translators) == 1:
                typer.echo(outputs[next(iter(outputs))][number])
            else:
                typer.echo(line)
                for name, translations in outputs.items():
                    typer.echo(f"  {name:{width}}  {translations[number]}".rstrip())
