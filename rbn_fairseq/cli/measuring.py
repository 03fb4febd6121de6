"""What `rbn tid` and `rbn cost` compute, checkpoint by checkpoint."""

from collections.abc import Iterable
from typing import Any

from rbn_fairseq.checkpoints.length_bins import bins_to_compare
from rbn_fairseq.checkpoints.session import Session
from rbn_fairseq.cli.options import progress
from rbn_fairseq.diagnostics import (
    TID,
    LayerMoments,
    average_tid,
    collect_moments,
    collect_permuted_moments,
    population_norms,
)
from rbn_fairseq.models.length_bins import binned
from rbn_fairseq.tasks.batches import collate, run_norms, sample
from rbn_fairseq.tasks.batching import AS_TRAINED, PERMUTED, RANDOM, compose
from rbn_fairseq.tasks.cost import compare_statistics, cost_records
from rbn_fairseq.tasks.length_mixing import bucketed_batches

__all__ = ["collect", "compare_costs", "sampling_error", "summary"]


def collect(
    session: Session, batching: str, number: int, seed: int, dropout: bool, label: str
) -> tuple[dict[str, LayerMoments], int]:
    """Return the moments of a number of batches, and how many there are."""
    batches = session.iterator.frozen_batches
    if batching not in (AS_TRAINED, PERMUTED):
        own = bucketed_batches(session.iterator)
        batches = compose(own, batching, seed, session.dataset.src_sizes)
    total = len(batches)
    batches = sample(batches, number, seed)
    samples = collate(session.dataset, progress(batches, label), session.model)
    if batching == PERMUTED:
        deal = len(batches), seed
        return collect_permuted_moments(session.model, samples, run_norms, *deal, dropout), total
    return collect_moments(session.model, samples, run_norms, dropout), total


def summary(layers: dict[str, TID]) -> dict[str, TID]:
    """Return TID of the last layer, and the average over layers."""
    if not layers:
        return {}
    last, average = list(layers.values())[-1], average_tid(layers)
    return {"last layer": last, f"average of {len(layers)} layers": average}


def sampling_error(records: list[dict[str, Any]]) -> str:
    """Say how much of all batches the records are of, and how far off they may be for that."""
    sampled = [record for record in records if record["total_batches"] is not None]
    if not sampled:
        return "A layer's standard errors are not known of shuffled tokens."
    used, total = (max(record[key] for record in sampled) for key in ("batches", "total_batches"))
    mean, var = (
        f"{100 * max(record[f'{kind}_tid_error'] for record in sampled):.2f}"
        for kind in ("mean", "var")
    )
    return (
        f"On {used} of {total} batches; a layer's standard errors are at most {mean} and {var} "
        "percentage points (mean, variance)."
    )


def compare_costs(
    session: Session, number: int, seed: int, label: str, length_bins: int, edges: str
) -> list[dict[str, Any]]:
    """Return the discrepancy cost of a checkpoint, a record for each way of normalising."""
    model, bins = session.model, bins_to_compare(session, length_bins, edges)
    training = sample(session.iterator.frozen_batches, number, seed)
    samples = collate(session.dataset, progress(training, f"{label}, training batches"), model)
    with binned(model, bins):
        layers = collect_moments(model, samples, run_norms, norms=population_norms(model))
    dataset, iterator = session.validation()
    random = compose(bucketed_batches(iterator), RANDOM, seed, dataset.src_sizes)

    def valid(name: str) -> Iterable[dict[str, Any]]:
        batches = random if name == "batch-random" else iterator.frozen_batches
        return collate(dataset, progress(batches, f"{label}, {name}"), model)

    padding = session.task.target_dictionary.pad()
    return cost_records(compare_statistics(model, layers, valid, padding, bins), bins)
