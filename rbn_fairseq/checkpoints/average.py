"""Averages of a model's weights: of its checkpoints, or as its training kept one."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from rbn_fairseq.checkpoints.files import (
    drop_moving_average,
    epoch_checkpoints,
    model_settings,
    read_checkpoint,
    refuse_folded,
    updates_of,
)

__all__ = ["average_checkpoints", "choose_last", "moving_average"]

logger = logging.getLogger(__name__)

_WHERE = (".population.edges", ".population.centres")  # bins of sentence lengths are
# Options that shape norms, but for those of the training alone.
_NORMS = (
    r"norm_(?!sync$|small_init$|\w+_(momentum|warmup|r_start)$)\w+|(en|de)coder_normalize_before"
)


def choose_last(directory: Path, last: int) -> list[Path]:
    """Return the epoch checkpoints of the last epochs, oldest first.

    Warns where their updates fall: those of a later epoch are then left from another training.

    Raises:
        ValueError: if there are fewer.
    """
    if last < 1:
        raise ValueError(f"--last must be at least 1, but is {last}.")
    checkpoints = epoch_checkpoints(directory)
    if not checkpoints:
        raise ValueError(
            f"`{directory}` has no checkpoint1.pt and so on: no epoch has ended, or none was kept."
        )
    if len(checkpoints) < last:
        epochs = ", ".join(map(str, checkpoints))
        raise ValueError(
            f"--last {last} asks for {last} epoch checkpoints, but `{directory}` has "
            f"{len(checkpoints)} (epochs: {epochs}). Ask for fewer, or train with "
            f"--keep-last-epochs {last} or more."
        )
    chosen = list(checkpoints.values())[-last:]
    updates = [updates_of(read_checkpoint(path, mmap=True)) for path in chosen]
    if updates != sorted(updates):
        logger.warning(
            "the checkpoints of `%s` are not of one training, or their updates were counted anew: "
            "they have %s updates",
            directory,
            ", ".join(map(str, updates)),
        )
    return chosen


def _layout(model: dict[str, Tensor]) -> dict[str, Any]:
    """Return what models that are averaged must share: shapes, and where bins of lengths end."""
    return {
        name: value.tolist() if name.endswith(_WHERE[0]) else value.shape
        for name, value in model.items()
    }


def _settings(state: dict[str, Any]) -> dict[str, Any]:
    """Return what must be the same where two checkpoints say it: norms and dictionaries."""
    model = model_settings(state)
    words = (state.get("task_state") or {}).get("dictionaries")
    return {
        **{name: value for name, value in model.items() if re.fullmatch(_NORMS, name)},
        **({} if words is None else {"dictionaries": words}),
    }


def average_checkpoints(paths: Sequence[Path]) -> dict[str, Any]:
    """Average the floating-point entries of the models, in fp64; keep the last one's settings.

    Running statistics are averaged like weights, which is not what they should be: recalibrate
    the result (:func:`rbn_fairseq.diagnostics.recalibrate`). The optimizer's state and fairseq's
    moving average are left out.

    Raises:
        ValueError: if a file cannot be read or is folded, or the models differ in their norms,
            dictionaries or shapes.
    """
    total: dict[str, Tensor] = {}
    layout: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for path in paths:
        state = read_checkpoint(path)
        refuse_folded(path, state, "Average first, then fold the average.")
        model = state["model"]
        layout, own = layout or _layout(model), _settings(state)
        unlike = any(settings.get(name, value) != value for name, value in own.items())
        settings |= own
        if unlike or layout != _layout(model):
            raise ValueError(
                f"The checkpoints `{paths[0]}` and `{path}` hold different models: their norms, "
                "dictionaries, shapes or bins of sentence lengths differ. Average checkpoints of "
                "one run."
            )
        for name, value in model.items():
            summed = value.is_floating_point() and name in total
            wide = value.double() if value.is_floating_point() else value
            total[name] = total[name] + wide if summed else wide
    for name, value in model.items():
        if value.is_floating_point():
            model[name] = (total[name] / len(paths)).to(value.dtype)
    state.pop("last_optimizer_state", None)
    drop_moving_average(state)
    state["rbn_fairseq"] = {"averaged": [str(path) for path in paths]}
    return state


def moving_average(path: Path) -> dict[str, Any]:
    """Put the moving average that fairseq kept (``--store-ema``) in the place of the model.

    Its running statistics are averages, too: recalibrate it. The optimizer's state is left out.

    Raises:
        ValueError: if the file cannot be read or holds no moving average.
    """
    state = read_checkpoint(path)
    extra = state.get("extra_state") or {}
    if "ema" not in extra:
        raise ValueError(
            f"--ema: the checkpoint `{path}` holds no moving average of the weights. Train with "
            "--store-ema, or leave --ema out."
        )
    # Where bins of lengths end does not move: averaged, it is rounded in every update.
    fixed = {name: value for name, value in state["model"].items() if name.endswith(_WHERE)}
    state["model"] = {**extra["ema"], **fixed}
    drop_moving_average(state)
    state.pop("last_optimizer_state", None)
    state["rbn_fairseq"] = {"moving_average": str(path)}
    return state
