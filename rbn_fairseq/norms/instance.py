"""Instance normalisation: each channel over the real tokens of its own sentence."""

from dataclasses import dataclass, field
from typing import Optional

import torch
from torch import Tensor, nn

from rbn_fairseq.norms.checks import check_rules, positive
from rbn_fairseq.norms.tokens import ValidTokens

__all__ = ["InstanceNorm", "InstanceNormOptions"]


@dataclass(frozen=True)
class InstanceNormOptions:
    """Parameters of ``instance``.

    Raises:
        ValueError: if ``eps`` is not positive and finite.
    """

    eps: float = field(default=1e-5, metadata={"help": "added to the variance; positive"})

    def __post_init__(self) -> None:
        check_rules("instance", self, {"eps": positive(self.eps)})


class InstanceNorm(nn.Module):
    """Instance norm (Ulyanov et al., 2016, arXiv:1607.08022) that does not see padding.

    ``y = (x - mean) / sqrt(var + eps) * weight + bias`` with the mean and biased variance of a
    channel over the real tokens of one sentence. The same in training and in evaluation: there
    are no running statistics. A sentence of one token gives the bias.

    Statistics are two-pass, in fp32 or better whatever the input's dtype. Outputs at padding are
    0; gradients from and to padding are exactly zero.

    Not for a causal decoder: a position would see later tokens.

    Args:
        channels: number of channels C.
        options: eps.
    """

    def __init__(self, channels: int, options: Optional[InstanceNormOptions] = None) -> None:
        super().__init__()
        self.options = options or InstanceNormOptions()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, tokens: Optional[ValidTokens] = None) -> Tensor:
        """Normalise ``x: (T, B, C)``; same shape and dtype out.

        Args:
            x: activations.
            tokens: the real tokens among ``x``'s positions. ``None`` = all.

        Raises:
            ValueError: if ``x`` has other than three axes, or ``tokens`` describes another shape.
        """
        if x.dim() != 3:
            raise ValueError(
                "`instance` takes statistics over sentences and needs `x` of shape (T, B, C), but "
                f"its shape is {tuple(x.shape)}. Give one sentence as (T, 1, C)."
            )
        tokens = tokens or ValidTokens()
        tokens.check(x)
        dtype = torch.promote_types(x.dtype, torch.float32)
        wide, weight, bias = x.to(dtype), self.weight.to(dtype), self.bias.to(dtype)
        if tokens.valid is None:
            centred = wide - wide.mean(0)
            var = centred.square().mean(0)  # (B, C)
            y = torch.addcmul(bias, centred * torch.rsqrt(var + self.options.eps), weight)
            return y.to(x.dtype)
        padding = tokens.valid.logical_not().unsqueeze(-1)  # (T, B, 1)
        count = tokens.valid.sum(0, dtype=dtype).clamp(min=1).unsqueeze(-1)  # (B, 1)
        wide = wide.masked_fill(padding, 0)
        centred = (wide - wide.sum(0) / count).masked_fill(padding, 0)
        var = centred.square().sum(0) / count  # (B, C)
        y = torch.addcmul(bias, centred * torch.rsqrt(var + self.options.eps), weight)
        return y.masked_fill(padding, 0).to(x.dtype)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows."""
        return f"{self.weight.numel()}, eps={self.options.eps}"
