"""The verb that checks an installation, data and a checkpoint."""

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path
from typing import Annotated, Optional

import typer
from packaging.requirements import Requirement

import rbn_fairseq
from rbn_fairseq.cli.options import UserDir
from rbn_fairseq.version import installed

_FAIRSEQ = "0.12.3"
_COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}


def _check_installation() -> Iterator[tuple[str, str]]:
    import torch

    if not installed("rbn-fairseq"):
        yield "problem", "rbn-fairseq is not installed: `pip install .` in its clone."
        return
    own, good = metadata("rbn-fairseq"), []
    required = [f"Python{own['Requires-Python']}", *own.get_all("Requires-Dist", [])]
    for wanted in map(Requirement, required):
        if wanted.marker is not None:  # of an extra
            continue
        name = wanted.name
        version = platform.python_version() if name == "Python" else installed(name)
        if version and wanted.specifier.contains(version, prereleases=True):
            good.append(f"{name} {version}")
        else:
            yield "problem", f"{name} {version or 'is missing'}: install '{wanted}'."
    yield "ok", ", ".join(good)
    if installed("fairseq"):
        yield (
            "problem",
            "the distribution `fairseq` is installed, too, and overwrites files of `ve-fairseq`: "
            f"pip uninstall -y fairseq ve-fairseq; pip install ve-fairseq=={_FAIRSEQ}.",
        )
    if torch.cuda.is_available():
        yield "ok", f"device: {torch.cuda.get_device_name()}"
    else:
        yield "ok", f"device: CPU, {torch.get_num_threads()} threads (no GPU)"
        if shutil.which("nvidia-smi"):
            yield (
                "note",
                f"there is an NVIDIA driver, but torch {torch.__version__} finds no GPU: it is a "
                "build for CPUs, or for a newer driver (https://pytorch.org has others).",
            )


def _check_registration() -> Iterator[tuple[str, str]]:
    try:
        rbn_fairseq.register()
    except Exception as error:
        yield (
            "problem",
            f"fairseq is installed but cannot be imported ({error}): pip install "
            f"--force-reinstall --no-deps ve-fairseq=={_FAIRSEQ}.",
        )
        return
    yield "ok", "fairseq knows the plugin's models, criterions and tasks"


def _check(data: Optional[str], checkpoint: Optional[Path]) -> Iterator[tuple[str, str]]:
    yield from _check_installation()
    yield from _check_registration()
    if data is checkpoint is None:
        return
    from rbn_fairseq.cli.inspection import check_checkpoint, check_data_directory

    state = None
    if checkpoint is not None:
        state = yield from check_checkpoint(checkpoint)
    first = None
    for directory in data.split(os.pathsep) if data is not None else ():
        first = yield from check_data_directory(Path(directory), state, first)


def doctor(
    data: Annotated[
        Optional[str],
        typer.Option(metavar="DATA-BIN", help="Also check this data directory, or several, `A:B`."),
    ] = None,
    checkpoint: Annotated[
        Optional[Path], typer.Option(help="Also check this checkpoint, running nothing of it.")
    ] = None,
    user_dir: UserDir = None,
) -> None:
    """Check versions, registration, data and checkpoint; exit status 1 if anything is wrong."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    kinds = set()
    for kind, text in _check(data, checkpoint):
        # Names out of a file may hold what a terminal would obey.
        plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
        console.print(Text.assemble((f"{kind:7}", _COLOURS[kind]), " ", plain))
        kinds.add(kind)
    if "problem" in kinds:
        raise typer.Exit(1)
