"""Batch statistics of every batch norm of a model, over many batches."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rbn_fairseq.norms import BatchNorm, freeze_statistics, record_gaps

__all__ = ["LayerMoments", "batch_norms", "collect_moments"]


@dataclass(frozen=True)
class LayerMoments:
    """Batch statistics of one layer, in fp64 on the CPU.

    Attributes:
        mean: ``(batches, C)``.
        var: ``(batches, C)``, biased.
        count: ``(batches,)``, real tokens.
    """

    mean: Tensor
    var: Tensor
    count: Tensor


def batch_norms(model: nn.Module) -> dict[str, BatchNorm]:
    """Return the batch norms of a model by name, in the order of its modules."""
    return {name: part for name, part in model.named_modules() if isinstance(part, BatchNorm)}


@contextmanager
def _measuring(model: nn.Module, dropout: bool) -> Iterator[None]:
    """Let batch norms use batch statistics without moving anything; restore modes and RNG."""
    modes = {module: module.training for module in model.modules()}
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    try:
        model.train(dropout)
        for norm in batch_norms(model).values():
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
) -> dict[str, LayerMoments]:
    """Run ``forward(model, batch)`` over batches and return each layer's batch statistics.

    Every batch norm normalises with batch statistics, as in training (paper, Eq. 4), so that
    nothing here depends on the population statistics: one pass serves to estimate them and to
    measure against them. Modes, torch's random number generators and running statistics are left as
    they were. Memory: 16 bytes per batch, layer and channel.

    Args:
        model: any module with batch norms.
        batches: what ``forward`` takes.
        forward: runs the model on a batch.
        dropout: leave dropout (and all else that training mode means) on.

    Returns:
        Moments by layer name, in the order of the model's modules. Batches in which a layer saw
        no real token, or did not run, are left out of that layer.
    """
    names = {norm: name for name, norm in batch_norms(model).items()}
    seen: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {name: [] for name in names.values()}
    with _measuring(model, dropout):
        for batch in batches:
            with record_gaps() as gaps:
                forward(model, batch)
            for gap in gaps:
                stats = (gap.batch_mean, gap.batch_var, gap.count)
                seen[names[gap.norm]].append(tuple(s.cpu() for s in stats))  # type: ignore[arg-type]
    layers = {}
    for name, rows in seen.items():
        kept = [row for row in rows if row[2] > 0]
        if kept:
            mean, var, count = (torch.stack(column).double() for column in zip(*kept, strict=True))
            layers[name] = LayerMoments(mean, var, count)
    return layers
