"""RMSNorm, layer norm without the mean, and pRMSNorm, which measures some channels alone."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rbn_fairseq.norms.norm import AffineNorm
from rbn_fairseq.norms.normalise import by_blocks, on_wide_rows
from rbn_fairseq.norms.options import NormOptions, option
from rbn_fairseq.norms.tokens import Tokens

__all__ = ["PartialRMSNorm", "PartialRMSNormOptions", "RMSNorm", "RMSNormOptions", "divide_by_rms"]


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
    """

    name = "rms"
    summary = "each token by the root mean square of its channels"
    source = "Zhang and Sennrich, 2019, RMSNorm"
    options_type = RMSNormOptions
    options: RMSNormOptions
    has_bias = False

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Normalise ``x: (..., C)``; ``tokens`` is not needed and not read."""
        outside = self.options.eps_mode == "outside"
        return divide_by_rms(x, self.weight, self.options.eps, outside=outside)


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
        return divide_by_rms(x, self.weight, self.options.eps, self.measured)


class _DivideByRMS(torch.autograd.Function):
    """The map of :func:`divide_by_rms`, for rows in fp32 or better.

    With f the inverse of what a row is divided by, root the root mean square of its first k
    channels, and g the gradient that arrives,

        dx = f weight g - x (f^2 / (k rms)) sum(g weight x),

    the second term for those channels alone, and rms = 1 / f, or root where eps is outside.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,  # (N, C)
        weight: Optional[Tensor],
        eps: float,
        measured: int,
        outside: bool,
    ) -> Tensor:
        # Not square().mean(), which writes a tensor.
        root = torch.linalg.vector_norm(rows[:, :measured], dim=1, keepdim=True)
        root = root / math.sqrt(measured)  # (N, 1)
        inverse = (root + eps).reciprocal() if outside else (root.square() + eps).rsqrt()
        # At 0, which padding is, the second term is 0.
        rms = root.where(root > 0, 1) if outside else inverse.reciprocal()
        ctx.measured = measured
        ctx.save_for_backward(rows, weight, inverse, rms)
        y = torch.empty_like(rows)
        for out, x, by in by_blocks(y, rows, inverse):
            torch.mul(x, by, out=out)
            if weight is not None:
                out.mul_(weight)
        return y.detach()  # torch 2.11, compiling, loses the gradient of y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Optional[Tensor], ...]:
        (rows, weight, inverse, rms), k = ctx.saved_tensors, ctx.measured
        dx, dweight = torch.empty_like(rows), None if weight is None else torch.zeros_like(weight)
        with torch.autocast("cuda" if grad.is_cuda else "cpu", enabled=False):  # of products
            for out, g, x, by, root in by_blocks(dx, grad, rows, inverse, rms):
                torch.mul(g, x, out=out)
                if weight is None or dweight is None:
                    dot = out.sum(1, keepdim=True)
                    torch.mul(g, by, out=out)
                else:
                    dot = (out @ weight).unsqueeze(1)
                    dweight += by.squeeze(1) @ out
                    torch.mul(g, weight, out=out).mul_(by)
                out[:, :k].addcmul_(x[:, :k], dot / root / k * by.square(), value=-1)
        return dx, dweight, None, None, None


_divide: Callable[..., Tensor] = _DivideByRMS.apply


def divide_by_rms(
    x: Tensor,
    weight: Optional[Tensor],
    eps: float,
    measured: Optional[int] = None,
    outside: bool = False,
) -> Tensor:
    """Return ``x / sqrt(mean(x^2) + eps) * weight``, computed in fp32 or better.

    Args:
        x: ``(..., C)``.
        weight: ``(C,)``; ``None`` = 1.
        eps: keeps away from 0.
        measured: number of channels, the first ones, whose mean it is; ``None`` = all.
        outside: divide by ``sqrt(mean(x^2)) + eps``.
    """
    channels = int(x.shape[-1])
    if x.is_cuda and measured is None and not outside:  # torch has a kernel for it
        # It computes in fp32 inside, but wants one dtype for both.
        dtype = x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
        scale = None if weight is None else weight.to(dtype)
        return F.rms_norm(x.to(dtype), (channels,), scale, eps).to(x.dtype)
    return on_wide_rows(_divide, x, weight, eps, measured or channels, outside)
