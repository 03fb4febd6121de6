"""Deviation of batch statistics from population statistics (paper, Figure 2)."""

from typing import NamedTuple

from rbn_fairseq.diagnostics.collect import LayerMoments
from rbn_fairseq.diagnostics.population import population

__all__ = ["Deviation", "deviation"]


class Deviation(NamedTuple):
    """Relative deviation of batch mean and batch variance, as fractions: 0.01 is 1 %."""

    mean: float
    var: float


def deviation(moments: LayerMoments, estimate: str = "mean-of-batches") -> Deviation:
    """Compute ``E ||mu_B - mu|| / ||mu||`` and ``E ||v_B - v|| / ||v||``, v a variance.

    The paper shows the "deviation of batch mean/variance to population mean/variance" without a
    formula. This is one reading: each relative to the population's own statistic, and of the
    variance. The other reading is TID (:func:`~rbn_fairseq.diagnostics.tid`), relative to
    ``||sigma||``, and of the standard deviation. A population mean of 0 makes it infinite.
    """
    mean, var = population(moments, estimate)
    return Deviation(
        ((moments.mean - mean).norm(dim=1) / mean.norm()).mean().item(),
        ((moments.var - var).norm(dim=1) / var.norm()).mean().item(),
    )
