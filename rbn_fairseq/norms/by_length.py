"""Batch norm whose running statistics depend on how long the sentence is."""

from typing import Optional

import torch
from torch import Tensor

from rbn_fairseq.norms import scope
from rbn_fairseq.norms.affine import multiply_add
from rbn_fairseq.norms.batch import BatchNorm, BatchNormOptions
from rbn_fairseq.norms.length_statistics import LengthStatistics
from rbn_fairseq.norms.moments import Moments, bin_moments
from rbn_fairseq.norms.tokens import BatchLayout, Tokens, on_rows, sentences_of

__all__ = ["LengthBatchNorm"]


class LengthBatchNorm(BatchNorm):
    """Batch norm that infers with the running statistics of sentences of like length.

    Where batches hold sentences of like length, as fairseq makes them, training normalises given
    the length, and ordinary running statistics do not. Training is that of :class:`BatchNorm` on
    the same rows, to the bit; besides, every batch moves the running statistics of the bins that
    its sentences are in. Evaluation looks scale and shift up for each sentence, ``(B, C)``: one
    multiply-add per element, whatever else is in the batch; ``affine_map`` is that of all lengths
    together, by which nothing is evaluated. The penalty's gap is to what the bins expect of a batch
    of these lengths.

    Not for decoders: in generation the length is not known yet.

    Args:
        channels: number of channels C.
        options: with ``length_bins`` above 1.
        sync: use the statistics of all processes together.

    Raises:
        ValueError: by a forward that is not told of sentences: ``x`` must be ``(T, B, C)``, or
            ``(N, C)`` with a layout.
    """

    by_sentence = True
    population: LengthStatistics

    def __init__(self, channels: int, options: BatchNormOptions, sync: bool = False) -> None:
        super().__init__(channels, options, sync)
        self.population = LengthStatistics(channels, options.momentum, options.length_bins)

    def _expected(self, layout: Optional[BatchLayout]) -> tuple[Tensor, Tensor]:
        return self.population.expected(sentences_of(layout).lengths, self.sync)

    def _train_by_kernels(
        self, rows: Tensor, seen: Tensor, layout: Optional[BatchLayout]
    ) -> Tensor:
        y, batch, *_ = self._launch(rows, seen, layout, momentum=0.0)  # they know of no bins
        self._follow(batch, seen, layout)
        return y

    def _move(self, batch: Moments, rows: Tensor, layout: Optional[BatchLayout]) -> None:
        super()._move(self._with_bins(batch, rows, layout), rows, layout)

    def _record(self, batch: Moments, rows: Tensor, layout: Optional[BatchLayout]) -> None:
        if scope.frozen.get() and scope.moment_recorders.get():  # a measurement
            batch = self._with_bins(batch, rows, layout)
        super()._record(batch, rows, layout)

    @torch.no_grad()
    def _with_bins(self, batch: Moments, rows: Tensor, layout: Optional[BatchLayout]) -> Moments:
        inner = self.population.edges[1:-1]
        bins = bin_moments(batch, rows, sentences_of(layout), inner, self.sync)
        return batch._replace(bins=bins)

    def _evaluate(self, x: Tensor, tokens: Optional[Tokens]) -> Tensor:
        return on_rows(self._by_length, x, tokens, by_sentence=True)

    def _by_length(self, rows: Tensor, layout: Optional[BatchLayout]) -> Tensor:
        layout = sentences_of(layout)
        scale, shift = self._map(*self.population.look_up(layout.lengths))  # (B, C)
        return multiply_add(rows, scale[layout.sentences], shift[layout.sentences])
