"""TID that is left when the population knows how long a batch's sentences are."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from rbn_fairseq.diagnostics.collect import LayerMoments
from rbn_fairseq.diagnostics.population import ESTIMATES, population
from rbn_fairseq.diagnostics.tid import TID, TINY

__all__ = ["conditional_tid"]


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
    moments: LayerMoments, bins: int = 16, estimate: str = "mean-of-batches"
) -> TID | None:
    """Compute a layer's TID against the population of batches of like length.

    The batches, sorted by the mean length of a token's sentence, are cut into ``bins`` groups,
    each of about as many as batches of one length let it be, for these stay together. Each batch's
    distance is to the estimate from its own group, so that what is left is discrepancy given the
    length. The denominator is :func:`~rbn_fairseq.diagnostics.tid`'s, the whole population's
    ||sigma||. A group of k batches lies nearer to its own mean than to the true one, by
    ``sqrt((k - 1) / k)`` where they are as large and normally distributed about it, which is
    corrected for.

    Args:
        moments: what :func:`~rbn_fairseq.diagnostics.collect_moments` found.
        bins: number of groups, at most; each has at least two batches.
        estimate: the population, see :func:`~rbn_fairseq.diagnostics.population`;
            ``mean-of-batches`` or ``pooled``.

    Returns:
        Mean and Variance TID; ``None`` without lengths, with fewer than two batches, or for an
        estimate that has no such groups.
    """
    if moments.length is None or len(moments.length) < 2 or estimate not in ESTIMATES:
        return None
    scale = population(moments, estimate)[1].sqrt().norm() + TINY
    sums = torch.zeros(2, dtype=torch.float64)
    for group in _groups(moments.length, bins):
        own = replace(
            moments, mean=moments.mean[group], var=moments.var[group], count=moments.count[group]
        )
        mean, var = population(own, estimate)
        apart = own.mean - mean, own.var.sqrt() - var.sqrt()
        factor = math.sqrt(len(group) / (len(group) - 1))
        sums += factor * torch.stack([distance.norm(dim=1).sum() for distance in apart])
    return TID(*(sums / scale / len(moments.length)).tolist())
