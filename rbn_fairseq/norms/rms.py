"""RMSNorm, layer norm without the mean, and pRMSNorm, which measures some channels alone."""

import math
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from rbn_fairseq.norms.norm import AffineNorm
from rbn_fairseq.norms.options import NormOptions, option
from rbn_fairseq.norms.tokens import Tokens

__all__ = ["PartialRMSNorm", "PartialRMSNormOptions", "RMSNorm", "RMSNormOptions"]


@dataclass(frozen=True)
class RMSNormOptions(NormOptions, norm="rms"):
    """Parameters of ``rms``."""

    eps: float = option(1e-5, "keeps the root mean square away from 0", range="(0, inf)")
    eps_mode: str = option(
        "inside",
        "divide by sqrt(mean(x^2) + eps) with `inside`, by sqrt(mean(x^2)) + eps with `outside`, "
        "as the paper's own code does (there with eps 1e-8)",
        choices=("inside", "outside"),
    )


class RMSNorm(AffineNorm):
    """RMSNorm (Zhang and Sennrich, 2019, Eq. 4): each token by its channels' root mean square.

    ``y = x / sqrt(mean(x^2) + eps) * weight``, or with eps outside of the root. As in the paper
    there is a gain and no bias. The same in training and in evaluation; statistics are in fp32
    or better whatever the input's dtype.

    Args:
        channels: number of channels C.
        options: eps, eps mode.
    """

    name = "rms"
    summary = "each token by the root mean square of its channels"
    source = "Zhang and Sennrich, 2019, RMSNorm"
    options_type = RMSNormOptions
    options: RMSNormOptions
    has_bias = False

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


@dataclass(frozen=True)
class PartialRMSNormOptions(NormOptions, norm="prms"):
    """Parameters of ``prms``."""

    p: float = option(
        0.0625, "part of the channels, the first ones, that is measured", range="(0, 1]"
    )
    eps: float = option(1e-5, "added to the mean square, inside the root", range="(0, inf)")


class PartialRMSNorm(AffineNorm):
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

    name = "prms"
    summary = "each token by the root mean square of its first channels"
    source = "Zhang and Sennrich, 2019, pRMSNorm"
    options_type = PartialRMSNormOptions
    options: PartialRMSNormOptions
    has_bias = False

    def __init__(self, channels: int, options: Optional[PartialRMSNormOptions] = None) -> None:
        super().__init__(channels, options)
        self.measured = int(channels * self.options.p)
        if self.measured < 1:
            raise ValueError(
                f"`p` (--norm-prms-p) must leave at least one channel to measure, but {channels} * "
                f"{self.options.p} is less than 1. Give more than 1 / {channels}, or use `rms`."
            )

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Normalise ``x: (..., C)``; ``tokens`` is not needed and not read."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        square = wide[..., : self.measured].square().mean(-1, keepdim=True)  # (..., 1)
        y = wide * torch.rsqrt(square + self.options.eps) * self.weight.to(wide.dtype)
        return y.to(x.dtype)
