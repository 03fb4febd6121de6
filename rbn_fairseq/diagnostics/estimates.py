"""Estimates of population statistics, and recalibration of models by them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from rbn_fairseq.diagnostics.collect import LayerMoments, call, collect_moments, population_norms
from rbn_fairseq.norms import PopulationNorm

__all__ = ["ESTIMATES", "POPULATIONS", "population", "recalibrate", "set_population"]

ESTIMATES = ("mean-of-batches", "pooled")  # those that recalibration may put into a model
POPULATIONS = (*ESTIMATES, "running")


def population(moments: LayerMoments, estimate: str = "mean-of-batches") -> tuple[Tensor, Tensor]:
    """Estimate a layer's population mean and variance, each ``(C,)``, from batch statistics.

    ``mean-of-batches``: the arithmetic mean over batches of batch means and of batch variances,
    what the running average of the paper's Eq. 3 estimates. ``pooled``: mean and variance over
    all tokens (Chan et al., 1979), larger by the variance of the batch means. ``running``:
    the statistics that the model has saved, what it infers with.

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


def set_population(
    norms: Mapping[str, PopulationNorm], layers: Mapping[str, LayerMoments], estimate: str
) -> None:
    """Replace the population statistics of norms by an estimate from batch statistics.

    Args:
        norms: by name.
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
        bins = layers[name].bins
        norm.population.set(*estimates[name], None if bins is None else bins.estimate(estimate))


def recalibrate(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Callable[[nn.Module, Any], Any] = call,
    estimate: str = "mean-of-batches",
) -> int:
    """Replace the population statistics of every norm that has them by those of ``batches``.

    Needed wherever weights change without training, as when checkpoints are averaged: the
    average of running variances is not the variance under the averaged weights. The norms
    normalise with batch statistics meanwhile, and dropout is off. For ``power`` and ``mabn`` it
    is the running quadratic mean that is replaced; what their backward remembers stays.

    Args:
        model: any module with such norms.
        batches: training batches, what ``forward`` takes.
        forward: runs the model on a batch; without it ``model(batch)``.
        estimate: ``mean-of-batches`` or ``pooled``, as in
            :func:`~rbn_fairseq.diagnostics.population`.

    Returns:
        The number of batches used.

    Raises:
        ValueError: for another estimate, if the model has no such norm, a layer saw no token, or a
            layer's statistics are not finite.
    """
    norms = population_norms(model)
    if not norms:
        raise ValueError("The model has no norm with running statistics: nothing to estimate.")
    layers = collect_moments(model, batches, forward, norms=norms)
    set_population(norms, layers, estimate)
    return max(len(moments.count) for moments in layers.values())
