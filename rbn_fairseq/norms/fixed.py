"""Stand-ins, which measure nothing: a multiply-add, the identity, Dynamic Tanh."""

from dataclasses import dataclass
from typing import Any, Optional, Self

import torch
from torch import Tensor, nn

from rbn_fairseq.norms.norm import Norm
from rbn_fairseq.norms.normalise import multiply_add
from rbn_fairseq.norms.options import NormOptions, option
from rbn_fairseq.norms.plan import NormPlace
from rbn_fairseq.norms.population import FullPrecision
from rbn_fairseq.norms.tokens import Tokens

__all__ = ["Affine", "DynamicTanh", "DynamicTanhOptions", "NoNorm"]


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
