"""What verbs print: tables, and the same values as JSON."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import typer

from rbn_fairseq.cli.errors import plain_errors
from rbn_fairseq.files import check_output, write_whole

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["STDOUT", "check_json", "console", "write_json"]

STDOUT = Path("-")
_WIDTH = 160  # of a table that does not go to a terminal, so that no name in it is cut


def console(path: Optional[Path] = None) -> "Console":
    """Return where tables are printed: stdout, unless JSON goes there (``path`` of --json)."""
    from rich.console import Console

    made = Console(stderr=path == STDOUT)
    if not made.is_terminal:
        made.width = _WIDTH
    return made


def check_json(path: Optional[Path], inputs: Sequence[Path] = (), overwrite: bool = False) -> None:
    """Refuse, before any work, a file that --json may not write.

    Raises:
        ValueError: see :func:`rbn_fairseq.files.check_output`.
    """
    if path is not None and path != STDOUT:
        check_output("--json", path, inputs, overwrite)


def write_json(
    path: Optional[Path], values: Sequence[Mapping[str, Any]] | Mapping[str, Any]
) -> None:
    """Write what --json asks for, if it does: a list, or lines where the file ends with .jsonl."""
    if path is None:
        return
    if path.suffix == ".jsonl" and not isinstance(values, Mapping):
        text = "".join(json.dumps(value) + "\n" for value in values)
    else:
        text = json.dumps(values, indent=1) + "\n"
    if path == STDOUT:
        typer.echo(text, nl=False)
    else:
        with plain_errors():
            write_whole(path, text)
