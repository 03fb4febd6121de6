"""RMSNorm: layer norm without the mean."""

import math
from dataclasses import dataclass, field
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rbn_fairseq.norms.checks import check_rules, positive
from rbn_fairseq.norms.tokens import Tokens

__all__ = ["RMSNorm", "RMSNormOptions"]


@dataclass(frozen=True)
class RMSNormOptions:
    """Parameters of ``rms``.

    Raises:
        ValueError: if a value is outside its range.
    """

    eps: float = field(
        default=1e-5, metadata={"help": "keeps the root mean square away from 0; positive"}
    )
    eps_mode: str = field(
        default="inside",
        metadata={
            "help": "divide by sqrt(mean(x^2) + eps) with `inside`, by sqrt(mean(x^2)) + eps with "
            "`outside`, as the paper's own code does (there with eps 1e-8)",
            "choices": ("inside", "outside"),
        },
    )

    def __post_init__(self) -> None:
        modes = (self.eps_mode in ("inside", "outside"), "`inside` or `outside`")
        check_rules("rms", self, {"eps": positive(self.eps), "eps_mode": modes})


class RMSNorm(nn.Module):
    """RMSNorm (Zhang and Sennrich, 2019, Eq. 4): each token by its channels' root mean square.

    ``y = x / sqrt(mean(x^2) + eps) * weight``, or with eps outside of the root. As in the paper
    there is a gain and no bias. The same in training and in evaluation; statistics are in fp32
    or better whatever the input's dtype.

    Args:
        channels: number of channels C.
        options: eps, eps mode.
    """

    def __init__(self, channels: int, options: Optional[RMSNormOptions] = None) -> None:
        super().__init__()
        self.options = options or RMSNormOptions()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Normalise ``x: (..., C)``; ``tokens`` is not needed and not read."""
        eps, weight = self.options.eps, self.weight
        if self.options.eps_mode == "inside":
            # torch computes in fp32 inside, but wants one dtype for both.
            dtype = torch.promote_types(x.dtype, weight.dtype)
            y = F.rms_norm(x.to(dtype), weight.shape, weight.to(dtype), eps)
            return y.to(x.dtype)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        # Not square().mean().sqrt(): at x = 0, which padding is, its gradient is not a number.
        rms: Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True) / math.sqrt(x.shape[-1])
        return (wide / (rms + eps) * weight.to(wide.dtype)).to(x.dtype)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows."""
        return f"{self.weight.numel()}, eps={self.options.eps} ({self.options.eps_mode})"
