"""Instance normalisation: each channel over the real tokens of its own sentence."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rbn_fairseq.norms.norm import AffineNorm
from rbn_fairseq.norms.normalise import gradient_sums, on_wide_rows
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

    With z the normalised rows, s what they were multiplied by, and g the gradient that arrives,

        dx = weight s (g - mean(g) - z mean(g z)),

    means being those over the rows of the sentence.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, eps: float, layout: BatchLayout
    ) -> Tensor:
        z = rows - layout.by_row(_mean(rows, layout))  # (N, C)
        scale = torch.rsqrt(_mean(z.square(), layout) + eps)  # (B, C)
        z.mul_(layout.by_row(scale))
        ctx.layout = layout
        ctx.save_for_backward(z, scale, weight)
        return torch.addcmul(bias, z, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Optional[Tensor], ...]:
        (z, scale, weight), layout = ctx.saved_tensors, ctx.layout
        dbias, dweight = gradient_sums(grad, z)
        dx = z * layout.by_row(_mean(grad * z, layout))
        dx.add_(layout.by_row(_mean(grad, layout))).sub_(grad).mul_(layout.by_row(scale * -weight))
        return dx, dweight, dbias, None, None


_normalise: Callable[..., Tensor] = _Normalise.apply


def _mean(rows: Tensor, layout: BatchLayout) -> Tensor:
    """Return the mean over the rows of each sentence, ``(B, C)``; 0 for one without any."""
    return layout.sums(rows) / layout.lengths.clamp(min=1).unsqueeze(1)
