"""Options that several verbs share, and their checks."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional, TypeVar

import typer
from rich.console import Console
from rich.progress import track

from rbn_fairseq.checkpoints.files import epoch_checkpoints
from rbn_fairseq.cli.errors import plain_errors
from rbn_fairseq.files import write_whole

__all__ = [
    "Batches",
    "Checkpoints",
    "Data",
    "Epochs",
    "Estimate",
    "LengthEdges",
    "Output",
    "Population",
    "Seed",
    "check_output",
    "check_population",
    "choose_epochs",
    "progress",
    "write_records",
]

_T = TypeVar("_T")

Batches = Annotated[
    int, typer.Option(min=0, help="Number of training batches, a seeded uniform sample; 0 = all.")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of that sample.")]
Estimate = Annotated[
    str,
    typer.Option(
        "--population",
        help="Population estimate: `mean-of-batches` (of batch means and variances) or `pooled` "
        "(over all tokens).",
    ),
]
Population = Annotated[
    str,
    typer.Option(
        help="What batches are compared with: `mean-of-batches` (of batch means and variances), "
        "`pooled` (over all tokens), `ema` (a moving average over the batches) or `running` (the "
        "statistics in the checkpoint)."
    ),
]
LengthEdges = Annotated[
    str,
    typer.Option(
        help="Where bins of lengths end: `quantiles`, as many training sentences in each; "
        "`tokens`, as many of their tokens; `geometric`, as wide on a logarithmic scale; or the "
        "edges between them, 10:20:40."
    ),
]
Checkpoints = Annotated[list[Path], typer.Argument(help="A save directory, or checkpoint files.")]
Data = Annotated[
    Optional[Path],
    typer.Option(metavar="DATA-BIN", help="Data directory (default: the checkpoint's own)"),
]
Epochs = Annotated[
    Optional[str], typer.Option(help="With a directory: an epoch or a range (3-10).")
]
Output = Annotated[Optional[Path], typer.Option(help="Also write the values as JSON lines.")]


def check_population(population: str, known: Sequence[str]) -> None:
    """Refuse an unknown estimate.

    Raises:
        ValueError: naming it and the known ones.
    """
    if population not in known:
        raise ValueError(
            f"--population: unknown estimate `{population}`. Known: {', '.join(known)}."
        )


def choose_epochs(paths: list[Path], epochs: Optional[str]) -> list[tuple[str, Path]]:
    """Return checkpoint files with the labels that tables show: epochs, or names of files.

    Raises:
        ValueError: if there are none of those asked for, or --epochs does not fit.
    """
    if len(paths) > 1 or not paths[0].is_dir():
        if epochs is not None:
            raise ValueError("--epochs goes with one directory, not with checkpoint files.")
        distinct = len({path.name for path in paths}) == len(paths)
        return [(path.name if distinct else str(path), path) for path in paths]
    found = epoch_checkpoints(paths[0])
    if not found:
        raise ValueError(f"`{paths[0]}` has no epoch checkpoints (checkpoint1.pt and so on).")
    if epochs is None:
        return [(str(epoch), path) for epoch, path in found.items()]
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", epochs)
    if match is None:
        raise ValueError(f"--epochs must be a number or a range such as 3-10, but is `{epochs}`.")
    wanted = range(int(match[1]), int(match[2] or match[1]) + 1)
    missing = [str(epoch) for epoch in wanted if epoch not in found]
    if missing or not wanted:
        have = ", ".join(map(str, found))
        raise ValueError(
            f"--epochs {epochs}: `{paths[0]}` has no checkpoint of epoch "
            f"{', '.join(missing) or epochs}; it has {have}."
        )
    return [(str(epoch), found[epoch]) for epoch in wanted]


def progress(items: Sequence[_T], label: str) -> Iterable[_T]:
    """Iterate with a progress bar on stderr."""
    return track(items, label, console=Console(stderr=True), transient=True)


def check_output(output: Optional[Path]) -> None:
    """Refuse, before any work, a file in no directory.

    Raises:
        ValueError: naming the directory.
    """
    if output is not None and not output.parent.is_dir():
        raise ValueError(f"--output: the directory `{output.parent}` does not exist.")


def write_records(output: Optional[Path], records: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines, if asked for, through a temporary file."""
    if output is None:
        return
    with plain_errors():
        write_whole(output, "".join(json.dumps(record) + "\n" for record in records))
