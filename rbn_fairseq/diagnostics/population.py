"""Estimates of a layer's population statistics."""

import torch
from torch import Tensor

from rbn_fairseq.diagnostics.collect import LayerMoments

__all__ = ["ESTIMATES", "POPULATIONS", "population"]

ESTIMATES = ("mean-of-batches", "pooled")  # those that recalibration may put into a model
POPULATIONS = (*ESTIMATES, "ema", "running")


def population(
    moments: LayerMoments, estimate: str = "mean-of-batches", momentum: float = 0.05
) -> tuple[Tensor, Tensor]:
    """Estimate a layer's population mean and variance, each ``(C,)``, from batch statistics.

    ``mean-of-batches``: the arithmetic mean over batches of batch means and of batch variances,
    what the running average of the paper's Eq. 3 estimates. ``pooled``: mean and variance over
    all tokens (Chan et al., 1979), larger by the variance of the batch means. ``ema``: the moving
    average of Eq. 3 over the batches in a fixed random order, as training would meet them, begun
    at the first. ``running``: the statistics that the model has saved, what it infers with.

    Args:
        moments: what :func:`~rbn_fairseq.diagnostics.collect_moments` found.
        estimate: one of ``POPULATIONS``.
        momentum: weight of the new value in ``ema``.

    Raises:
        ValueError: for another name, or ``running`` where the norm keeps no statistics.
    """
    if estimate == "mean-of-batches":
        return moments.mean.mean(0), moments.var.mean(0)
    if estimate == "pooled":
        weight = (moments.count / moments.count.sum()).unsqueeze(1)  # (batches, 1)
        mean = (weight * moments.mean).sum(0)
        return mean, (weight * (moments.var + (moments.mean - mean).square())).sum(0)
    if estimate == "ema":
        order = torch.randperm(len(moments.count), generator=torch.Generator().manual_seed(0))
        mean, var = moments.mean[order[0]], moments.var[order[0]]
        for batch in order[1:]:
            mean = mean.lerp(moments.mean[batch], momentum)
            var = var.lerp(moments.var[batch], momentum)
        return mean, var
    if estimate == "running":
        if moments.running is None:
            raise ValueError("population `running`: the norm keeps no running statistics.")
        return moments.running
    raise ValueError(f"unknown population `{estimate}`. Known: {', '.join(POPULATIONS)}.")
