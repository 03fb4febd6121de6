"""Options and output that several verbs have in common."""

import argparse
import json
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, TypeVar

import typer
from typer.core import TyperGroup

import rbn_fairseq
from rbn_fairseq.cli.errors import user_directories
from rbn_fairseq.writing import check_output, write_whole

if TYPE_CHECKING:
    from rich.console import Console

_T = TypeVar("_T")

STDOUT = Path("-")
_WIDTH = 160  # of a table that does not go to a terminal, so that no name in it is cut


class Verbs(TyperGroup):
    """Verbs that a help text lists with the first sentence of each, uncut."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for verb in self.commands.values():
            verb.short_help = (verb.help or "").partition("\n\n")[0]


def _import_user_dir(directory: Optional[Path]) -> Optional[Path]:
    """Import a directory of the user's, as fairseq's ``--user-dir`` does.

    Returns:
        The directory without links in it, by which fairseq, too, knows this package.

    Raises:
        ValueError: if it is no package.
    """
    if directory is None:
        return None
    directory = directory.resolve()
    if directory == Path(rbn_fairseq.__file__).resolve().parent:
        return directory
    if not (directory / "__init__.py").is_file():
        raise ValueError(
            f"--user-dir: there is no package in `{directory}` (no __init__.py). Name the "
            "directory of your own code; this plugin is loaded anyway."
        )
    rbn_fairseq.register()
    from fairseq.utils import import_user_module

    user_directories.append(directory)
    import_user_module(argparse.Namespace(user_dir=str(directory)))
    return directory


Checkpoint = Annotated[Path, typer.Argument(help="Checkpoint file.")]
Checkpoints = Annotated[list[Path], typer.Argument(help="A save directory, or checkpoint files.")]
Data = Annotated[
    Optional[Path],
    typer.Option(metavar="DATA-BIN", help="Data directory.", show_default="the checkpoint's own"),
]
Batches = Annotated[
    int, typer.Option(min=0, help="Number of training batches, a seeded uniform sample; 0 = all.")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of that sample.")]
Dropout = Annotated[
    bool,
    typer.Option(
        "--dropout",
        help="Keep dropout on while the statistics are estimated, as in training, where running "
        "ones are gathered. `rbn cost` tells which is better: recalibrated-dropout or "
        "recalibrated.",
    ),
]
Estimate = Annotated[
    Literal["mean-of-batches", "pooled"],
    typer.Option(
        "--population",
        metavar="ESTIMATE",
        help="Population estimate: `mean-of-batches` (of batch means and variances) or `pooled` "
        "(over all tokens).",
    ),
]
Population = Annotated[
    Literal["mean-of-batches", "pooled", "running"],
    typer.Option(
        metavar="ESTIMATE",
        help="What batches are compared with: `mean-of-batches` (of batch means and variances), "
        "`pooled` (over all tokens) or `running` (the statistics in the checkpoint).",
    ),
]
LengthBins = Annotated[
    Optional[int],
    typer.Option(
        min=1,
        help="Estimate them for each of so many bins of sentence lengths, as many training "
        "sentences in each, whatever the checkpoint was trained with; 1 = for all sentences "
        "together.",
        show_default="as the checkpoint has it",
    ),
]
Device = Annotated[
    Optional[Literal["cpu", "cuda"]],
    typer.Option(help="Where to compute.", show_default="cuda if there is a GPU"),
]
Output = Annotated[Path, typer.Option(help="File to write.")]
Json = Annotated[
    Optional[Path],
    typer.Option(
        "--json",
        metavar="FILE",
        help="Also write the values as JSON; of several a list, or a line each where FILE ends "
        "with .jsonl. `-` writes to stdout, and the table to stderr.",
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace what is there already where output goes.")
]
UserDir = Annotated[
    Optional[Path],
    typer.Option(
        metavar="DIR",
        help="Load your own code too, as fairseq's --user-dir does: norms, models, tasks.",
        callback=_import_user_dir,
        is_eager=True,
    ),
]


def choose_device(device: Optional[str]) -> str:
    """Return the device to compute on."""
    import torch

    return device or ("cuda" if torch.cuda.is_available() else "cpu")


def choose_checkpoints(paths: list[Path]) -> list[tuple[str, Path]]:
    """Return checkpoint files with the labels that tables show: epochs, or names of files.

    Of a directory those of epochs, and checkpoint_last.pt where it has more updates than they.

    Raises:
        ValueError: if a directory has none of these.
    """
    from rbn_fairseq.checkpoints.files import epoch_checkpoints, read_checkpoint, updates_of

    if len(paths) > 1 or not paths[0].is_dir():
        distinct = len({path.name for path in paths}) == len(paths)
        return [(path.name if distinct else str(path), path) for path in paths]

    def updates(path: Path) -> int:
        return updates_of(read_checkpoint(path, mmap=True))

    chosen = [(str(epoch), path) for epoch, path in epoch_checkpoints(paths[0]).items()]
    last = paths[0] / "checkpoint_last.pt"
    if last.is_file() and (not chosen or updates(last) > updates(chosen[-1][1])):
        chosen.append(("last", last))
    if not chosen:
        raise ValueError(f"`{paths[0]}` has no checkpoint of a training: name a file.")
    return chosen


def progress(items: Sequence[_T], label: str) -> Iterable[_T]:
    """Iterate with a progress bar on stderr."""
    from rich.console import Console
    from rich.progress import track

    shown = Console(stderr=True)
    return track(items, label, console=shown, transient=True, disable=not shown.is_terminal)


def console(path: Optional[Path] = None) -> "Console":
    """Return where tables are printed: stdout, unless JSON goes there (``path`` of --json)."""
    from rich.console import Console

    output = Console(stderr=path == STDOUT)
    if not output.is_terminal:
        output.width = _WIDTH
    return output


def check_json(path: Optional[Path], inputs: Sequence[Path] = (), overwrite: bool = False) -> None:
    """Refuse, before any work, a file that --json may not write.

    Raises:
        ValueError: see :func:`rbn_fairseq.writing.check_output`.
    """
    if path is not None and path != STDOUT:
        check_output("--json", path, inputs, overwrite)


def write_json(
    path: Optional[Path], values: Sequence[Mapping[str, Any]] | Mapping[str, Any]
) -> None:
    """Write the values to the file of --json, if given: a list, or lines for .jsonl."""
    if path is None:
        return
    if path.suffix == ".jsonl" and not isinstance(values, Mapping):
        text = "".join(json.dumps(value) + "\n" for value in values)
    else:
        text = json.dumps(values, indent=1) + "\n"
    if path == STDOUT:
        typer.echo(text, nl=False)
    else:
        write_whole(path, text)


@contextmanager
def stoppable() -> Iterator[None]:
    """Within it SIGTERM stops a verb, and what it started, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped; the same command does what is left")
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
