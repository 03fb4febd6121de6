"""Training batches for measurements, and what of a fairseq model to run on them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from fairseq import utils
from torch import nn

from rbn_fairseq.norms import has_population_norm

__all__ = ["collate", "run_norms", "sample", "sample_batches"]


def run_norms(model: Any, sample: dict[str, Any]) -> None:
    """Run the part of an encoder-decoder with running statistics; never the output projection."""
    inputs = sample["net_input"]
    if has_population_norm(model.decoder):
        model(**inputs, features_only=True)
    else:
        model.encoder(inputs["src_tokens"], src_lengths=inputs["src_lengths"])


def sample(batches: Sequence[Any], number: int, seed: int) -> list[Any]:
    """Draw batches uniformly and without replacement; the same ones for the same seed.

    Args:
        batches: lists of sentence indices.
        number: how many; 0 = all.
        seed: of the draw.

    Returns:
        The batches drawn, in the order given.
    """
    if number <= 0 or number >= len(batches):
        return list(batches)
    drawn = np.random.default_rng(seed).choice(len(batches), size=number, replace=False)
    return [batches[index] for index in np.sort(drawn)]


def sample_batches(iterator: Any, number: int, seed: int) -> list[Any]:
    """Draw training batches, as they are trained on.

    Args:
        iterator: fairseq's EpochBatchIterator; its batches are sorted by length, so that the
            first ones would not do.
        number: how many; 0 = all.
        seed: of the draw.

    Returns:
        Lists of sentence indices, in the iterator's order.
    """
    return sample(iterator.frozen_batches, number, seed)


def collate(dataset: Any, batches: Iterable[Any], model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield the batches as fairseq's samples, on the model's device."""
    device = next(model.parameters()).device
    for batch in batches:
        sample = dataset.collater([dataset[index] for index in batch])
        yield utils.apply_to_sample(lambda t: t.to(device), sample)
