"""The verb that checks an installation, data and a checkpoint."""

import platform
import sys
from collections.abc import Generator, Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Optional

import typer

from rbn_fairseq.cli.options import STDOUT, Json, Overwrite, UserDir, check_json, write_json

__all__ = ["doctor"]

_FAIRSEQ = "0.12.3"
_TORCH = (2, 11)
_COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}


def _version(distribution: str) -> Optional[str]:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _check_installation() -> Iterator[tuple[str, str]]:
    import torch

    python = platform.python_version()
    if sys.version_info[:2] in ((3, 11), (3, 12)):
        yield "ok", f"Python {python}"
    else:
        yield "problem", f"Python {python}: this plugin is made for 3.11 and 3.12."
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= _TORCH:
        yield "ok", f"torch {torch.__version__}"
    else:
        least = ".".join(map(str, _TORCH))
        yield "problem", f"torch {torch.__version__} is too old: pip install 'torch>={least}'."
    ours, other = _version("ve-fairseq"), _version("fairseq")
    if other is not None and ours is not None:
        yield (
            "problem",
            f"both `fairseq` {other} and `ve-fairseq` {ours} are installed and overwrite each "
            "other's files: pip uninstall -y fairseq ve-fairseq && pip install "
            f"ve-fairseq=={_FAIRSEQ}.",
        )
    elif ours is None:
        installed = f"`fairseq` {other} is installed instead" if other else "it is not installed"
        yield (
            "problem",
            f"fairseq must come from the distribution ve-fairseq=={_FAIRSEQ}, but {installed}: "
            f"pip uninstall -y fairseq; pip install ve-fairseq=={_FAIRSEQ}.",
        )
    elif ours != _FAIRSEQ:
        yield "note", f"ve-fairseq {ours}; tested with {_FAIRSEQ}."
    else:
        yield "ok", f"fairseq (ve-fairseq) {ours}"
    for name, wanted in (("hydra-core", "1.3."), ("omegaconf", "2.3."), ("sacrebleu", "")):
        version = _version(name)
        if version is None or not version.startswith(wanted):
            yield (
                "problem",
                f"{name} {version or 'is missing'}: pip install '{name}=={wanted or '2.'}*'.",
            )
        else:
            yield "ok", f"{name} {version}"
    if torch.cuda.is_available():
        yield "ok", f"device: {torch.cuda.get_device_name()}"
    else:
        yield "ok", f"device: CPU, {torch.get_num_threads()} threads (no GPU)"


def _check_registration() -> Generator[tuple[str, str], None, bool]:
    """Yield findings; return whether fairseq can be imported."""
    try:
        from fairseq.criterions import CRITERION_REGISTRY
        from fairseq.models import MODEL_REGISTRY
        from fairseq.tasks import TASK_REGISTRY
    except Exception as error:
        yield (
            "problem",
            f"fairseq is installed but cannot be imported ({error}): pip install "
            f"--force-reinstall --no-deps ve-fairseq=={_FAIRSEQ}.",
        )
        return False
    wanted = {
        "model rbn_transformer": MODEL_REGISTRY,
        "criterion label_smoothed_cross_entropy_rbn": CRITERION_REGISTRY,
        "task translation_rbn": TASK_REGISTRY,
    }
    missing = [name for name, registry in wanted.items() if name.split()[1] not in registry]
    if missing:
        yield "problem", f"fairseq does not know {', '.join(missing)}: reinstall this package."
    else:
        yield "ok", "fairseq knows " + ", ".join(wanted)
    return True


def _check(data: Optional[Path], checkpoint: Optional[Path]) -> Iterator[tuple[str, str]]:
    yield from _check_installation()
    if not (yield from _check_registration()) or data is checkpoint is None:
        return
    from rbn_fairseq.cli.inspection import check_checkpoint, check_data_directory

    state = None
    if checkpoint is not None:
        state = yield from check_checkpoint(checkpoint)
    if data is not None:
        yield from check_data_directory(data, state)


def doctor(
    data: Annotated[
        Optional[Path], typer.Option(metavar="DATA-BIN", help="Also check this data directory.")
    ] = None,
    checkpoint: Annotated[
        Optional[Path], typer.Option(help="Also check this checkpoint, running nothing of it.")
    ] = None,
    json: Json = None,
    overwrite: Overwrite = False,
    user_dir: UserDir = None,
) -> None:
    """Check versions, registration, data and checkpoint; exit status 1 if anything is wrong."""
    from rich.console import Console
    from rich.text import Text

    check_json(json, overwrite=overwrite)
    console = Console(highlight=False, soft_wrap=True, stderr=json == STDOUT)
    findings = []
    for kind, text in _check(data, checkpoint):
        # Names out of a file may hold what a terminal would obey.
        plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
        console.print(Text.assemble((f"{kind:7}", _COLOURS[kind]), " ", plain))
        findings.append({"finding": kind, "text": plain})
    write_json(json, findings)
    if any(finding["finding"] == "problem" for finding in findings):
        raise typer.Exit(1)
