"""Group normalisation of single tokens, and the layer scale that PowerNorm stands behind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rbn_fairseq.norms.norm import Norm
from rbn_fairseq.norms.normalise import gradient_sums
from rbn_fairseq.norms.options import NormOptions, option
from rbn_fairseq.norms.plan import NormPlace
from rbn_fairseq.norms.rms import divide_by_rms
from rbn_fairseq.norms.tokens import Tokens

__all__ = ["GroupNorm", "GroupNormOptions", "GroupScale", "GroupScaleOptions"]


@dataclass(frozen=True)
class GroupScaleOptions(NormOptions, norm="groupscale"):
    """Parameters of ``groupscale``."""

    groups: int = option(
        0, "number of groups of channels; 0 = number of attention heads", range="[0, inf)"
    )
    eps: float = option(1e-5, "added to the mean square, inside the root", range="(0, inf)")


@dataclass(frozen=True)
class GroupNormOptions(GroupScaleOptions, norm="group"):
    """Parameters of ``group``."""

    eps: float = option(1e-5, "added to the variance", range="(0, inf)")


class GroupScale(Norm):
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

    name = "groupscale"
    summary = "each group of a token's channels by its root mean square, without gain or bias"
    source = "Shen et al., 2020, PowerNorm"
    options_type = GroupScaleOptions
    options: GroupScaleOptions

    def __init__(
        self, channels: int, options: Optional[GroupScaleOptions] = None, heads: int = 1
    ) -> None:
        super().__init__()
        self.options = options or self.options_type()
        self.groups = _group_count(self.options, channels, heads)

    @classmethod
    def build(cls, place: NormPlace, options: Any) -> Self:
        """Build the norm of a place."""
        return cls(place.channels, options, place.heads)

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Normalise ``x: (..., C)``; ``tokens`` is not needed and not read."""
        grouped = x.unflatten(-1, (self.groups, -1))  # (..., G, C/G)
        return divide_by_rms(grouped, None, self.options.eps).flatten(-2)


class GroupNorm(GroupScale):
    """Group norm (Wu and He, 2018, Eqs. 1, 2, 6, 7) of each token for itself.

    ``y = (x - mean) / sqrt(var + eps) * weight + bias`` with the mean and biased variance of the
    token's group, one of G runs of C / G channels. With one group it is layer norm. Where images
    have pixels there is nothing: statistics over positions would let a decoder see later tokens.
    The same in training and in evaluation; computed in fp32 or better whatever the input's dtype.
    Its arguments and their errors are those of :class:`GroupScale`.
    """

    name = "group"
    summary = "each group of a token's channels by its mean and variance"
    source = "Wu and He, 2018, Group Normalization"
    options_type = GroupNormOptions

    def __init__(
        self, channels: int, options: Optional[GroupNormOptions] = None, heads: int = 1
    ) -> None:
        super().__init__(channels, options, heads)
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, tokens: Optional[Tokens] = None) -> Tensor:
        """Normalise ``x: (..., C)``; ``tokens`` is not needed and not read."""
        # Given half precision, torch keeps the statistics for the backward in half precision.
        dtype = torch.promote_types(x.dtype, torch.float32)
        rows = x.reshape(-1, x.shape[-1]).to(dtype)  # (tokens, C)
        weight, bias, eps = self.weight.to(dtype), self.bias.to(dtype), self.options.eps
        if x.is_cuda:  # F.group_norm refuses a single token with one channel to a group
            y = torch.group_norm(rows, self.groups, weight, bias, eps)
        else:  # where that takes six times as long as layer norm
            y = _normalise(rows, weight, bias, self.groups, eps)
        return y.view(x.shape).to(x.dtype)


class _Normalise(torch.autograd.Function):
    """Group norm by torch's kernels for layer norm, whose tokens are the groups."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
    ) -> Tensor:
        grouped = rows.reshape(len(rows), groups, rows.shape[1] // groups)  # (N, G, C/G)
        z, *statistics = torch.native_layer_norm(grouped, grouped.shape[2:], None, None, eps)
        z = z.view(rows.shape)
        ctx.save_for_backward(grouped, z, weight, *statistics)
        return torch.addcmul(bias, z, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Optional[Tensor], ...]:
        grouped, z, weight, *statistics = ctx.saved_tensors
        dbias, dweight = gradient_sums(grad, z)
        dx, *_ = torch.ops.aten.native_layer_norm_backward(
            (grad * weight).view(grouped.shape), grouped, grouped.shape[2:], *statistics,
            None, None, [True, False, False],
        )  # fmt: skip
        return dx.view(z.shape), dweight, dbias, None, None


_normalise: Callable[..., Tensor] = _Normalise.apply


def _group_count(options: Any, channels: int, heads: int) -> int:
    """Return G, the number of groups of ``channels`` channels: ``groups``, or ``heads`` for 0.

    Raises:
        ValueError: if G does not divide C.
    """
    count: int = options.groups or heads
    if channels % count:
        origin = f"is {count}" if options.groups else f"is 0, the {count} attention heads"
        raise ValueError(
            f"`groups` ({options.flag('groups')}) must divide the number of channels, C = "
            f"{channels}, but {origin}. Give one that does."
        )
    return count
