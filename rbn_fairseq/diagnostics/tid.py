"""Training Inference Discrepancy (paper, Definition 1)."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from rbn_fairseq.diagnostics.collect import LayerMoments

__all__ = ["POPULATIONS", "TID", "average_tid", "population", "tid"]

POPULATIONS = ("mean-of-batches", "pooled")
_TINY = 1e-12  # the paper's "small positive constant" in the denominator; its value is not given


class TID(NamedTuple):
    """Mean TID and Variance TID (paper, Eq. 5), as fractions: 0.01 is 1 %."""

    mean: float
    var: float


def population(moments: LayerMoments, estimate: str = "mean-of-batches") -> tuple[Tensor, Tensor]:
    """Estimate a layer's population mean and variance, each ``(C,)``, from batch statistics.

    ``mean-of-batches``: the arithmetic mean over batches of batch means and of batch variances,
    what the running average of the paper's Eq. 3 estimates. ``pooled``: mean and variance over
    all tokens (Chan et al., 1979), larger by the variance of the batch means.

    Raises:
        ValueError: for another name.
    """
    if estimate == "mean-of-batches":
        return moments.mean.mean(0), moments.var.mean(0)
    if estimate == "pooled":
        weight = (moments.count / moments.count.sum()).unsqueeze(1)  # (batches, 1)
        mean = (weight * moments.mean).sum(0)
        return mean, (weight * (moments.var + (moments.mean - mean).square())).sum(0)
    raise ValueError(f"unknown population `{estimate}`. Known: {', '.join(POPULATIONS)}.")


def tid(moments: LayerMoments, estimate: str = "mean-of-batches") -> TID:
    """Compute a layer's TID over its batches, each batch counting the same.

    ``Mean TID = E ||mu_B - mu|| / ||sigma||``, ``Variance TID = E ||sigma_B - sigma|| / ||sigma||``
    (paper, Eq. 5; sigma is a standard deviation).
    """
    mean, var = population(moments, estimate)
    std = var.sqrt()
    scale = std.norm() + _TINY
    return TID(
        ((moments.mean - mean).norm(dim=1) / scale).mean().item(),
        ((moments.var.sqrt() - std).norm(dim=1) / scale).mean().item(),
    )


def average_tid(layers: Mapping[str, TID]) -> TID:
    """Return the average over layers (paper, Figure 4)."""
    return TID(*(sum(values) / len(layers) for values in zip(*layers.values(), strict=True)))
