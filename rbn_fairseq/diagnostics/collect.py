"""Batch statistics of a model's norms, over many batches."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor, nn

from rbn_fairseq.norms import BatchNorm, PopulationNorm, freeze_statistics, record_moments

__all__ = ["LayerMoments", "batch_norms", "collect_moments", "population_norms"]


@dataclass(frozen=True)
class LayerMoments:
    """Batch statistics of one layer, in fp64 on the CPU.

    Attributes:
        mean: ``(batches, C)``; 0 for a norm that divides by a quadratic mean.
        var: ``(batches, C)``, biased; there the mean of squares.
        count: ``(batches,)``, real tokens.
    """

    mean: Tensor
    var: Tensor
    count: Tensor


def batch_norms(model: nn.Module) -> dict[str, BatchNorm]:
    """Return the batch norms of a model by name, in the order of its modules."""
    return {name: part for name, part in model.named_modules() if isinstance(part, BatchNorm)}


def population_norms(model: nn.Module) -> dict[str, PopulationNorm]:
    """Return the norms with running statistics by name, in the order of the model's modules."""
    return {name: part for name, part in model.named_modules() if isinstance(part, PopulationNorm)}


@contextmanager
def _measuring(model: nn.Module, dropout: bool) -> Iterator[None]:
    """Let norms use batch statistics without moving anything; restore modes and RNG."""
    modes = {module: module.training for module in model.modules()}
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    try:
        model.train(dropout)
        for norm in population_norms(model).values():
            norm.train()
        with torch.random.fork_rng(devices), freeze_statistics(), torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def collect_moments(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Callable[[nn.Module, Any], Any],
    dropout: bool = False,
    norms: Optional[Mapping[str, PopulationNorm]] = None,
) -> dict[str, LayerMoments]:
    """Run ``forward(model, batch)`` over batches and return each layer's batch statistics.

    All norms normalise with batch statistics, as in training (paper, Eq. 4), so that nothing
    here depends on the population statistics: one pass serves to estimate them and to measure
    against them. Modes, torch's random number generators and running statistics are left as
    they were. Memory: 16 bytes per batch, layer and channel.

    Args:
        model: any module with batch norms.
        batches: what ``forward`` takes.
        forward: runs the model on a batch.
        dropout: leave dropout (and all else that training mode means) on.
        norms: by name, those to report; ``None`` = all batch norms.

    Returns:
        Moments by layer name, in the order of the model's modules. Batches in which a layer saw
        no real token, or did not run, are left out of that layer.
    """
    norms = batch_norms(model) if norms is None else norms
    names = {norm: name for name, norm in norms.items()}
    seen: dict[str, list[tuple[Tensor, ...]]] = {name: [] for name in norms}
    with _measuring(model, dropout):
        for batch in batches:
            with record_moments() as records:
                forward(model, batch)
            for norm, moments in records:
                if norm in names:
                    seen[names[norm]].append(tuple(part.cpu() for part in moments))
    layers = {}
    for name, rows in seen.items():
        kept = [row for row in rows if row[2] > 0]
        if kept:
            mean, var, count = (torch.stack(column).double() for column in zip(*kept, strict=True))
            layers[name] = LayerMoments(mean, var, count)
    return layers
