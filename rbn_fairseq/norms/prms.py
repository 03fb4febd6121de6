"""pRMSNorm: RMSNorm with the root mean square of some of the channels."""

import math
from dataclasses import dataclass, field
from typing import Optional

import torch
from torch import Tensor, nn

from rbn_fairseq.norms.checks import check_rules, positive
from rbn_fairseq.norms.tokens import Tokens

__all__ = ["PartialRMSNorm", "PartialRMSNormOptions"]


@dataclass(frozen=True)
class PartialRMSNormOptions:
    """Parameters of ``prms``.

    Raises:
        ValueError: if a value is outside its range.
    """

    p: float = field(
        default=0.0625,
        metadata={"help": "part of the channels, the first ones, that is measured; in (0, 1]"},
    )
    eps: float = field(
        default=1e-5, metadata={"help": "added to the mean square, inside the root; positive"}
    )

    def __post_init__(self) -> None:
        part = (0 < self.p <= 1, "in (0, 1], as a part of the channels")
        check_rules("prms", self, {"p": part, "eps": positive(self.eps)})


class PartialRMSNorm(nn.Module):
    """pRMSNorm (Zhang and Sennrich, 2019): RMSNorm that measures the first channels alone.

    ``y = x / sqrt(mean of the first k channels' x^2 + eps) * weight`` with ``k = int(C * p)``: all
    channels are divided, the first k are measured. A gain and no bias. The same in training and
    in evaluation; computed in fp32 or better whatever the input's dtype.

    Args:
        channels: number of channels C.
        options: p, eps.

    Raises:
        ValueError: if p of the channels is less than one channel.
    """

    def __init__(self, channels: int, options: Optional[PartialRMSNormOptions] = None) -> None:
        super().__init__()
        self.options = options or PartialRMSNormOptions()
        self.measured = int(channels * self.options.p)
        if self.measured < 1:
            least = math.ceil(1e6 / channels) / 1e6
            raise ValueError(
                f"`p` (--norm-prms-p) must leave at least one channel to measure, but {channels} * "
                f"{self.options.p} is less than 1. Give at least {least:g}, or use `rms`."
            )
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Normalise ``x: (..., C)``; ``tokens`` is not needed and not read."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        square = wide[..., : self.measured].square().mean(-1, keepdim=True)  # (..., 1)
        y = wide * torch.rsqrt(square + self.options.eps) * self.weight.to(wide.dtype)
        return y.to(x.dtype)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows."""
        return f"{self.weight.numel()}, measured={self.measured}, eps={self.options.eps}"
