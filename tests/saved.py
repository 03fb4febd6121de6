"""What trainings save: checkpoints, read, loaded and compared."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from omegaconf import DictConfig
from torch import Tensor

from rbn_fairseq.checkpoints.files import read_checkpoint


def last(directory: Path) -> dict[str, Any]:
    """Return a save directory's last checkpoint."""
    return read_checkpoint(directory / "checkpoint_last.pt")


def load(
    path: Path, data: Path, strict: bool = True, **changes: object
) -> tuple[Any, DictConfig, Any]:
    """Return a checkpoint's model, configuration and task, by fairseq's own loading."""
    (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(path)], {"data": str(data), **changes}, strict=strict
    )
    return model, cfg, task


def training_batches(cfg: DictConfig, task: Any) -> tuple[Any, list]:
    """Return the training set and its batches of the first epoch, as training makes them."""
    task.load_dataset("train")
    dataset = task.dataset("train")
    iterator = task.get_batch_iterator(
        dataset, max_tokens=cfg.dataset.max_tokens, required_batch_size_multiple=8,
        max_positions=task.max_positions(), seed=cfg.common.seed, epoch=1,
    )  # fmt: skip
    return dataset, iterator.frozen_batches


def assert_same_weights(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """Compare state dicts; after updates by Adam, equal ones tell of equal states before."""
    assert one.keys() == other.keys() and one
    assert not [name for name in one if not torch.equal(one[name], other[name])]


def tensors(value: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a nested structure with its place."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors(item, f"{path}/{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from tensors(item, f"{path}/{index}")


def assert_same_state(one: Path, other: Path) -> None:
    """Compare weights and the optimizer's state of two directories' last checkpoints."""
    one, other = last(one), last(other)
    for part in ("model", "last_optimizer_state"):
        assert_same_weights(dict(tensors(one[part])), dict(tensors(other[part])))
