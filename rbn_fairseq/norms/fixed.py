"""Stand-ins, which measure nothing: a multiply-add, the identity, Dynamic Tanh and Derf."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rbn_fairseq.norms.norm import AffineNorm, Norm
from rbn_fairseq.norms.normalise import by_blocks, gradient_sums, multiply_add, on_wide_rows
from rbn_fairseq.norms.options import NormOptions, option
from rbn_fairseq.norms.plan import NormPlace
from rbn_fairseq.norms.population import FullPrecision
from rbn_fairseq.norms.tokens import Tokens

__all__ = [
    "Affine", "DynamicErf", "DynamicErfOptions", "DynamicTanh", "DynamicTanhOptions", "NoNorm",
]  # fmt: skip


class Affine(Norm, FullPrecision):
    """``y = x * scale + shift`` for every channel, in fp32 or better whatever the input's dtype.

    ``rbn fold`` leaves it where a norm with running statistics cannot vanish into a linear layer.
    Scale and shift are buffers: they do not train.
    """

    name = "affine"
    summary = (
        "nothing: the multiply-add that `rbn fold` leaves of a norm with running statistics; not "
        "for training"
    )
    source = "no paper: what such a norm is in inference"
    scale: Tensor
    shift: Tensor

    def __init__(self, channels: int, options: Optional[NormOptions] = None) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(channels))
        self.register_buffer("shift", torch.zeros(channels))

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Scale and shift ``x: (..., C)``; ``tokens`` is not needed and not read."""
        return multiply_add(x, self.scale, self.shift)


class NoNorm(Norm):
    """The identity: what a model does without a norm in this place.

    No paper of its own. It is the control of a comparison, and lets a plan leave a site bare
    (``none@ffn:layer``). It has no parameters, not even a gain.
    """

    name = "none"
    summary = "nothing: the control of a comparison"
    source = "no paper: the identity"

    @classmethod
    def build(cls, place: NormPlace, options: Any) -> Self:
        """Build it; it needs nothing of the place."""
        return cls()

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Return ``x: (..., C)`` itself; ``tokens`` is not read."""
        return x


@dataclass(frozen=True)
class DynamicTanhOptions(NormOptions, norm="dyt"):
    """Parameters of ``dyt``."""

    alpha_init: float = option(0.5, "initial value of the learnt scalar alpha", range="(0, inf)")


class DynamicTanh(AffineNorm):
    """DyT (Zhu et al., 2025, Sec. 4): ``y = weight * tanh(alpha * x) + bias``.

    No statistics of any kind: alpha, one learnt number per place, stands for the scale that a
    norm would measure. The same in training and in evaluation; computed in fp32 or better
    whatever the input's dtype. The tanh is exact to the rounding of 1, not of small values.
    """

    name = "dyt"
    summary = "nothing: a tanh with a learnt slope"
    source = "Zhu et al., 2025, Transformers without Normalization"
    options_type = DynamicTanhOptions
    options: DynamicTanhOptions

    def __init__(self, channels: int, options: Optional[DynamicTanhOptions] = None) -> None:
        super().__init__(channels, options)
        self.alpha = nn.Parameter(torch.full((1,), float(self.options.alpha_init)))
        self.register_parameter("s", None)  # derf has one

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Squash ``x: (..., C)``; ``tokens`` is not needed and not read."""
        return on_wide_rows(_squash, x, self.alpha, self.s, self.weight, self.bias)


@dataclass(frozen=True)
class DynamicErfOptions(DynamicTanhOptions, norm="derf"):
    """Parameters of ``derf``."""


class DynamicErf(DynamicTanh):
    """Derf (Chen et al., 2025, arXiv:2512.10938, Eq. 10): ``weight * erf(alpha x + s) + bias``.

    As DyT, with s as one more learnt number per place, 0 at first.
    """

    name = "derf"
    summary = "nothing: the error function with a learnt slope and shift"
    source = "Chen et al., 2025, Stronger Normalization-Free Transformers"
    options_type = DynamicErfOptions

    def __init__(self, channels: int, options: Optional[DynamicErfOptions] = None) -> None:
        super().__init__(channels, options)
        self.s = nn.Parameter(torch.zeros(1))


class _Squash(torch.autograd.Function):
    """``weight * tanh(alpha x) + bias``, or with s ``weight * erf(alpha x + s) + bias``.

    tanh u is 2 sigmoid(2 u) - 1, on a CPU with vector instructions 3 to 5 times as fast.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, alpha: Tensor, s: Optional[Tensor], weight: Tensor, bias: Tensor
    ) -> Tensor:
        y, squashed = torch.empty_like(rows), torch.empty_like(rows)  # (N, C)
        slope, scale, shift = alpha, weight, bias
        if s is None:
            slope, scale, shift = 2 * alpha, 2 * weight, bias - weight
        for out, z, x in by_blocks(y, squashed, rows):
            torch.mul(x, slope, out=z)
            z.sigmoid_() if s is None else z.add_(s).erf_()
            torch.addcmul(shift, z, scale, out=out)
        ctx.save_for_backward(rows, squashed, alpha, s, weight)
        return y.detach()  # torch 2.11, compiling, loses the gradient of y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Optional[Tensor], ...]:
        rows, squashed, alpha, s, weight = ctx.saved_tensors
        dx = torch.empty_like(rows)
        dweight, dbias, dslope, dstart = (torch.zeros_like(weight) for _ in range(4))
        half, two = torch.full_like(weight, 0.5), torch.full_like(weight, 2.0)
        factor = weight * (4 if s is None else 2 / math.sqrt(math.pi))
        for du, g, x, z in by_blocks(dx, grad, rows, squashed):  # du: but for the factor
            if s is None:
                total, dot = gradient_sums(g, z, half, two)
                torch.ops.aten.sigmoid_backward.grad_input(g, z, grad_input=du)
            else:  # erf's derivative, 2 / sqrt(pi) exp(-u^2), by exp2, the faster one
                total, dot = gradient_sums(g, z)
                torch.mul(x, alpha, out=du).add_(s).square_().mul_(-1 / math.log(2)).exp2_()
                du.mul_(g)
            dbias += total
            dweight += dot
            total, dot = gradient_sums(du, x)
            dstart += total
            dslope += dot
            du.mul_(factor * alpha)
        dalpha, ds = ((part * factor).sum().view(1) for part in (dslope, dstart))
        return dx, dalpha, None if s is None else ds, dweight, dbias


_squash: Callable[..., Tensor] = _Squash.apply
