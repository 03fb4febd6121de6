"""Instance normalisation: each channel over the real tokens of its own sentence."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rbn_fairseq.norms.norm import AffineNorm
from rbn_fairseq.norms.normalise import block_rows, on_wide_rows
from rbn_fairseq.norms.options import NormOptions, option
from rbn_fairseq.norms.tokens import BatchLayout, Tokens, on_rows, sentences_of

__all__ = ["InstanceNorm", "InstanceNormOptions"]


@dataclass(frozen=True)
class InstanceNormOptions(NormOptions, norm="instance"):
    """Parameters of ``instance``."""

    eps: float = option(1e-5, "added to the variance", range="(0, inf)")


class InstanceNorm(AffineNorm):
    """Instance norm (Ulyanov et al., 2016, arXiv:1607.08022) that does not see padding.

    ``y = (x - mean) / sqrt(var + eps) * weight + bias`` with the mean and biased variance of a
    channel over the real tokens of one sentence. The same in training and in evaluation: there
    are no running statistics. A sentence of one token gives the bias.

    Statistics are two-pass, in fp32 or better whatever the input's dtype.

    Not for a causal decoder: a position would see later tokens.
    """

    name = "instance"
    summary = "each channel by its mean and variance over the sentence's real tokens"
    source = "Ulyanov et al., 2016, Instance Normalization"
    options_type = InstanceNormOptions
    options: InstanceNormOptions
    leaks = (
        "its statistics are those of the whole sentence, so that in training a position sees later "
        "tokens, and in generation there is only one token to take them from"
    )

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Normalise ``x``; same shape and dtype out.

        Args:
            x: rows ``(N, C)`` of real tokens; or with padding ``(T, B, C)``.
            tokens: the layout of the rows; or which of ``x``'s positions are real tokens. ``None``
                = all.

        Raises:
            ValueError: if ``tokens`` describes another shape than ``x``'s, or nothing tells the
                sentences apart.
        """
        return on_rows(self._normalise, x, tokens, by_sentence=True)

    def _normalise(self, rows: Tensor, layout: Optional[BatchLayout]) -> Tensor:
        layout, eps = sentences_of(layout), self.options.eps
        return on_wide_rows(_apply, rows, self.weight, self.bias, eps, layout)


def _apply(rows: Tensor, weight: Tensor, bias: Tensor, eps: float, layout: BatchLayout) -> Tensor:
    """Normalise rows ``(N, C)`` in fp32 or better."""
    size = block_rows(rows)
    if size is not None and len(rows) > size:
        return _by_blocks(rows, weight, bias, eps, layout.counts, size)
    counts = layout.lengths.clamp(min=1).unsqueeze(1)
    centred = rows - layout.by_row(layout.sums(rows) / counts)
    scale = torch.rsqrt(layout.sums(centred.square()) / counts + eps)
    return torch.addcmul(bias, centred * layout.by_row(scale), weight)


class _ByBlocks(torch.autograd.Function):
    """The same by blocks of sentences of one length.

    With n rows in the sentence, s = 1 / sqrt(var + eps), and g the gradient that arrives,

        dx = weight s (g - sum(g) / n - (x - mean) s^2 sum(g (x - mean)) / n).
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, eps: float, counts: Any, size: int
    ) -> Tensor:
        ctx.counts, ctx.size = counts, size
        y, moments = torch.empty_like(rows), []
        for x, out in _blocks(counts, size, rows, y):  # (sentences, n, C)
            mean = x.mean(1, keepdim=True)
            torch.sub(x, mean, out=out)
            scale = (out * out).mean(1, keepdim=True).add_(eps).rsqrt_()
            torch.addcmul(bias, out, scale * weight, out=out)
            moments += [mean, scale]
        ctx.save_for_backward(rows, weight, *moments)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Optional[Tensor], ...]:
        rows, weight, *moments = ctx.saved_tensors
        dx, dweight, dbias = torch.empty_like(rows), *map(torch.zeros_like, (weight, weight))
        blocks = _blocks(ctx.counts, ctx.size, grad, rows, dx)
        for (g, x, out), mean, scale in zip(blocks, moments[::2], moments[1::2], strict=True):
            dot = torch.sub(x, mean, out=out).mul_(g).sum(1, keepdim=True) * scale
            total, n = g.sum(1, keepdim=True), x.shape[1]
            dweight += dot.sum((0, 1))
            dbias += total.sum((0, 1))
            slope = dot * scale / -n
            shift = torch.addcmul(total / -n, mean, slope, value=-1)
            # In this order, so that it is 0 for a sentence of one token.
            torch.addcmul(shift, x, slope, out=out).add_(g).mul_(scale * weight)
        return dx, dweight, dbias, None, None, None


_by_blocks: Callable[..., Tensor] = _ByBlocks.apply


def _blocks(counts: list[int], size: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield views of tensors ``(N, C)``, each of some sentences of one length: ``(B, n, C)``."""
    row = 0
    for n, alike in groupby(filter(None, counts)):
        end = row + n * len(list(alike))
        runs = (tensor[row:end].unflatten(0, (-1, n)) for tensor in tensors)
        yield from zip(*(run.split(max(1, size // n)) for run in runs), strict=True)
        row = end
