"""Options that the verbs of `rbn bench` share, and their checks."""

from pathlib import Path
from typing import Annotated, Optional

import torch
import typer

__all__ = [
    "Device",
    "Json",
    "Rounds",
    "Threads",
    "check_figure",
    "check_json",
    "choose_device",
    "numbers",
]

Device = Annotated[
    Optional[str],
    typer.Option(help="`cpu` or `cuda`. (default: cuda if there is one)", show_default=False),
]
Json = Annotated[
    Optional[Path],
    typer.Option(
        "--json",
        metavar="FILE",
        help="Also write the rows as a JSON list; `-` writes them to stdout, the table to stderr.",
    ),
]
Rounds = Annotated[
    int, typer.Option(min=1, help="Turns of each that are counted; one more warms up.")
]
Threads = Annotated[int, typer.Option(min=1, help="Of torch, on the CPU.")]


def choose_device(device: Optional[str]) -> str:
    """Return the device to measure on.

    Raises:
        ValueError: if it is unknown or not there.
    """
    there = torch.cuda.is_available()
    if device is None:
        return "cuda" if there else "cpu"
    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device must be `cpu` or `cuda`, but is `{device}`.")
    if device == "cuda" and not there:
        raise ValueError("--device cuda: torch finds no such GPU here. Leave it out, or take cpu.")
    return device


def numbers(option: str, text: str, least: int = 1) -> list[int]:
    """Read whole numbers joined by commas.

    Raises:
        ValueError: if one is no whole number, or too small.
    """
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [least - 1]
    if min(found) < least:
        raise ValueError(
            f"{option} must be whole numbers from {least} on, joined by commas, but is `{text}`."
        )
    return found


def check_json(path: Optional[Path]) -> None:
    """Refuse, before any work, a file in no directory.

    Raises:
        ValueError: naming the directory.
    """
    if path is not None and not path.parent.is_dir():
        raise ValueError(f"--json: the directory `{path.parent}` does not exist.")


def check_figure(path: Optional[Path]) -> None:
    """Refuse, before any work, a figure in no directory or of an unknown format.

    Raises:
        ValueError: naming what is wrong with it.
    """
    if path is None:
        return
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--figure must end with .png, .svg or .pdf, but is `{path}`.")
    if not path.parent.is_dir():
        raise ValueError(f"--figure: the directory `{path.parent}` does not exist.")
