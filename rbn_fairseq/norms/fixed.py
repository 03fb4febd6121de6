"""Norms that normalise nothing: one multiply-add, and the identity."""

from typing import Any, Optional, Self

import torch
from torch import Tensor

from rbn_fairseq.norms.norm import Norm
from rbn_fairseq.norms.normalise import multiply_add
from rbn_fairseq.norms.options import NormOptions
from rbn_fairseq.norms.plan import NormPlace
from rbn_fairseq.norms.population import FullPrecision
from rbn_fairseq.norms.tokens import Tokens

__all__ = ["Affine", "NoNorm"]


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
