"""One multiply-add: what a norm with running statistics is in evaluation."""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

from rbn_fairseq.norms.buffers import FullPrecision
from rbn_fairseq.norms.tokens import ValidTokens

__all__ = ["Affine", "AffineOptions"]


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

    def forward(self, x: Tensor, tokens: Optional[ValidTokens] = None) -> Tensor:
        """Scale and shift ``x: (..., C)``; ``tokens`` is not needed and not read."""
        return torch.addcmul(self.shift, x, self.scale).to(x.dtype)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows."""
        return str(self.scale.numel())
