"""Group normalisation of single tokens, by torch."""

from dataclasses import dataclass, field
from typing import Optional

import torch
from torch import Tensor, nn

from rbn_fairseq.norms.checks import check_groups, check_rules, group_count, positive
from rbn_fairseq.norms.tokens import Tokens

__all__ = ["GroupNorm", "GroupNormOptions"]


@dataclass(frozen=True)
class GroupNormOptions:
    """Parameters of ``group``.

    Raises:
        ValueError: if a value is outside its range.
    """

    groups: int = field(
        default=0,
        metadata={"help": "number of groups of channels; 0 = number of attention heads"},
    )
    eps: float = field(default=1e-5, metadata={"help": "added to the variance; positive"})

    def __post_init__(self) -> None:
        check_groups("group", self.groups)
        check_rules("group", self, {"eps": positive(self.eps)})


class GroupNorm(nn.Module):
    """Group norm (Wu and He, 2018, Eqs. 1, 2, 6, 7) of each token for itself.

    ``y = (x - mean) / sqrt(var + eps) * weight + bias`` with the mean and biased variance of the
    token's group, one of G runs of C / G channels. With one group it is layer norm. Where images
    have pixels there is nothing: statistics over positions would let a decoder see later tokens.
    The same in training and in evaluation; computed in fp32 or better whatever the input's dtype.

    Args:
        channels: number of channels C.
        options: groups, eps.
        heads: number of groups where the options leave it open.

    Raises:
        ValueError: if the number of groups does not divide C.
    """

    def __init__(
        self, channels: int, options: Optional[GroupNormOptions] = None, heads: int = 1
    ) -> None:
        super().__init__()
        self.options = options or GroupNormOptions()
        self.groups = group_count("group", self.options.groups, channels, heads)
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Normalise ``x: (..., C)``; ``tokens`` is not needed and not read."""
        # Given half precision, torch keeps the statistics for the backward in half precision.
        dtype = torch.promote_types(x.dtype, torch.float32)
        rows = x.reshape(-1, x.shape[-1]).to(dtype)  # (tokens, C)
        # Not F.group_norm, which refuses a single token with one channel to a group.
        y = torch.group_norm(
            rows, self.groups, self.weight.to(dtype), self.bias.to(dtype), self.options.eps
        )
        return y.view(x.shape).to(x.dtype)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows."""
        return f"{self.weight.numel()}, groups={self.groups}, eps={self.options.eps}"
