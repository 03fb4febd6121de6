"""Discrepancy cost: likelihood lost because inference normalises by other statistics."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from rbn_fairseq.diagnostics import (
    LayerMoments,
    collect_moments,
    measuring,
    population_norms,
    set_population,
)
from rbn_fairseq.measuring.batches import RANDOM, bucketed_batches, collate, compose, draw_batches
from rbn_fairseq.measuring.bins import bins_to_compare
from rbn_fairseq.measuring.session import Session
from rbn_fairseq.models.placing import binned
from rbn_fairseq.norms import LengthBins, populations_by_length

__all__ = [
    "Likelihood", "compare_statistics", "cost_of_checkpoint", "cost_records", "likelihood",
]  # fmt: skip


class Likelihood(NamedTuple):
    """Negative log-likelihood in bits per token, text or tag; of how many tokens and sentences."""

    nll: float
    tokens: int
    sentences: int


@torch.no_grad()
def likelihood(model: Any, samples: Iterable[dict[str, Any]], padding: int) -> Likelihood:
    """Compute fairseq's ``nll_loss``: teacher forcing, no label smoothing, base 2.

    Args:
        model: one of the plugin's, in the modes that it should run in.
        samples: fairseq's batches, on the model's device.
        padding: index of padding in the target dictionary.
    """
    total: float | Tensor = 0.0
    tokens: int | Tensor = 0
    sentences = 0
    for sample in samples:
        nll, number = model.nll(sample, padding)
        total, tokens = total + nll, tokens + number
        sentences += len(sample["target"])
    return Likelihood(float(total) / max(int(tokens), 1) / math.log(2), int(tokens), sentences)


def compare_statistics(
    model: Any,
    layers: Mapping[str, LayerMoments],
    dropped: Mapping[str, LayerMoments],
    valid: Callable[[str], Iterable[dict[str, Any]]],
    padding: int,
    bins: Optional[LengthBins] = None,
) -> dict[str, Likelihood]:
    """Compute the likelihood of validation data under every way of normalising, dropout off.

    - ``running``: the running statistics as they are.
    - ``running-global``: those of all lengths, of a model whose norms have bins of lengths.
    - ``recalibrated``, ``pooled``: estimates from training batches in their place,
      ``mean-of-batches`` and ``pooled`` of :func:`~rbn_fairseq.diagnostics.population`.
    - ``recalibrated-dropout``: the first of them with dropout on in the training batches, as the
      running statistics were gathered. Dropout raises a variance (Li et al., 2019, Understanding
      the Disharmony between Dropout and Batch Normalization by Variance Shift).
    - ``length-conditional``: ``recalibrated`` by bins of sentence lengths, in the encoder's batch
      norms.
    - ``batch``: every validation batch normalises with its own statistics, and nothing moves.
    - ``batch-random``: likewise, with batches of random sentences.

    Args:
        model: one of the plugin's; a copy of it is what runs.
        layers: batch statistics of training batches, of every norm with running statistics.
        dropped: those of the same batches with dropout on.
        valid: from one of these names to the validation batches for it, on the model's device.
        padding: index of padding in the target dictionary.
        bins: of sentence lengths, those that ``layers`` were collected with; without them there
            is no ``length-conditional``.

    Raises:
        ValueError: if a layer's batch statistics are missing or not finite.
    """
    model, likelihoods = copy.deepcopy(model).eval(), {}

    def compute(name: str) -> None:
        likelihoods[name] = likelihood(model, valid(name), padding)

    def estimate(name: str, moments: Any, kind: str = "mean-of-batches", bins: Any = None) -> None:
        with binned(model, bins):
            set_population(population_norms(model), moments, kind)
            compute(name)

    compute("running")
    if populations_by_length(model):
        with binned(model, None):
            compute("running-global")
    estimate("recalibrated", layers)
    estimate("recalibrated-dropout", dropped)
    estimate("pooled", layers, "pooled")
    if bins is not None:
        estimate("length-conditional", layers, bins=bins)
    with measuring(model, dropout=False):
        compute("batch")
        compute("batch-random")
    return likelihoods


def cost_records(likelihoods: Mapping[str, Likelihood]) -> list[dict[str, Any]]:
    """Return the cost of each way against ``batch`` and ``batch-random``, in bits."""
    return [
        {
            "statistics": name,
            "nll": value.nll,
            "cost": value.nll - likelihoods["batch"].nll,
            "cost_random": value.nll - likelihoods["batch-random"].nll,
            "tokens": value.tokens,
            "sentences": value.sentences,
        }
        for name, value in likelihoods.items()
    ]


def cost_of_checkpoint(
    session: Session,
    number: int,
    seed: int,
    progress: Callable[[Sequence[Any], str], Iterable[Any]] = lambda batches, label: batches,
) -> list[dict[str, Any]]:
    """Return the discrepancy cost of a checkpoint, a record for each way of normalising.

    By ``number`` training batches (0 = all). Seeds torch's random numbers, for dropout.
    """
    model, bins = session.model, bins_to_compare(session)
    training = draw_batches(session.iterator.frozen_batches, number, seed)

    def moments(dropout: bool) -> dict[str, LayerMoments]:
        label = f"training batches{', dropout' * dropout}"
        samples = collate(session.dataset, progress(training, label), model)
        norms = population_norms(model)
        return collect_moments(model, samples, session.task.adapter.run_norms, dropout, norms)

    torch.manual_seed(seed)  # for dropout's masks
    with binned(model, bins):
        layers, dropped = moments(dropout=False), moments(dropout=True)
    dataset, iterator = session.validation()
    lengths = session.task.adapter.source_lengths(dataset)
    random = compose(bucketed_batches(iterator), RANDOM, seed, lengths)

    def valid(name: str) -> Iterable[dict[str, Any]]:
        batches = random if name == "batch-random" else iterator.frozen_batches
        return collate(dataset, progress(batches, name), model)

    padding = session.task.target_dictionary.pad()
    records = cost_records(compare_statistics(model, layers, dropped, valid, padding, bins))
    for record in records:
        if bins is not None and record["statistics"] == "length-conditional":
            record |= {"length_bins": len(bins.centres), "length_edges": bins.edges.tolist()}
    return records
