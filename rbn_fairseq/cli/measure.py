"""Verbs that measure on saved checkpoints."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Optional

import typer

from rbn_fairseq.cli.options import (
    Batches,
    Checkpoints,
    Data,
    Device,
    Epochs,
    Json,
    LengthEdges,
    Overwrite,
    Population,
    Seed,
    UserDir,
    check_json,
    choose_device,
    choose_epochs,
    console,
    progress,
    write_json,
)

if TYPE_CHECKING:
    from rich.table import Table

    from rbn_fairseq.diagnostics import TID

__all__ = ["cost", "tid"]


class _Measurement(NamedTuple):
    """Records of one checkpoint's layers under one batching."""

    checkpoint: str
    batching: str
    records: list[dict[str, Any]]


def _percent(value: Optional["TID"]) -> str:
    return "-" if value is None else f"{100 * value.mean:.2f} / {100 * value.var:.2f}"


def _summary(layers: dict[str, "TID"]) -> dict[str, "TID"]:
    """Return TID of the last layer, and the average over layers."""
    from rbn_fairseq.diagnostics import average_tid

    if not layers:
        return {}
    last, average = list(layers.values())[-1], average_tid(layers)
    return {"last layer": last, f"average of {len(layers)} layers": average}


def _tid_table(measurements: list[_Measurement], every_layer: bool) -> "Table":
    from rich.table import Table

    from rbn_fairseq.measuring.tid_records import read_tid

    several = len({measurement.batching for measurement in measurements}) > 1
    table = Table(title="TID, %: mean / variance")
    for column in ("checkpoint", "update", *["batching"] * several, "layer"):
        table.add_column(column, overflow="fold")
    for column in ("TID", "given length"):
        table.add_column(column, justify="right", no_wrap=True)
    for checkpoint, batching, records in measurements:
        layers, given_length = read_tid(records), read_tid(records, "conditional_tid")
        given_length |= _summary(given_length)
        where = (checkpoint, str(records[0]["update"]), *[batching] * several)
        for layer, value in {**(layers if every_layer else {}), **_summary(layers)}.items():
            table.add_row(*where, layer, _percent(value), _percent(given_length.get(layer)))
    return table


def _sampling_error(records: list[dict[str, Any]]) -> str:
    """Describe the sample of batches and its standard error."""
    used, total = (max(record[key] for record in records) for key in ("batches", "total_batches"))
    mean, var = (
        f"{100 * max(record[f'{kind}_tid_error'] for record in records):.2f}"
        for kind in ("mean", "var")
    )
    return (
        f"On {used} of {total} batches; a layer's standard errors are at most {mean} and {var} "
        "percentage points (mean, variance)."
    )


def _sources_table(measurements: list[_Measurement]) -> "Table":
    """Return the decomposition of every checkpoint's squared TID.

    Args:
        measurements: with batches ``as-trained`` and ``random`` of every checkpoint. The closed
            form for independent tokens is a reference.
    """
    from rich.table import Table

    from rbn_fairseq.diagnostics import TID, decompose, squared_share
    from rbn_fairseq.measuring.batches import AS_TRAINED, RANDOM
    from rbn_fairseq.measuring.tid_records import read_tid

    table = Table(
        title="Where TID comes from: % of squared as-trained TID",
        caption="independent tokens: a reference, not a floor",
    )
    for column in ("checkpoint", "TID"):
        table.add_column(column, overflow="fold")
    for column in ("sentence sampling", "length bucketing", "independent"):
        table.add_column(column, justify="right", overflow="fold")
    drawn = {m.checkpoint: m.records for m in measurements if m.batching == RANDOM}
    for checkpoint, batching, records in measurements:
        if batching != AS_TRAINED:
            continue
        random = _summary(read_tid(drawn[checkpoint]))
        closed_form = _summary(
            {
                record["layer"]: TID(record["independent_mean_tid"], record["independent_var_tid"])
                for record in records
            }
        )
        for place, whole in _summary(read_tid(records)).items():
            parts = list(decompose(whole, random[place]))
            parts.append(squared_share(closed_form[place], whole))
            for moment, shares in zip(("mean", "variance"), zip(*parts, strict=True), strict=True):
                cells = [f"{100 * share:.1f}" for share in shares]
                table.add_row(checkpoint, f"{place}, {moment}", *cells)
        table.add_section()
    return table


