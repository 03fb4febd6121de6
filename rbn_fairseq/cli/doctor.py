"""The verb that checks an installation, data and a checkpoint."""

import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Optional

import typer

from rbn_fairseq.cli.findings import Findings
from rbn_fairseq.cli.options import STDOUT, Json, Overwrite, UserDir, check_json, write_json

__all__ = ["doctor"]

_FAIRSEQ = "0.12.3"
_TORCH = (2, 11)


def _version(distribution: str) -> Optional[str]:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _check_installation(findings: Findings) -> bool:
    import torch

    python = platform.python_version()
    if sys.version_info[:2] in ((3, 11), (3, 12)):
        findings.good(f"Python {python}")
    else:
        findings.bad(f"Python {python}: this plugin is made for 3.11 and 3.12.")
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= _TORCH:
        findings.good(f"torch {torch.__version__}")
    else:
        least = ".".join(map(str, _TORCH))
        findings.bad(f"torch {torch.__version__} is too old: pip install 'torch>={least}'.")

    ours, other = _version("ve-fairseq"), _version("fairseq")
    if other is not None and ours is not None:
        findings.bad(
            f"both `fairseq` {other} and `ve-fairseq` {ours} are installed and overwrite each "
            "other's files: pip uninstall -y fairseq ve-fairseq && pip install "
            f"ve-fairseq=={_FAIRSEQ}."
        )
    elif ours is None:
        have = f"`fairseq` {other} is installed instead" if other else "it is not installed"
        findings.bad(
            f"fairseq must come from the distribution ve-fairseq=={_FAIRSEQ}, but {have}: "
            f"pip uninstall -y fairseq; pip install ve-fairseq=={_FAIRSEQ}."
        )
        return False
    elif ours != _FAIRSEQ:
        findings.note(f"ve-fairseq {ours}; tested with {_FAIRSEQ}.")
    else:
        findings.good(f"fairseq (ve-fairseq) {ours}")
    try:
        import fairseq  # noqa: F401
    except Exception as error:
        findings.bad(
            f"fairseq is installed but cannot be imported ({error}): pip install "
            f"--force-reinstall --no-deps ve-fairseq=={_FAIRSEQ}."
        )
        return False
    for name, wanted in (("hydra-core", "1.3."), ("omegaconf", "2.3."), ("sacrebleu", "")):
        have = _version(name)
        if have is None or not have.startswith(wanted):
            findings.bad(f"{name} {have or 'is missing'}: pip install '{name}=={wanted or '2.'}*'.")
        else:
            findings.good(f"{name} {have}")

    if torch.cuda.is_available():
        findings.good(f"device: {torch.cuda.get_device_name()}")
    else:
        findings.good(f"device: CPU, {torch.get_num_threads()} threads (no GPU)")
    return True


def _check_registration(findings: Findings) -> None:
    from fairseq.criterions import CRITERION_REGISTRY
    from fairseq.models import MODEL_REGISTRY
    from fairseq.tasks import TASK_REGISTRY

    wanted = {
        "model rbn_transformer": "rbn_transformer" in MODEL_REGISTRY,
        "criterion label_smoothed_cross_entropy_rbn": "label_smoothed_cross_entropy_rbn"
        in CRITERION_REGISTRY,
        "task translation_rbn": "translation_rbn" in TASK_REGISTRY,
    }
    missing = [name for name, there in wanted.items() if not there]
    if missing:
        findings.bad(f"fairseq does not know {', '.join(missing)}: reinstall this package.")
    else:
        findings.good("fairseq knows " + ", ".join(wanted))


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
    check_json(json, overwrite=overwrite)
    findings = Findings(to_stderr=json == STDOUT)
    if _check_installation(findings):
        _check_registration(findings)
        state = None
        if checkpoint is not None:
            from rbn_fairseq.cli.inspection import check_checkpoint

            state = check_checkpoint(findings, checkpoint)
        if data is not None:
            from rbn_fairseq.cli.inspection import check_data_directory

            check_data_directory(findings, data, state)
    write_json(json, findings.records)
    if findings.problems:
        raise typer.Exit(1)
