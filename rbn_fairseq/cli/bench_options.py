"""Options that the verbs of `rbn bench` share, and their checks."""

from pathlib import Path
from typing import Annotated, Optional

import typer

from rbn_fairseq.files import check_output

__all__ = ["Rounds", "Threads", "check_figure", "numbers"]

Rounds = Annotated[
    int, typer.Option(min=1, help="Turns of each that are counted; one more warms up.")
]
Threads = Annotated[int, typer.Option(min=1, help="Of torch, on the CPU.")]


def numbers(option: str, text: str) -> list[int]:
    """Read whole numbers from 1 on, joined by commas.

    Raises:
        ValueError: if one is no whole number, or too small.
    """
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise ValueError(
            f"{option} must be whole numbers from 1 on, joined by commas, but is `{text}`."
        )
    return found


def check_figure(path: Optional[Path], overwrite: bool) -> None:
    """Refuse, before any work, a figure that cannot be drawn there, or of an unknown format.

    Raises:
        ValueError: naming what is wrong with it.
    """
    if path is None:
        return
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--figure must end with .png, .svg or .pdf, but is `{path}`.")
    check_output("--figure", path, overwrite=overwrite)
