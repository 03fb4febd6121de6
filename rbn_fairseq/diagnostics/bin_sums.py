"""Statistics by bins of sentence lengths, over many batches."""

from typing import Optional

import torch
from torch import Tensor

from rbn_fairseq.norms.moments import BinMoments

__all__ = ["BinSums"]


class BinSums:
    """Sums, in fp64 on the CPU, of the moments of batches by bin; a batch weighs by its tokens."""

    def __init__(self) -> None:
        self._sums: Optional[Tensor] = None  # (G, 1 + 3 C): n, n mean, n mean^2, n var

    def add(self, batch: BinMoments) -> None:
        """Add one batch."""
        mean, var, n = (part.double().cpu() for part in batch)
        weighted = [n.unsqueeze(1) * part for part in (mean, mean.square(), var)]
        sums = torch.cat([n.unsqueeze(1), *weighted], 1)
        self._sums = sums if self._sums is None else self._sums + sums

    def estimate(self, estimate: str) -> BinMoments:
        """Return the statistics of every bin.

        ``mean-of-batches``: the mean of batch means and of batch variances; ``pooled``: mean and
        variance of all tokens, larger by the variance of the batch means.
        """
        assert self._sums is not None
        n, sums = self._sums[:, 0], self._sums[:, 1:]
        mean, square, var = (sums / n.clamp(min=1).unsqueeze(1)).chunk(3, 1)
        if estimate == "pooled":
            var = var + (square - mean.square()).clamp(min=0)
        return BinMoments(mean, var, n)
