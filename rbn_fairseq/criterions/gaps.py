"""Distances of batch statistics from population statistics, from the gaps of one forward."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from rbn_fairseq.norms import Gap, standard_deviation

__all__ = ["GapTerms", "gap_terms", "relative_gaps"]


def _alike(gaps: Sequence[Gap]) -> Iterator[tuple[Callable[[Tensor], Tensor], list[Gap]]]:
    """Yield what can be stacked, with the standard deviation that its norms divide by."""
    groups = defaultdict(list)
    for gap in gaps:
        groups[gap.eps, gap.clamp, gap.batch_mean.numel()].append(gap)
    for (eps, clamp, _), group in groups.items():
        yield partial(standard_deviation, eps=eps, clamp=clamp), group


class GapTerms(NamedTuple):
    """Sums over all layers and channels, unweighted, 0-dim: what lambda and nu multiply."""

    mean: Tensor
    std: Tensor


def gap_terms(gaps: Sequence[Gap], convention: str) -> GapTerms:
    """Compute the penalty's two terms from the gaps of one forward (paper, Section 4.1).

    ``paper``: ``||mu_B - mu||^2`` and ``||sigma_B - sigma||^2`` against the population statistics
    before this batch moved them, with the standard deviation that the norm divides by.
    ``official``, what the authors' published runs compute: ``||mu_B - mu||^2`` and the L1
    distance of the variances ``|var_B - var|``, against the statistics after the update.

    Args:
        gaps: at least one.
        convention: ``paper`` or ``official``.
    """
    terms = []
    for deviation, group in _alike(gaps):
        mean = torch.stack([gap.batch_mean for gap in group])  # (layers, C)
        var = torch.stack([gap.batch_var for gap in group])
        if convention == "paper":
            target_mean = torch.stack([gap.mean_before for gap in group])
            target_var = torch.stack([gap.var_before for gap in group])
            spread = (deviation(var) - deviation(target_var)).square()
        else:
            target_mean = torch.stack([gap.mean_after for gap in group])
            target_var = torch.stack([gap.var_after for gap in group])
            spread = (var - target_var).abs()
        terms.append(torch.stack([(mean - target_mean).square().sum(), spread.sum()]))
    return GapTerms(*torch.stack(terms).sum(0).unbind())


def relative_gaps(gaps: Sequence[Gap]) -> Tensor:
    """Compute ``(||mu_B - mu|| / ||sigma_B||)^2`` and ``(||sigma_B - sigma|| / ||sigma_B||)^2``.

    Their roots are what TID averages over batches (paper, Eq. 5), against the population
    statistics before this batch moved them, but relative to the batch's deviation: the
    population's, of earlier batches, has no gradient, and a layer would be told that it gets
    nearer by making its outputs smaller. Squares have gradients where a gap is 0, too.

    Args:
        gaps: at least one.

    Returns:
        ``(gaps, 2)``, in their order.
    """
    rows: dict[int, Tensor] = {}
    for deviation, group in _alike(gaps):
        mean = torch.stack([gap.batch_mean - gap.mean_before for gap in group])  # (layers, C)
        std = deviation(torch.stack([gap.batch_var for gap in group]))
        spread = std - deviation(torch.stack([gap.var_before for gap in group]))
        squares = torch.stack([mean, spread]).square().sum(2) / std.square().sum(1)  # (2, layers)
        rows.update(zip(map(id, group), squares.unbind(1), strict=True))
    return torch.stack([rows[id(gap)] for gap in gaps])
