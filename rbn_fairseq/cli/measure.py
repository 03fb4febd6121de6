"""Verbs that measure on saved checkpoints."""

from collections.abc import Iterable
from typing import Annotated, Any, Optional

import typer
from rich.console import Console
from rich.table import Table

from rbn_fairseq.checkpoints.length_bins import bins_to_compare, check_length_bins
from rbn_fairseq.checkpoints.session import Session, open_session
from rbn_fairseq.cli.options import (
    Batches,
    Checkpoints,
    Data,
    Epochs,
    LengthEdges,
    Output,
    Population,
    Seed,
    check_output,
    check_population,
    choose_epochs,
    progress,
    write_records,
)
from rbn_fairseq.cli.sources import sources_table
from rbn_fairseq.diagnostics import (
    POPULATIONS,
    TID,
    LayerMoments,
    average_tid,
    batch_norms,
    collect_moments,
    collect_permuted_moments,
    independent_tid,
    population_norms,
)
from rbn_fairseq.models.length_bins import binned
from rbn_fairseq.norms.lengths import RULES
from rbn_fairseq.tasks.batches import collate, run_norms, sample
from rbn_fairseq.tasks.batching import AS_TRAINED, PERMUTED, RANDOM, compose, parse_batching
from rbn_fairseq.tasks.cost import compare_statistics, cost_records
from rbn_fairseq.tasks.length_mixing import bucketed_batches
from rbn_fairseq.tasks.norm_records import How, norm_records, read_conditional_tid, read_tid

__all__ = ["cost", "tid"]


def _collect(
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


def _summary(layers: dict[str, TID]) -> dict[str, TID]:
    if not layers:
        return {}
    last, average = list(layers.values())[-1], average_tid(layers)
    return {"last layer": last, f"average of {len(layers)} layers": average}


def _percent(value: Optional[TID]) -> str:
    return "-" if value is None else f"{100 * value.mean:.2f} / {100 * value.var:.2f}"


def _sampling_error(records: list[dict[str, Any]]) -> str:
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


def tid(
    checkpoints: Checkpoints,
    data: Data = None,
    epochs: Epochs = None,
    tid_batching: Annotated[
        Optional[list[str]],
        typer.Option(
            help="Which sentences share a batch (repeatable): `as-trained`; `mixed:K`, each batch "
            "from K length buckets; `joint:W`, W batches in one, as of W processes with "
            "--norm-sync; `random` sentences; `permuted`, tokens dealt at random. "
            "`as-trained` and `random` together also tell where TID comes from. "
            "(default: as-trained)"
        ),
    ] = None,
    batches: Batches = 200,
    seed: Seed = 1,
    dropout: Annotated[bool, typer.Option(help="Leave dropout on while measuring.")] = False,
    population: Population = POPULATIONS[0],
    length_groups: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of groups of batches of like length, for TID given the length: each "
            "group has a population of its own; 1 = without.",
        ),
    ] = How.length_groups,
    layers: Annotated[bool, typer.Option(help="Show every layer.")] = False,
    output: Output = None,
) -> None:
    """Measure TID (paper, Definition 1) of saved checkpoints on their training data."""
    check_population(population, POPULATIONS)
    check_output(output)
    batchings = list(dict.fromkeys(tid_batching or [AS_TRAINED]))
    for batching in batchings:
        parse_batching(batching)
    table = Table(title="TID, %: mean / variance")
    several = ["batching"] if len(batchings) > 1 else []
    for column in ("checkpoint", "update", *several, "layer"):
        table.add_column(column, overflow="fold")
    for column in ("TID", "given length"):
        table.add_column(column, justify="right", no_wrap=True)
    records: list[dict[str, Any]] = []
    sources: dict[str, dict[str, dict[str, TID]]] = {}
    running: dict[str, Any] = {}
    for label, path in choose_epochs(checkpoints, epochs):
        session = open_session(path, None if data is None else str(data))
        if not batch_norms(session.model):
            others = {type(norm).__name__ for norm in population_norms(session.model).values()}
            raise ValueError(
                f"TID is defined for norms with a batch mean and variance; `{path}` has only "
                f"{' and '.join(sorted(others))}, with other statistics."
            )
        epoch = int(label) if label.isdigit() else None
        sources[label] = {}
        for batching in batchings:
            wait = f"{path.name}, {batching}"
            moments, total = _collect(session, batching, batches, seed, dropout, wait)
            # Batches of shuffled tokens are no sample of a fixed set of batches.
            of = None if batching == PERMUTED else total
            how = How(of, population, batching, dropout, length_groups)
            found = norm_records(moments, epoch, session.update, how, running)
            values, given_length = read_tid(found), read_conditional_tid(found)
            independent = {name: independent_tid(layer.count) for name, layer in moments.items()}
            sources[label][batching] = _summary(values)
            if batching == AS_TRAINED:
                sources[label]["independent"] = _summary(independent)
            given_length |= _summary(given_length)
            for layer, value in {**(values if layers else {}), **_summary(values)}.items():
                cells = (_percent(value), _percent(given_length.get(layer)))
                ways = [batching] if several else []
                table.add_row(label, str(session.update), *ways, layer, *cells)
            for record in found:
                mean, var = independent[record["layer"]]
                closed_form = {"independent_mean_tid": mean, "independent_var_tid": var}
                records.append({**record, **closed_form})
        if epoch is not None:  # the next checkpoint is of the same run
            running = {name: layer.running for name, layer in moments.items()}
    Console().print(table)
    typer.echo(_sampling_error(records))
    if {AS_TRAINED, RANDOM} <= set(batchings):
        Console().print(sources_table(sources))
    write_records(output, records)


def cost(
    checkpoints: Checkpoints,
    data: Data = None,
    epochs: Epochs = None,
    batches: Batches = 200,
    seed: Seed = 1,
    length_bins: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of bins of sentence lengths of `length-conditional`, fewer where training "
            "sentences have not so many different lengths; 1 = without that row.",
        ),
    ] = 16,
    length_edges: LengthEdges = RULES[0],
    output: Output = None,
) -> None:
    """Measure the likelihood lost by inferring with other statistics than those of training.

    Of the validation data, with dropout off and without label smoothing: with the running
    statistics, with statistics estimated anew on training batches, for all sentences and for
    those of like length, and with each batch's own, for batches made as in training and for
    batches of random sentences.
    """
    check_output(output)
    check_length_bins(length_bins, length_edges)
    table = Table(title="Bits per target token, valid set")
    table.add_column("checkpoint", overflow="fold")
    table.add_column("update")
    table.add_column("statistics", no_wrap=True)
    for column in ("nll", "cost against batch", "against random"):
        table.add_column(column, justify="right")
    records: list[dict[str, Any]] = []
    for label, path in choose_epochs(checkpoints, epochs):
        session = open_session(path, None if data is None else str(data))
        for record in _cost(session, batches, seed, path.name, length_bins, length_edges):
            figures = (f"{record[key]:.4f}" for key in ("nll", "cost", "cost_random"))
            table.add_row(label, str(session.update), record["statistics"], *figures)
            records.append({"checkpoint": str(path), "update": session.update, **record})
            used = record.get("length_bins", length_bins)
            if used < length_bins:
                table.caption = f"length-conditional: {used} bins, one for each training length"
    Console().print(table)
    write_records(output, records)


def _cost(
    session: Session, number: int, seed: int, label: str, length_bins: int, edges: str
) -> list[dict[str, Any]]:
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
