"""`rbn translate`: raw sentences through trained models."""

import os
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any, Optional

import typer

import rbn_fairseq
from rbn_fairseq.cli.fairseq_commands import hide_known_warnings
from rbn_fairseq.cli.options import Data, Device, UserDir, choose_device

_AT_A_TIME = 64  # lines of stdin


def _chunks(sentences: list[str]) -> Iterator[list[str]]:
    """Yield the sentences, or lines of stdin: many at a time, but each at once as it is typed."""
    if sentences:
        yield sentences
        return
    typed = sys.stdin.isatty()
    if typed:
        typer.echo("Type a sentence and press return; Ctrl-D ends.", err=True)
    stdin: Any = sys.stdin
    stdin.reconfigure(encoding="utf-8-sig", errors="strict", newline="\n")
    lines = (line.rstrip("\r\n") for line in stdin)
    try:
        while chunk := list(islice(lines, 1 if typed else _AT_A_TIME)):
            yield chunk
    except UnicodeDecodeError as error:
        raise ValueError(
            "What comes from stdin is not UTF-8. Convert it: iconv -f LATIN1 -t UTF-8."
        ) from error


def translate(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A save directory (its best checkpoint, else its last), or a file."
        ),
    ],
    sentences: Annotated[
        Optional[list[str]],
        typer.Argument(
            metavar="[SENTENCE]...",
            help="Raw text; behind `--` where a sentence may begin with a dash.",
            show_default="lines of stdin",
        ),
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

    They are tokenised and split as the run's data were (DATA-BIN/pieces.json), translated as by
    `rbn generate`, and put together for people; an empty line stays one.
    """
    from rbn_fairseq.report.runs import name_runs

    files = [sentence for sentence in sentences or [] if os.path.exists(sentence)]
    if files:
        raise ValueError(
            f"SENTENCE `{files[0]}` is a file or a directory. Give another run to --beside, a file "
            "of sentences to stdin."
        )
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
        outputs = {}
        for name, translator in translators.items():
            outputs[name], unknown = translator.translate_lines(lines, beam=beam, lenpen=lenpen)
            for number in unknown:
                typer.echo(f"{name} knows no piece of `{lines[number]}`.", err=True)
        for number, line in enumerate(lines):
            if len(translators) == 1:
                typer.echo(outputs[next(iter(outputs))][number])
            else:
                typer.echo(line)
                for name, translations in outputs.items():
                    typer.echo(f"  {name:{width}}  {translations[number]}".rstrip())
