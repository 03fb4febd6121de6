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

    Args:
        channels: number of channels C.
        options: eps.
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
        return on_wide_rows(_normalise, rows, self.weight, self.bias, eps, layout)


class _Normalise(torch.autograd.Function):
    """Instance norm of rows in fp32 or better.

    With n rows in the sentence, s what they are multiplied by, and g the gradient that arrives,

        dx = weight s (g - sum(g) / n - (x - mean) s^2 sum(g (x - mean)) / n).
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, eps: float, layout: BatchLayout
    ) -> Tensor:
        y, moments = torch.empty_like(rows), []  # y: (N, C)
        for n, sums, spread, x, out in _by_length(layout, rows, y):
            mean = sums(x) / n
            torch.sub(x, spread(mean), out=out)
            scale = (sums(out * out) / n).add_(eps).rsqrt_()
            torch.addcmul(bias, out, spread(scale * weight), out=out)
            moments += [mean, scale]
        ctx.layout = layout
        ctx.save_for_backward(rows, weight, *moments)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Optional[Tensor], ...]:
        rows, weight, *moments = ctx.saved_tensors
        dx, dweight, dbias = torch.empty_like(rows), *map(torch.zeros_like, (weight, weight))
        parts = _by_length(ctx.layout, grad, rows, dx)
        for part, mean, scale in zip(parts, moments[::2], moments[1::2], strict=True):
            n, sums, spread, g, x, out = part
            dot = sums(torch.sub(x, spread(mean), out=out).mul_(g)) * scale
            total = sums(g)
            dweight += dot.flatten(0, -2).sum(0)
            dbias += total.flatten(0, -2).sum(0)
            factor = scale * weight
            slope = dot * scale * factor / -n
            shift = torch.addcmul(total * factor / -n, mean, slope, value=-1)
            torch.addcmul(spread(shift), g, spread(factor), out=out).addcmul_(x, spread(slope))
        return dx, dweight, dbias, None, None


_normalise: Callable[..., Tensor] = _Normalise.apply


def _by_length(layout: BatchLayout, *tensors: Tensor) -> Iterator[tuple[Any, ...]]:
    """Yield views of tensors ``(N, C)``, of some sentences after the others; without blocks of all.

    Returns:
        The lengths; what gives the sums of a view's sentences; what spreads them over the rows; the
        views. Those of a block are of sentences of one length, ``(sentences, length, C)``.
    """
    size, row = block_rows(tensors[0]), 0
    if size is None:
        yield layout.lengths.clamp(min=1).unsqueeze(1), layout.sums, layout.by_row, *tensors
        return
    for length, alike in groupby(filter(None, layout.counts)):
        few, end = max(1, size // length), row + length * len(list(alike))
        views = (it[row:end].unflatten(0, (-1, length)).split(few) for it in tensors)
        for block in zip(*views, strict=True):
            yield length, lambda rows: rows.sum(1, keepdim=True), lambda sums: sums, *block
        row = end
