"""Group normalisation of single tokens, and the layer scale that PowerNorm stands behind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rbn_fairseq.norms.norm import Norm
from rbn_fairseq.norms.normalise import by_blocks, gradient_sums, on_wide_rows
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
        given = self.options.groups
        self.groups: int = given or heads
        if channels % self.groups:
            origin = f"is {given}" if given else f"is 0, the {heads} attention heads"
            raise ValueError(
                f"`groups` ({self.options.flag('groups')}) must divide the number of channels, C = "
                f"{channels}, but {origin}. Give one that does."
            )

    @classmethod
    def build(cls, place: NormPlace, options: Any) -> Self:
        """Build the norm of a place, which tells the number of attention heads, too."""
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
        # On a GPU by torch's kernel, which on a CPU takes six times as long as layer norm; not in
        # half precision, in which it would keep the statistics for the backward.
        function = torch.group_norm if x.is_cuda else _normalise
        return on_wide_rows(function, x, self.groups, self.weight, self.bias, self.options.eps)


class _Normalise(torch.autograd.Function):
    """Group norm of rows in fp32 or better, whose backward is that of a layer norm of groups."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        # Not by torch's layer norm, which takes twice as long for groups of 64 channels.
        x = rows.unflatten(1, (groups, -1))  # (N, G, C/G)
        y, z = torch.empty_like(rows), torch.empty_like(x)
        mean, inverse = x.new_empty(*x.shape[:2], 1), x.new_empty(*x.shape[:2], 1)
        for out, normed, part, m, i in by_blocks(y, z, x, mean, inverse):
            torch.mean(part, 2, keepdim=True, out=m)
            torch.sub(part, m, out=normed)
            var = torch.linalg.vector_norm(normed, dim=2, keepdim=True).square() / x.shape[2]
            torch.rsqrt(var + eps, out=i)
            torch.addcmul(bias, normed.mul_(i).flatten(1), weight, out=out)
        ctx.save_for_backward(x, z, weight, mean, inverse)
        return y.detach()  # torch 2.11, compiling, loses the gradient of y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Optional[Tensor], ...]:
        x, z, weight, *statistics = ctx.saved_tensors
        dbias, dweight = gradient_sums(grad, z.flatten(1))
        dx, *_ = torch.ops.aten.native_layer_norm_backward(
            (grad * weight).view(x.shape), x, x.shape[2:], *statistics,
            None, None, [True, False, False],
        )  # fmt: skip
        return dx.flatten(1), None, dweight, dbias, None


_normalise: Callable[..., Tensor] = _Normalise.apply
