"""Dynamic Tanh: a squashing function in the place of a norm."""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor, nn

from rbn_fairseq.norms.norm import Norm
from rbn_fairseq.norms.options import NormOptions, option
from rbn_fairseq.norms.tokens import Tokens

__all__ = ["DynamicTanh", "DynamicTanhOptions"]


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
