"""Encoder batch norms with another number of bins of sentence lengths."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Optional

from rbn_fairseq.norms import BatchNorm, LengthBins, PopulationByLength
from rbn_fairseq.norms.lengths import QUANTILES

__all__ = ["binned", "encoder_batch_norms", "set_length_bins"]


def _rebuilt(norm: BatchNorm, bins: Optional[LengthBins]) -> BatchNorm:
    """Return a norm with the parameters and the global running statistics of another."""
    inner = [] if bins is None else bins.edges[1:-1].tolist()
    edges = ":".join(map(str, inner)) or QUANTILES
    options = replace(norm.options, length_bins=len(inner) + 1, length_edges=edges)
    channels = norm.weight.numel()
    population = None
    if bins is not None:
        population = PopulationByLength(channels, options.momentum, options.length_bins)
        population.set_bins(bins)
    new = BatchNorm(channels, options, norm.sync, population).to(norm.weight.device)
    new.weight, new.bias = norm.weight, norm.bias
    new.population.set(*norm.population.get())
    return new.train(norm.training)


def encoder_batch_norms(model: Any) -> dict[str, BatchNorm]:
    """Return the norms ``batch`` of an ``rbn_transformer``'s encoder, with bins or without."""
    return {
        f"encoder.{name}": part
        for name, part in model.encoder.named_modules()
        if type(part) is BatchNorm  # not those that renormalise
    }


def set_length_bins(model: Any, bins: Optional[LengthBins]) -> dict[str, BatchNorm]:
    """Give the encoder's batch norms these bins, empty, in place; ``None`` takes theirs away.

    Args:
        model: an ``rbn_transformer``.
        bins: where they begin and end.

    Returns:
        The norms that stood there, by name.
    """
    found = encoder_batch_norms(model)
    for name, norm in found.items():
        model.set_submodule(name, _rebuilt(norm, bins))
    return found


@contextmanager
def binned(model: Any, bins: Optional[LengthBins]) -> Iterator[None]:
    """Give the encoder's batch norms these bins while the block runs."""
    before = set_length_bins(model, bins)
    try:
        yield
    finally:
        for name, norm in before.items():
            model.set_submodule(name, norm)
