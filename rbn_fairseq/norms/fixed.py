"""Stand-ins, which measure nothing: a multiply-add, the identity, Dynamic Tanh and Derf."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rbn_fairseq.norms.norm import Norm
from rbn_fairseq.norms.normalise import multiply_add
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

    Args:
        channels: number of channels C.
        options: none.
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
        """Build it; places are alike to it."""
        return cls()

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Return ``x: (..., C)`` itself; ``tokens`` is not read."""
        return x


@dataclass(frozen=True)
class DynamicTanhOptions(NormOptions, norm="dyt"):
    """Parameters of ``dyt``."""

    alpha_init: float = option(0.5, "initial value of the learnt scalar alpha", range="(0, inf)")


class DynamicTanh(Norm):
    """DyT (Zhu et al., 2025, Sec. 4): ``y = weight * tanh(alpha * x) + bias``.

    No statistics of any kind: alpha, one learnt number per place, stands for the scale that a
    norm would measure. The same in training and in evaluation; computed in fp32 or better
    whatever the input's dtype.

    Args:
        channels: number of channels C.
        options: initial alpha.
    """

    name = "dyt"
    summary = "nothing: a tanh with a learnt slope"
    source = "Zhu et al., 2025, Transformers without Normalization"
    options_type = DynamicTanhOptions
    options: DynamicTanhOptions

    def __init__(self, channels: int, options: Optional[DynamicTanhOptions] = None) -> None:
        super().__init__()
        self.options = options or DynamicTanhOptions()
        self.alpha = nn.Parameter(torch.full((1,), self.options.alpha_init))
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Squash ``x: (..., C)``; ``tokens`` is not needed and not read."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        squashed = torch.tanh(self.alpha.to(dtype) * x.to(dtype))
        return torch.addcmul(self.bias.to(dtype), squashed, self.weight.to(dtype)).to(x.dtype)


@dataclass(frozen=True)
class DynamicErfOptions(NormOptions, norm="derf"):
    """Parameters of ``derf``."""

    alpha_init: float = option(0.5, "initial value of the learnt scalar alpha", range="(0, inf)")


class DynamicErf(Norm):
    """Derf (Chen et al., 2025, arXiv:2512.10938, Eq. 10): ``weight * erf(alpha x + s) + bias``.

    As DyT no statistics of any kind; alpha and s are one learnt number each per place, s 0 at
    first. The same in training and in evaluation; computed in fp32 or better whatever the input's
    dtype.

    Args:
        channels: number of channels C.
        options: initial alpha.
    """

    name = "derf"
    summary = "nothing: the error function with a learnt slope and shift"
    source = "Chen et al., 2025, Stronger Normalization-Free Transformers"
    options_type = DynamicErfOptions
    options: DynamicErfOptions

    def __init__(self, channels: int, options: Optional[DynamicErfOptions] = None) -> None:
        super().__init__()
        self.options = options or DynamicErfOptions()
        self.alpha = nn.Parameter(torch.full((1,), self.options.alpha_init))
        self.s = nn.Parameter(torch.zeros(1))
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Squash ``x: (..., C)``; ``tokens`` is not needed and not read."""
        return _derf(x, self.alpha, self.s, self.weight, self.bias)


class _Derf(torch.autograd.Function):
    """``weight * erf(alpha x + s) + bias``, each pass but the first and the last in place."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, alpha: Tensor, s: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        erf = (x.to(dtype) * alpha.to(dtype)).add_(s.to(dtype)).erf_()
        ctx.save_for_backward(x, alpha, s, weight, erf)
        ctx.dtype = bias.dtype
        return torch.addcmul(bias.to(dtype), erf, weight.to(dtype)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, alpha, s, weight, erf = ctx.saved_tensors
        dtype, channels = erf.dtype, weight.shape[0]
        grad, wide, slope = grad.to(dtype), x.to(dtype), alpha.to(dtype)
        # erf's derivative, 2 / sqrt(pi) exp(-u^2), times the gradient that arrives.
        du = (wide * slope).add_(s.to(dtype)).square_().neg_().exp_().mul_(grad)
        du.mul_(weight.to(dtype) * (2 / math.sqrt(math.pi)))
        product = grad * erf
        dweight = product.reshape(-1, channels).sum(0).to(weight.dtype)
        dbias = grad.reshape(-1, channels).sum(0).to(ctx.dtype)
        dalpha = torch.mul(du, wide, out=product).sum().view(1).to(alpha.dtype)
        ds = du.sum().view(1).to(s.dtype)
        return du.mul_(slope).to(x.dtype), dalpha, ds, dweight, dbias


_derf: Callable[..., Tensor] = _Derf.apply
