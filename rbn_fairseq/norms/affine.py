"""One multiply-add: what a norm with running statistics is in evaluation."""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

from rbn_fairseq.norms import kernels
from rbn_fairseq.norms.buffers import FullPrecision
from rbn_fairseq.norms.tokens import Tokens

__all__ = ["Affine", "AffineOptions", "multiply_add"]


def multiply_add(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return ``x * scale + shift``, computed in the precision of the scale, in the dtype of ``x``.

    Args:
        x: ``(..., C)``.
        scale: ``(C,)``, fp32 or fp64; ``(N, C)`` where rows ``(N, C)`` have their own.
        shift: ``(C,)``, likewise.
    """
    # Where the dtypes differ torch writes an fp32 tensor first; for gradients, and for those who
    # record operations, it must do it all.
    recorded = (
        torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[no-untyped-call, attr-defined]
    )
    if x.dtype == scale.dtype or recorded or not kernels.serve(x, scale, shift):
        return torch.addcmul(shift, x, scale).to(x.dtype)
    from rbn_fairseq.norms.kernels.affine import transform

    return transform(x.contiguous().view(-1, x.shape[-1]), scale, shift).view(x.shape)


@dataclass(frozen=True)
class AffineOptions:
    """``affine`` has no parameters."""


class Affine(FullPrecision):
    """``y = x * scale + shift`` for every channel, in fp32 or better whatever the input's dtype.

    ``rbn fold`` leaves it where a norm with running statistics cannot vanish into a linear layer.
    Scale and shift are buffers: they do not train.

    Args:
        channels: number of channels C.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(channels))
        self.register_buffer("shift", torch.zeros(channels))

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Scale and shift ``x: (..., C)``; ``tokens`` is not needed and not read."""
        return multiply_add(x, self.scale, self.shift)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows."""
        return str(self.scale.numel())
