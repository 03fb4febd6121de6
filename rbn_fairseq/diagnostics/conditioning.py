"""Layer-wise conditioning: how evenly features fill their channels (paper, section 4.3)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Conditioning", "conditioning"]

_ROWS = 8192  # tokens that are fp64 at a time


class Conditioning(NamedTuple):
    """Singular values of features ``X: (tokens, channels)``, summarised.

    Attributes:
        c_max: the largest singular value, in the unit of X; grows with sqrt(tokens).
        c_p: by p in per cent, the largest singular value divided by that of place ``ceil(p d)``
            among the d = channels in descending order: 1 = equal, infinite = X has lower rank.
    """

    c_max: float
    c_p: dict[int, float]


def conditioning(x: Tensor, percents: Sequence[int] = (50, 80)) -> Conditioning:
    """Compute ``C_p = sigma_1 / sigma_ceil(p d)`` and ``C_max = lambda_max((X^T X)^(1/2))``.

    From the eigenvalues of ``X^T X``, a symmetric matrix, in fp64 whatever the dtype of X. An
    eigenvalue of at most ``d * eps`` of the largest (eps of fp64) is zero to working precision, so
    that C_p is infinite above about 3e6 for d = 512, and always where tokens are fewer than
    ``ceil(p d)``. Memory: 8 d^2 bytes and 8192 tokens in fp64. On a GPU, the host waits.

    The authors' code squares, and averages over all B*T positions, padding included:
    ``c_p(code) = C_p^2``, ``c_max(code) = C_max^2 / (B*T)``. Where its eigenvalues fail, as on any
    torch >= 2, all of them are 1 there.

    Args:
        x: ``(tokens, channels)``, real tokens only; not centred.
        percents: each p in per cent, 1 to 100.

    Returns:
        NaN throughout where X has an element that is not finite; C_max 0 and C_p NaN where X is
        empty or zero.

    Raises:
        ValueError: if X is not a matrix, or p outside its range.
    """
    if x.dim() != 2:
        raise ValueError(f"`x` must have shape (tokens, channels), but has {tuple(x.shape)}.")
    for percent in percents:
        if not 1 <= percent <= 100:
            raise ValueError(f"`percents` must lie between 1 and 100, but one is {percent}.")
    channels = x.shape[1]
    scale = x.detach().abs().max().item() if x.numel() else 0.0
    if scale == 0 or not math.isfinite(scale):
        return Conditioning(math.nan if scale else 0.0, dict.fromkeys(percents, math.nan))

    gram = torch.zeros(channels, channels, dtype=torch.float64, device=x.device)
    for rows in x.detach().split(_ROWS):
        scaled = rows.double() / scale  # squares can neither overflow nor vanish
        gram.addmm_(scaled.t(), scaled)
    eigenvalues = torch.linalg.eigvalsh(gram).flip(0)
    zero = eigenvalues <= channels * torch.finfo(torch.float64).eps * eigenvalues[0]
    sigma = eigenvalues.sqrt().masked_fill(zero, 0)
    places = [-(-percent * channels // 100) - 1 for percent in percents]  # ceil(p d), from 0
    ratios = (sigma[0] / sigma[places]).tolist()
    return Conditioning(scale * sigma[0].item(), dict(zip(percents, ratios, strict=True)))
