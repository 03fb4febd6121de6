"""Where running statistics are, how far they have moved, and channels that stand out."""

from typing import NamedTuple

from torch import Tensor

__all__ = ["Distance", "distance", "near_eps", "spread"]


class Distance(NamedTuple):
    """How far one pair of statistics lies from another, in units of the population's ||sigma||."""

    mean: float
    std: float


def distance(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], var: Tensor) -> Distance:
    """Compute ``||mu - mu'|| / ||sigma||`` and ``||s - s'|| / ||sigma||``, s a standard deviation.

    Between the running statistics of two epochs it is their drift; between the running and the
    measured ones, their lag.

    Args:
        one: mean and variance, each ``(C,)``.
        other: the same.
        var: the population's variance, ``(C,)``, whose root is sigma.
    """
    scale = var.sqrt().norm()
    return Distance(
        ((one[0] - other[0]).norm() / scale).item(),
        ((one[1].sqrt() - other[1].sqrt()).norm() / scale).item(),
    )


def near_eps(var: Tensor, eps: float) -> float:
    """Return the share of channels whose variance is below 10 eps: there eps sets the scale."""
    return (var < 10 * eps).double().mean().item()


def spread(var: Tensor) -> float:
    """Return the largest channel's standard deviation by the median one: outlier channels."""
    std = var.sqrt()
    return (std.max() / std.median()).item()
