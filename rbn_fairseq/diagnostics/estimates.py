"""Estimates of population statistics, and recalibration of models by them."""

from collections.abc import Callable, Iterable, Mapping
from operator import call
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm

from rbn_fairseq.diagnostics.collect import LayerMoments, collect_moments
from rbn_fairseq.norms import PopulationNorm

__all__ = ["ESTIMATES", "POPULATIONS", "population", "recalibrate", "set_population"]

ESTIMATES = ("mean-of-batches", "pooled")  # those that recalibration may put into a model
POPULATIONS = (*ESTIMATES, "running")


def population(moments: LayerMoments, estimate: str = "mean-of-batches") -> tuple[Tensor, Tensor]:
    """Estimate a layer's population mean and variance, each ``(C,)``, from batch statistics.

    ``mean-of-batches``: the arithmetic mean over batches of batch means and of batch variances,
    what the running average of the paper's Eq. 3 estimates. ``pooled``: mean and variance over
    all tokens (Chan et al., 1979), larger by the variance of the batch means. ``running``:
    the statistics that the model has saved, what it infers with (where it has bins of lengths,
    those of all lengths, by which it does not).

    Args:
        moments: what :func:`~rbn_fairseq.diagnostics.collect_moments` found.
        estimate: one of ``POPULATIONS``.

    Raises:
        ValueError: for another name, or ``running`` where the norm keeps no statistics.
    """
    if estimate == "mean-of-batches":
        return moments.mean.mean(0), moments.var.mean(0)
    if estimate == "pooled":
        weight = (moments.count / moments.count.sum()).unsqueeze(1)  # (batches, 1)
        mean = (weight * moments.mean).sum(0)
        return mean, (weight * (moments.var + (moments.mean - mean).square())).sum(0)
    if estimate == "running":
        if moments.running is None:
            raise ValueError("population `running`: the norm keeps no running statistics.")
        return moments.running
    raise ValueError(f"unknown population `{estimate}`. Known: {', '.join(POPULATIONS)}.")


@torch.no_grad()
def set_population(
    norms: Mapping[str, nn.Module], layers: Mapping[str, LayerMoments], estimate: str
) -> None:
    """Replace the population statistics of norms by an estimate from batch statistics.

    Args:
        norms: by name, this package's or torch's own with running statistics.
        layers: their batch statistics, by the same names.
        estimate: ``mean-of-batches`` or ``pooled``, as in
            :func:`~rbn_fairseq.diagnostics.population`.

    Raises:
        ValueError: for another estimate, if a layer saw no token, or its statistics are not
            finite; all norms are then as before.
    """
    if estimate not in ESTIMATES:
        raise ValueError(f"unknown estimate `{estimate}`. Known: {', '.join(ESTIMATES)}.")
    estimates = {}
    for name in norms:
        if name not in layers:
            raise ValueError(f"No token reached the norm `{name}`: are there any batches?")
        mean, var = estimates[name] = population(layers[name], estimate)
        if not (mean.isfinite().all() and var.isfinite().all()):
            raise ValueError(f"The statistics of `{name}` are not finite: the weights diverged.")
    for name, norm in norms.items():
        bins, (mean, var) = layers[name].bins, estimates[name]
        if isinstance(norm, PopulationNorm):
            norm.population.set(mean, var, None if bins is None else bins.estimate(estimate))
        elif isinstance(norm, TorchBatchNorm):
            norm.get_buffer("running_mean").copy_(mean)
            norm.get_buffer("running_var").copy_(var)


def recalibrate(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Callable[[nn.Module, Any], Any] = call,
    estimate: str = "mean-of-batches",
    dropout: bool = False,
) -> None:
    """Replace the population statistics of every norm that has them by those of ``batches``.

    Needed wherever weights change without training, as when checkpoints are averaged: the
    average of running variances is not the variance under the averaged weights. The norms
    normalise with batch statistics meanwhile. For ``power``, ``mabn`` and ``un`` it is the running
    quadratic mean that is replaced; what their backward remembers stays. torch's own batch norms,
    which keep unbiased variances, get the biased ones that training divides by.

    Args:
        model: any module with such norms, this package's or torch's own.
        batches: training batches, what ``forward`` takes.
        forward: runs the model on a batch; without it ``model(batch)``.
        estimate: ``mean-of-batches`` or ``pooled``, as in
            :func:`~rbn_fairseq.diagnostics.population`.
        dropout: leave it and all else that training mode means on, as while running statistics are
            gathered; masks are drawn by torch's random number generators, which are left as they
            were.

    Raises:
        ValueError: for another estimate, if the model has no such norm, a layer saw no token, or a
            layer's statistics are not finite.
    """
    norms = {name: part for name, part in model.named_modules() if _has_population(part)}
    if not norms:
        raise ValueError("The model has no norm with running statistics: nothing to estimate.")
    set_population(norms, collect_moments(model, batches, forward, dropout, norms), estimate)


def _has_population(norm: nn.Module) -> bool:
    tracked = isinstance(norm, TorchBatchNorm) and norm.running_mean is not None
    return tracked or isinstance(norm, PopulationNorm)
