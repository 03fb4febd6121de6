"""The layer scale that PowerNorm stands behind: groups of channels by their root mean square."""

from dataclasses import dataclass, field
from typing import Optional

import torch.nn.functional as F
from torch import Tensor, nn

from rbn_fairseq.norms.checks import check_groups, check_rules, group_count, positive
from rbn_fairseq.norms.tokens import Tokens

__all__ = ["GroupScale", "GroupScaleOptions"]


@dataclass(frozen=True)
class GroupScaleOptions:
    """Parameters of ``groupscale``.

    Raises:
        ValueError: if a value is outside its range.
    """

    groups: int = field(
        default=0,
        metadata={"help": "number of groups of channels; 0 = number of attention heads"},
    )
    eps: float = field(
        default=1e-5, metadata={"help": "added to the mean square, inside the root; positive"}
    )

    def __post_init__(self) -> None:
        check_groups("groupscale", self.groups)
        check_rules("groupscale", self, {"eps": positive(self.eps)})


class GroupScale(nn.Module):
    """LayerScale of PN+LS (Shen et al., 2020): each token's groups by their root mean square.

    ``y = x / sqrt(mean of the group's x^2 + eps)``, the groups being G runs of C / G channels.
    Without any parameter: it is meant for ``groupscale+power``, whose second norm has them. The
    same in training and in evaluation; statistics are in fp32 or better whatever the input's
    dtype.

    Args:
        channels: number of channels C.
        options: groups, eps.
        heads: number of groups where the options leave it open.

    Raises:
        ValueError: if the number of groups does not divide C.
    """

    def __init__(
        self, channels: int, options: Optional[GroupScaleOptions] = None, heads: int = 1
    ) -> None:
        super().__init__()
        self.options = options or GroupScaleOptions()
        self.groups = group_count("groupscale", self.options.groups, channels, heads)

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Normalise ``x: (..., C)``; ``tokens`` is not needed and not read."""
        grouped = x.unflatten(-1, (self.groups, -1))  # (..., G, C/G)
        return F.rms_norm(grouped, grouped.shape[-1:], eps=self.options.eps).flatten(-2)

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows."""
        return f"groups={self.groups}, eps={self.options.eps}"
