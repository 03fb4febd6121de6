"""Population statistics by sentence length."""

from typing import Optional

import torch
from torch import Tensor

from rbn_fairseq.norms.lengths import LengthBins, neighbours
from rbn_fairseq.norms.moments import BinMoments, Moments, bin_moments, join_processes
from rbn_fairseq.norms.population import Population
from rbn_fairseq.norms.tokens import BatchLayout, sentences_of

__all__ = ["PopulationByLength"]


class PopulationByLength(Population):
    """Running mean and variance of every channel, and the same for each bin of sentence lengths.

    A bin keeps what it has seen as decayed sums: with ``p`` the part of a batch's tokens that is in
    the bin, m the momentum,

        w <- (1 - m) w + m p,    s <- (1 - m) s + m p mean,    mean = s / w,

    and likewise for the variance. So the first value replaces, a bin that every batch meets moves
    by about m, and one that is rarely met by more, as its old value is older. Below w = m, what one
    batch brings, nothing decays: a bin met never again keeps its value. Above it no batch moves a
    bin by more than about a half. Where each batch is in one of G bins and m is 0.05, a bin is a
    mean of some 20 / 10 / 5 / 3 batches for G = 2 / 4 / 8 / 16 and more. Sums, not means, are kept
    because all that averages buffers, over processes or checkpoints, then weighs by what was seen.

    Until :meth:`set_bins` all lengths are in one bin.

    Args:
        channels: number of channels C.
        momentum: m.
        bins: number of bins G.

    Attributes:
        edges: ``(G + 1,)``, see :class:`LengthBins`; 0 until they are set.
        centres: ``(G,)``.
        bin_weight: w, ``(G,)``; 0 for a bin that has seen nothing.
        bin_mean, bin_var: the sums s, ``(G, C)``.
    """

    by_length = True
    edges: Tensor
    centres: Tensor
    bin_weight: Tensor
    bin_mean: Tensor
    bin_var: Tensor

    def __init__(self, channels: int, momentum: float, bins: int) -> None:
        super().__init__(channels, momentum)
        self.register_buffer("edges", torch.zeros(bins + 1))
        self.register_buffer("centres", torch.zeros(bins))
        self.register_buffer("bin_weight", torch.zeros(bins))
        self.register_buffer("bin_mean", torch.zeros(bins, channels))
        self.register_buffer("bin_var", torch.zeros(bins, channels))

    @property
    def bins(self) -> int:
        """Number of bins G."""
        return len(self.centres)

    @torch.no_grad()
    def set_bins(self, bins: LengthBins) -> None:
        """Say where bins begin and end, in place; what they have seen is forgotten."""
        self.edges.copy_(torch.from_numpy(bins.edges))
        self.centres.copy_(torch.from_numpy(bins.centres))
        for sums in (self.bin_weight, self.bin_mean, self.bin_var):
            sums.zero_()

    def moving(self) -> list[Tensor]:
        """Return what batches move: not where bins are, which a mean would round."""
        where = {id(self.edges), id(self.centres)}
        return [buffer for buffer in self.buffers() if id(buffer) not in where]

    @torch.no_grad()
    def set(self, mean: Tensor, var: Tensor, bins: Optional[BinMoments] = None) -> None:
        """Replace the statistics, in place; what the bins have seen where ``bins`` are given."""
        super().set(mean, var)
        if bins is None:
            return
        weight = bins.n / bins.n.sum()
        self.bin_weight.copy_(weight)
        self.bin_mean.copy_(bins.mean * weight.unsqueeze(1))
        self.bin_var.copy_(bins.var * weight.unsqueeze(1))

    def by_bin(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance of every bin, ``(G, C)``; those of all for one without any."""
        weight = self.bin_weight.unsqueeze(1)
        some = weight > 0
        by = weight.where(some, 1)
        return (
            torch.where(some, self.bin_mean / by, self.running_mean),
            torch.where(some, self.bin_var / by, self.running_var),
        )

    @torch.no_grad()
    def look_up(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance for sentences, each ``(B, C)``.

        Between the centres of two bins both are interpolated; beyond the outer centres they are
        the outer bins'.

        Args:
            lengths: real tokens of each sentence, ``(B,)``.
        """
        mean, var = self.by_bin()
        lower, upper, share = neighbours(lengths, self.centres)
        return mean[lower].lerp(mean[upper], share), var[lower].lerp(var[upper], share)

    @torch.no_grad()
    def expected(self, layout: Optional[BatchLayout], sync: bool) -> tuple[Tensor, Tensor]:
        """Return mean and variance, each ``(C,)``, of a batch of sentences of these lengths.

        Of its tokens, each distributed as its sentence's length says: the variance is that within
        sentences and that between their means (the law of total variance).

        Args:
            layout: the batch's sentences.
            sync: of the sentences of all processes.
        """
        lengths = sentences_of(layout).lengths
        mean, var = self.look_up(lengths)
        count = lengths.sum().to(mean.dtype)
        part = (lengths / count.clamp(min=1)).unsqueeze(1)  # (B, 1)
        joint = (part * mean).sum(0)
        spread = (part * (var + (mean - joint).square())).sum(0)
        joint, spread, count, *_ = join_processes(joint, spread, count, sync)
        none = count == 0
        return joint.where(~none, self.running_mean), spread.where(~none, self.running_var)

    @torch.no_grad()
    def describe(
        self, batch: Moments, rows: Tensor, layout: Optional[BatchLayout], sync: bool
    ) -> Moments:
        """Return a batch's moments with those by bin."""
        bins = bin_moments(batch, rows, sentences_of(layout), self.edges[1:-1], sync)
        return batch._replace(bins=bins)

    @torch.no_grad()
    def update(self, batch: Moments) -> None:
        """Move towards the statistics of a batch and its bins, unless empty or not finite."""
        assert batch.bins is not None
        bins, mean, var = batch.bins, self.running_mean, self.running_var
        weight = self.bin_weight.unsqueeze(1)
        part = self.momentum * (bins.n / batch.n.clamp(min=1)).to(mean.dtype).unsqueeze(1)
        decay = 1 - self.momentum * (weight >= self.momentum).to(weight.dtype)
        self.replace_where(
            batch.n > 0,
            running_mean=mean.lerp(batch.mean.to(mean.dtype), self.momentum),
            running_var=var.lerp(batch.var.to(var.dtype), self.momentum),
            bin_weight=(decay * weight + part).squeeze(1),
            bin_mean=decay * self.bin_mean + part * bins.mean.to(mean.dtype),
            bin_var=decay * self.bin_var + part * bins.var.to(var.dtype),
        )
