"""A trained model with its task and training batches, from a checkpoint."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, utils
from torch import nn

from rbn_fairseq.checkpoints.files import read_checkpoint
from rbn_fairseq.norms import has_population_norm

__all__ = ["Session", "open_session"]


@dataclass(frozen=True)
class Session:
    """What measuring on a checkpoint takes.

    Attributes:
        model: the model, in evaluation mode, on the GPU if there is one.
        dataset: its training data.
        iterator: fairseq's iterator over them, with the batches that the model was trained on.
        update: number of updates so far.
    """

    model: nn.Module
    dataset: Any
    iterator: Any
    update: int


def open_session(path: Path, data: str | None = None) -> Session:
    """Load a checkpoint of a model with running statistics, and its training data.

    Args:
        path: the checkpoint.
        data: data directory; ``None`` = the one that the checkpoint was trained on.

    Raises:
        ValueError: if the file cannot be used, was made without this plugin, has no norm with
            running statistics, or does not fit the data.
    """
    from rbn_fairseq.tasks.training import check_data

    state = read_checkpoint(path)
    cfg = state.get("cfg") or {}
    name = str((cfg.get("model") or {}).get("_name"))
    if not name.startswith("rbn_"):
        raise ValueError(
            f"The checkpoint `{path}` was made without this plugin: its model is `{name}`, not an "
            "`rbn_transformer`."
        )
    data = data or cfg["task"]["data"]
    check_data(data)
    overrides = {"data": os.path.abspath(data)}
    (model,), full, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], overrides)
    if not has_population_norm(model):
        raise ValueError(
            f"The model of `{path}` has no norm with running statistics (its plan is "
            f"`--norm-encoder {cfg['model'].get('norm_encoder', 'layer')}`): there is nothing to "
            "measure or to estimate."
        )
    subset = full.dataset.train_subset
    task.load_dataset(subset, combine=True, epoch=1)
    iterator = task.get_batch_iterator(
        dataset=task.dataset(subset),
        max_tokens=full.dataset.max_tokens,
        max_sentences=full.dataset.batch_size,
        max_positions=utils.resolve_max_positions(
            task.max_positions(), model.max_positions(), full.dataset.max_tokens
        ),
        ignore_invalid_inputs=True,
        required_batch_size_multiple=full.dataset.required_batch_size_multiple,
        seed=full.common.seed,
        epoch=1,
    )
    model.eval()
    if torch.cuda.is_available():
        model.cuda()
    history = state.get("optimizer_history") or [{}]
    return Session(model, task.dataset(subset), iterator, int(history[-1].get("num_updates", 0)))
