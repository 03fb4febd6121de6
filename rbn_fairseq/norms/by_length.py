"""Batch norm whose running statistics depend on how long the sentence is."""

import torch
from torch import Tensor

from rbn_fairseq.norms import scope
from rbn_fairseq.norms.affine import multiply_add
from rbn_fairseq.norms.batch import BatchNorm, BatchNormOptions
from rbn_fairseq.norms.length_statistics import LengthStatistics
from rbn_fairseq.norms.moments import Moments, bin_moments
from rbn_fairseq.norms.tokens import ValidTokens

__all__ = ["LengthBatchNorm"]


class LengthBatchNorm(BatchNorm):
    """Batch norm that infers with the running statistics of sentences of like length.

    Where batches hold sentences of like length, as fairseq makes them, training normalises given
    the length, and ordinary running statistics do not. Training is that of :class:`BatchNorm` to
    the bit; besides, every batch moves the running statistics of the bins that its sentences are
    in. Evaluation looks scale and shift up for each sentence, ``(B, C)``: one multiply-add per
    element, whatever else is in the batch; ``affine_map`` is that of all lengths together, by which
    nothing is evaluated. The penalty's gap is to what the bins expect of a batch of these lengths.

    Not for decoders: in generation the length is not known yet.

    Args:
        channels: number of channels C.
        options: with ``length_bins`` above 1.
        sync: use the statistics of all processes together.
    """

    population: LengthStatistics

    def __init__(self, channels: int, options: BatchNormOptions, sync: bool = False) -> None:
        super().__init__(channels, options, sync)
        self.population = LengthStatistics(channels, options.momentum, options.length_bins)

    def _expected(self, x: Tensor, tokens: ValidTokens) -> tuple[Tensor, Tensor]:
        return self.population.expected(tokens.lengths(x.shape, x.device), self.sync)

    def _train_by_kernels(self, x: Tensor, tokens: ValidTokens) -> Tensor:
        y, batch, *_ = self._launch(x, tokens, momentum=0.0)  # they know of no bins
        self._follow(batch, x, tokens)
        return y

    def _move(self, batch: Moments, x: Tensor, tokens: ValidTokens) -> None:
        super()._move(self._with_bins(batch, x, tokens), x, tokens)

    def _record(self, batch: Moments, x: Tensor, tokens: ValidTokens) -> None:
        if scope.frozen.get() and scope.moment_recorders.get():  # a measurement
            batch = self._with_bins(batch, x, tokens)
        super()._record(batch, x, tokens)

    @torch.no_grad()
    def _with_bins(self, batch: Moments, x: Tensor, tokens: ValidTokens) -> Moments:
        inner = self.population.edges[1:-1]
        return batch._replace(bins=bin_moments(batch, x, tokens, inner, self.sync))

    def _evaluate(self, x: Tensor, tokens: ValidTokens) -> Tensor:
        lengths = tokens.lengths(x.shape, x.device)
        return multiply_add(x, *self._map(*self.population.look_up(lengths)))
