"""Training Inference Discrepancy (paper, Definition 1)."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from rbn_fairseq.diagnostics.collect import LayerMoments, collect_moments
from rbn_fairseq.diagnostics.population import population

__all__ = ["TID", "TINY", "average_tid", "measure_tid", "tid", "tid_error"]

TINY = 1e-12  # the paper's "small positive constant" in the denominator; its value is not given


class TID(NamedTuple):
    """Mean TID and Variance TID (paper, Eq. 5), as fractions: 0.01 is 1 %."""

    mean: float
    var: float


def _distances(moments: LayerMoments, estimate: str) -> tuple[Tensor, Tensor]:
    """Return each batch's distance to the population in mean and in standard deviation."""
    mean, var = population(moments, estimate)
    std = var.sqrt()
    scale = std.norm() + TINY
    return (
        (moments.mean - mean).norm(dim=1) / scale,
        (moments.var.sqrt() - std).norm(dim=1) / scale,
    )


def tid(moments: LayerMoments, estimate: str = "mean-of-batches") -> TID:
    """Compute a layer's TID over its batches, each batch counting the same.

    ``Mean TID = E ||mu_B - mu|| / ||sigma||``, ``Variance TID = E ||sigma_B - sigma|| / ||sigma||``
    (paper, Eq. 5; sigma is a standard deviation). ``estimate`` names the population, see
    :func:`~rbn_fairseq.diagnostics.population`.
    """
    return TID(*(distance.mean().item() for distance in _distances(moments, estimate)))


def tid_error(moments: LayerMoments, total: int, estimate: str = "mean-of-batches") -> TID:
    """Compute the standard error of :func:`tid` from a sample of ``total`` batches.

    That of a mean of draws without replacement: ``s / sqrt(m) * sqrt(1 - m / total)`` for m
    measured batches; 0 where all were measured, NaN for one of several. The population's own
    error, of relative size 1/(2m), is not in it.
    """
    used = len(moments.count)
    if used >= total:
        return TID(0.0, 0.0)
    factor = math.sqrt((1 - used / total) / used)
    return TID(*(factor * distance.std().item() for distance in _distances(moments, estimate)))


def average_tid(layers: Mapping[str, TID]) -> TID:
    """Return the average over layers (paper, Figure 4)."""
    return TID(*(sum(values) / len(layers) for values in zip(*layers.values(), strict=True)))


def measure_tid(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Callable[[nn.Module, Any], Any] = lambda model, batch: model(batch),
    dropout: bool = False,
    estimate: str = "mean-of-batches",
) -> dict[str, TID]:
    """Measure the TID of every batch norm of a model, by layer name, in one pass over batches.

    For any torch model: this package's batch norms and torch's own are found alike. The model is
    left as it was.

    Args:
        model: the model.
        batches: batches composed as in training; what ``forward`` takes.
        forward: runs the model on a batch; without it ``model(batch)``.
        dropout: leave dropout on.
        estimate: the population, see :func:`~rbn_fairseq.diagnostics.population`.
    """
    layers = collect_moments(model, batches, forward, dropout)
    return {name: tid(moments, estimate) for name, moments in layers.items()}
