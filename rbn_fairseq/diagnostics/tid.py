"""Training Inference Discrepancy (paper, Definition 1) and related measures."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import call
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn

from rbn_fairseq.diagnostics.collect import LayerMoments, collect_moments
from rbn_fairseq.diagnostics.estimates import ESTIMATES, population

__all__ = [
    "TID", "average_tid", "conditional_tid", "deviation", "distances", "independent_tid",
    "measure_tid", "tid", "tid_error",
]  # fmt: skip

TINY = 1e-12  # the paper's "small positive constant" in the denominator; its value is not given


class TID(NamedTuple):
    """Mean TID and Variance TID (paper, Eq. 5), as fractions: 0.01 is 1 %."""

    mean: float
    var: float


def distances(
    mean: Tensor, var: Tensor, population: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Compute ``||mu_B - mu|| / ||sigma||`` and ``||sigma_B - sigma|| / ||sigma||``.

    Of batches, as Eq. 5 has them; of running statistics it is their lag.

    Args:
        mean: ``(..., C)``.
        var: variances, ``(..., C)``.
        population: its mean and variance, each ``(C,)``; sigma is the variance's root.

    Returns:
        Two tensors ``(...)``.
    """
    std = population[1].sqrt()
    scale = std.norm() + TINY
    return (
        (mean - population[0]).norm(dim=-1) / scale,
        (var.sqrt() - std).norm(dim=-1) / scale,
    )


def _of_batches(moments: LayerMoments, estimate: str) -> tuple[Tensor, Tensor]:
    return distances(moments.mean, moments.var, population(moments, estimate))


def tid(moments: LayerMoments, estimate: str = "mean-of-batches") -> TID:
    """Compute a layer's TID over its batches, each batch counting the same.

    ``Mean TID = E ||mu_B - mu|| / ||sigma||``, ``Variance TID = E ||sigma_B - sigma|| / ||sigma||``
    (paper, Eq. 5; sigma is a standard deviation). ``estimate`` names the population, see
    :func:`~rbn_fairseq.diagnostics.population`.
    """
    return TID(*(part.mean().item() for part in _of_batches(moments, estimate)))


def tid_error(moments: LayerMoments, total: int, estimate: str = "mean-of-batches") -> TID:
    """Compute the standard error of :func:`tid` from a sample of ``total`` batches.

    That of a mean of draws without replacement: ``s / sqrt(m) * sqrt(1 - m / total)`` for m
    measured batches; 0 where all were measured, NaN for one of several. The population's own
    error, of relative size 1/(2m), is not in it.
    """
    used = len(moments.count)
    if used >= total:
        return TID(0.0, 0.0)
    if used == 1:
        return TID(math.nan, math.nan)
    factor = math.sqrt((1 - used / total) / used)
    return TID(*(factor * part.std().item() for part in _of_batches(moments, estimate)))


def average_tid(layers: Mapping[str, TID]) -> TID:
    """Return the average over layers (paper, Figure 4).

    Raises:
        ValueError: if there are none.
    """
    if not layers:
        raise ValueError("There is no layer to average: no batch norm saw a batch.")
    return TID(*(sum(values) / len(layers) for values in zip(*layers.values(), strict=True)))


def measure_tid(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Callable[[nn.Module, Any], Any] = call,
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


def _groups(length: Tensor, number: int) -> list[Tensor]:
    """Return the indices of batches by length, in at most ``number`` groups of two or more."""
    sizes, left = [0], len(length)
    for count in length.unique(return_counts=True)[1].tolist():
        share = left / (number - len(sizes) + 1)
        if sizes[-1] > 1 and len(sizes) < number and sizes[-1] + count / 2 > share:
            left -= sizes[-1]
            sizes.append(0)
        sizes[-1] += count
    if sizes[-1] == 1:  # the longest batch, alone: with those before it
        sizes[-2:] = [sum(sizes[-2:])]
    return list(length.argsort().split(sizes))


def conditional_tid(
    moments: LayerMoments, groups: int = 16, estimate: str = "mean-of-batches"
) -> Optional[TID]:
    """Compute a layer's TID against the population of batches of like length.

    The batches, sorted by the mean length of a token's sentence, are cut into ``groups``, each
    of about as many as batches of one length let it be, for these stay together. Each batch's
    distance is to the estimate from its own group, so that what is left is discrepancy given the
    length. The denominator is :func:`~rbn_fairseq.diagnostics.tid`'s, the whole population's
    ||sigma||. A group of k batches lies nearer to its own mean than to the true one, by
    ``sqrt((k - 1) / k)`` where they are as large and normally distributed about it, which is
    corrected for.

    Args:
        moments: what :func:`~rbn_fairseq.diagnostics.collect_moments` found.
        groups: their number, at most, so 2 or more; each has at least two batches.
        estimate: the population, see :func:`~rbn_fairseq.diagnostics.population`;
            ``mean-of-batches`` or ``pooled``.

    Returns:
        Mean and Variance TID; ``None`` without lengths, where there is only one group, or for an
        estimate that has no such groups.

    Raises:
        ValueError: if ``groups`` is below 1.
    """
    if groups < 1:
        raise ValueError(f"groups must be at least 1, but is {groups}.")
    if moments.length is None or estimate not in ESTIMATES:
        return None
    batches_by_length = _groups(moments.length, groups)
    if len(batches_by_length) < 2:  # "given the length" says nothing
        return None
    scale = population(moments, estimate)[1].sqrt().norm() + TINY
    sums = torch.zeros(2, dtype=torch.float64)
    for group in batches_by_length:
        alike = replace(
            moments, mean=moments.mean[group], var=moments.var[group], count=moments.count[group]
        )
        mean, var = population(alike, estimate)
        apart = alike.mean - mean, alike.var.sqrt() - var.sqrt()
        factor = math.sqrt(len(group) / (len(group) - 1))
        sums += factor * torch.stack([distance.norm(dim=1).sum() for distance in apart])
    return TID(*(sums / scale / len(moments.length)).tolist())


def independent_tid(counts: Tensor) -> TID:
    """Return about what TID would be, were tokens independent and normally distributed.

    A batch of n tokens then has a mean ``sigma / sqrt(n)`` and a standard deviation
    ``sigma / sqrt(2 n)`` away from the population's, as root mean squares per channel.

    Args:
        counts: ``(batches,)``, tokens of each batch.
    """
    counts = counts.double()
    return TID(counts.rsqrt().mean().item(), (2 * counts).rsqrt().mean().item())


def deviation(moments: LayerMoments, estimate: str = "mean-of-batches") -> tuple[float, float]:
    """Compute ``E ||mu_B - mu|| / ||mu||`` and ``E ||v_B - v|| / ||v||``, v a variance.

    The paper shows the "deviation of batch mean/variance to population mean/variance" without a
    formula. This is one reading: each relative to the population's own statistic, and of the
    variance. The other reading is TID (:func:`~rbn_fairseq.diagnostics.tid`), relative to
    ``||sigma||``, and of the standard deviation. Both are fractions: 0.01 is 1 %. A population
    mean of 0 makes the first infinite.
    """
    mean, var = population(moments, estimate)
    return (
        ((moments.mean - mean).norm(dim=1) / mean.norm()).mean().item(),
        ((moments.var - var).norm(dim=1) / var.norm()).mean().item(),
    )