def tid(
    checkpoints: Checkpoints,
    data: Data = None,
    epochs: Epochs = None,
    tid_batching: Annotated[
        Optional[list[str]],
        typer.Option(
            help="Which sentences share a batch (repeatable): `as-trained`; `mixed:K`, each batch "
            "from K length buckets; `joint:W`, W batches in one, as of W processes with "
            "--norm-sync; `random` sentences. "
            "`as-trained` and `random` together also tell where TID comes from. "
            "(default: as-trained)"
        ),
    ] = None,
    batches: Batches = 200,
    seed: Seed = 1,
    dropout: Annotated[bool, typer.Option(help="Leave dropout on while measuring.")] = False,
    population: Population = "mean-of-batches",
    length_groups: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of groups of batches of like length, for TID given the length: each "
            "group has a population of its own; 1 = without.",
        ),
    ] = 16,
    layers: Annotated[bool, typer.Option(help="Show every layer.")] = False,
    device: Device = None,
    json: Json = None,
    overwrite: Overwrite = False,
    user_dir: UserDir = None,
) -> None:
    """Measure TID (paper, Definition 1) of saved checkpoints on their training data."""
    from rbn_fairseq.diagnostics import batch_norms, independent_tid, population_norms
    from rbn_fairseq.measuring.batches import AS_TRAINED, RANDOM, parse_batching
    from rbn_fairseq.measuring.session import open_session
    from rbn_fairseq.measuring.tid_records import How, measure_checkpoint, norm_records

    computing = choose_device(device)
    batchings = list(dict.fromkeys(tid_batching or [AS_TRAINED]))
    for batching in batchings:
        parse_batching(batching)
    chosen = choose_epochs(checkpoints, epochs)
    check_json(json, [path for _, path in chosen], overwrite)
    measurements = []
    running: dict[str, Any] = {}
    for label, path in chosen:
        session = open_session(path, data, computing)
        if not batch_norms(session.model):
            others = {type(norm).__name__ for norm in population_norms(session.model).values()}
            raise ValueError(
                f"TID is defined for norms with a batch mean and variance; `{path}` has only "
                f"{' and '.join(sorted(others))}, with other statistics."
            )
        epoch = int(label) if label.isdigit() else None
        for batching in batchings:
            show = partial(progress, label=f"{path.name}, {batching}")
            moments, total = measure_checkpoint(session, batching, batches, seed, dropout, show)
            how = How(total, population, batching, dropout, length_groups)
            records = norm_records(moments, epoch, session.update, how, running)
            for record in records:
                mean, var = independent_tid(moments[record["layer"]].count)
                record |= {"independent_mean_tid": mean, "independent_var_tid": var}
            measurements.append(_Measurement(label, batching, records))
        if epoch is not None:  # the next checkpoint is of the same run
            running = {name: layer.running for name, layer in moments.items()}
    records = [record for measurement in measurements for record in measurement.records]
    out = console(json)
    out.print(_tid_table(measurements, layers))
    out.print(_sampling_error(records), highlight=False, soft_wrap=True)
    if {AS_TRAINED, RANDOM} <= set(batchings):
        out.print(_sources_table(measurements))
    write_json(json, records)


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
    length_edges: LengthEdges = "quantiles",
    device: Device = None,
    json: Json = None,
    overwrite: Overwrite = False,
    user_dir: UserDir = None,
) -> None:
    """Measure the likelihood lost by inferring with other statistics than those of training.

    Of the validation data, with dropout off and without label smoothing: with the running
    statistics, with statistics estimated anew on training batches, for all sentences and for
    those of like length, and with each batch's own, for batches made as in training and for
    batches of random sentences.
    """
    from rich.table import Table

    from rbn_fairseq.measuring.bins import check_length_bins
    from rbn_fairseq.measuring.cost import cost_of_checkpoint
    from rbn_fairseq.measuring.session import open_session

    check_length_bins(length_bins, length_edges)
    computing = choose_device(device)
    chosen = choose_epochs(checkpoints, epochs)
    check_json(json, [path for _, path in chosen], overwrite)
    table = Table(title="Bits per target token, valid set")
    table.add_column("checkpoint", overflow="fold")
    table.add_column("update")
    table.add_column("statistics", no_wrap=True)
    for column in ("nll", "cost against batch", "against random"):
        table.add_column(column, justify="right")
    records: list[dict[str, Any]] = []
    for label, path in chosen:
        session = open_session(path, data, computing)

        def show(samples: Sequence[Any], label: str, name: str = path.name) -> Iterable[Any]:
            return progress(samples, f"{name}, {label}")

        costs = cost_of_checkpoint(session, batches, seed, length_bins, length_edges, show)
        for record in costs:
            figures = (f"{record[key]:.4f}" for key in ("nll", "cost", "cost_random"))
            table.add_row(label, str(session.update), record["statistics"], *figures)
            records.append({"checkpoint": str(path), "update": session.update, **record})
            used = record.get("length_bins", length_bins)
            if used < length_bins:
                table.caption = f"length-conditional: {used} bins, one for each training length"
    console(json).print(table)
    write_json(json, records)
