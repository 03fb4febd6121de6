"""Population statistics estimated anew from data."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from rbn_fairseq.diagnostics.batch_norms import population_norms
from rbn_fairseq.diagnostics.collect import LayerMoments, collect_moments
from rbn_fairseq.diagnostics.population import ESTIMATES, population
from rbn_fairseq.norms import LengthBatchNorm, PopulationNorm

__all__ = ["recalibrate", "set_population"]


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
        norm.population.set(*estimates[name])
        bins = layers[name].bins
        if isinstance(norm, LengthBatchNorm) and bins is not None:
            norm.population.set_moments(bins.estimate(estimate))


def recalibrate(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Callable[[nn.Module, Any], Any],
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
        forward: runs the model on a batch.
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
