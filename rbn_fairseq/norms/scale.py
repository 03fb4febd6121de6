"""ScaleNorm: each token to one learnt length."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rbn_fairseq.norms.norm import Norm
from rbn_fairseq.norms.options import NormOptions, option
from rbn_fairseq.norms.tokens import Tokens

__all__ = ["ScaleNorm", "ScaleNormOptions"]


@dataclass(frozen=True)
class ScaleNormOptions(NormOptions, norm="scale"):
    """Parameters of ``scale``."""

    eps: float = option(1e-5, "smallest length that a token is divided by", range="(0, inf)")


class ScaleNorm(Norm):
    """ScaleNorm (Nguyen and Salazar, 2019, arXiv:1910.05895, Eq. 5): each token by its length.

    ``y = g x / max(||x||, eps)`` with one learnt number g, sqrt(C) at first: then it is RMSNorm's
    first value. The equation has no eps; the authors' code clamps. The same in training and in
    evaluation; computed in fp32 or better whatever the input's dtype.
    """

    name = "scale"
    summary = "each token by its length, to one learnt length"
    source = "Nguyen and Salazar, 2019, Transformers without Tears"
    options_type = ScaleNormOptions
    options: ScaleNormOptions

    def __init__(self, channels: int, options: Optional[ScaleNormOptions] = None) -> None:
        super().__init__()
        self.options = options or ScaleNormOptions()
        self.g = nn.Parameter(torch.full((1,), math.sqrt(channels)))

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Normalise ``x: (..., C)``; ``tokens`` is not needed and not read."""
        return _to_length(x, self.g, self.options.eps)


class _ToLength(torch.autograd.Function):
    """``g x / max(||x||, eps)``, in fewer passes than torch's operations one by one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, g: Tensor, eps: float) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)  # (..., 1)
        ctx.eps = eps
        ctx.save_for_backward(x, g, length)
        y: Tensor = wide * (g.to(wide.dtype) / length.clamp(min=eps))
        return y.to(x.dtype).detach()  # torch 2.11, compiling, loses the gradient of y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Optional[Tensor], ...]:
        x, g, length = ctx.saved_tensors
        grad, wide = grad.to(length.dtype), x.to(length.dtype)
        inverse = length.clamp(min=ctx.eps).reciprocal()
        scale = g.to(length.dtype) * inverse
        dx = grad * wide  # one buffer for all: a CPU takes longer to get another than to fill it
        dot = dx.sum(-1, keepdim=True) * inverse
        along = dot * scale * inverse * (length > ctx.eps)
        torch.mul(grad, scale, out=dx).addcmul_(wide, along, value=-1)
        return dx.to(x.dtype), dot.sum().view(1).to(g.dtype), None


_to_length: Callable[[Tensor, Tensor, float], Tensor] = _ToLength.apply
