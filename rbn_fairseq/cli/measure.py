"""Verbs that measure on saved checkpoints."""

import math
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from rbn_fairseq.cli import options

if TYPE_CHECKING:
    from rich.table import Table

    from rbn_fairseq.diagnostics import TID

#: Records of norms by the label of their checkpoint, and by batching.
_Measured = dict[tuple[str, str], list[dict[str, Any]]]


def _summary(layers: dict[str, "TID"]) -> dict[str, "TID"]:
    """Return TID of the last layer, and the average over layers."""
    from rbn_fairseq.diagnostics import average_tid

    if not layers:
        return {}
    last, average = list(layers.values())[-1], average_tid(layers)
    return {"last layer": last, f"average of {len(layers)} layers": average}


def _tid_table(measured: _Measured, every_layer: bool) -> "Table":
    from rich.table import Table

    from rbn_fairseq.measuring.records import read_tid

    several = len({batching for _, batching in measured}) > 1
    records = [*chain(*measured.values())]
    numbers = {f"{record['batches']} of {record['total_batches']}": None for record in records}
    mean, var = (max(record[f"{kind}_tid_error"] for record in records) for kind in ("mean", "var"))
    caption = f"on {', '.join(numbers)} batches"
    if not math.isnan(mean):  # one batch of several tells none
        caption += f"; a layer's standard errors are at most {100 * mean:.2f} / {100 * var:.2f}"
    table = Table(title="TID, %: mean / variance", caption=caption)
    for column in ("checkpoint", "update", *["batching"] * several, "layer"):
        table.add_column(column, overflow="fold")
    for column in ("TID", "given length"):
        table.add_column(column, justify="right", no_wrap=True)
    for (checkpoint, batching), records in measured.items():
        where = (checkpoint, str(records[0]["update"]), *[batching] * several)
        layers, given_length = read_tid(records), read_tid(records, "conditional_tid")
        given_length |= _summary(given_length)
        for layer, value in {**(layers if every_layer else {}), **_summary(layers)}.items():
            tids = (value, given_length.get(layer))
            cells = [f"{100 * t.mean:.2f} / {100 * t.var:.2f}" if t else "-" for t in tids]
            table.add_row(*where, layer, *cells)
    return table


def tid(
    checkpoints: options.Checkpoints,
    data: options.Data = None,
    tid_batching: Annotated[
        Optional[list[str]],
        typer.Option(
            help="Which sentences share a batch (repeatable): `as-trained`; `mixed:K`, each batch "
            "from K length buckets; `joint:W`, W batches in one, as of W processes with "
            "--norm-sync; `random` sentences. (default: as-trained)"
        ),
    ] = None,
    batches: options.Batches = 200,
    seed: options.Seed = 1,
    population: options.Population = "mean-of-batches",
    layers: Annotated[bool, typer.Option(help="Show every layer.")] = False,
    device: options.Device = None,
    json: options.Json = None,
    overwrite: options.Overwrite = False,
    user_dir: options.UserDir = None,
) -> None:
    """Measure TID (paper, Definition 1) of saved checkpoints on their training data."""
    from rbn_fairseq.diagnostics import batch_norms, independent_tid, population_norms
    from rbn_fairseq.measuring.batches import AS_TRAINED, parse_batching
    from rbn_fairseq.measuring.records import measure_checkpoint, norm_records
    from rbn_fairseq.measuring.session import open_session

    computing = options.choose_device(device)
    batchings = list(dict.fromkeys(tid_batching or [AS_TRAINED]))
    for batching in batchings:
        parse_batching(batching)
    chosen = options.choose_checkpoints(checkpoints)
    options.check_json(json, [path for _, path in chosen], overwrite)
    measured: _Measured = {}
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
            show = partial(options.progress, label=f"{path.name}, {batching}")
            moments, total = measure_checkpoint(session, batching, batches, seed, show)
            records = norm_records(moments, epoch, session.update, total, population, batching)
            for record in records:
                mean, var = independent_tid(moments[record["layer"]].count)
                record |= {"independent_mean_tid": mean, "independent_var_tid": var}
                record["checkpoint"] = str(path)
            measured[label, batching] = records
    options.console(json).print(_tid_table(measured, layers))
    options.write_json(json, [*chain(*measured.values())])


def cost(
    checkpoints: options.Checkpoints,
    data: options.Data = None,
    batches: options.Batches = 200,
    seed: options.Seed = 1,
    device: options.Device = None,
    json: options.Json = None,
    overwrite: options.Overwrite = False,
    user_dir: options.UserDir = None,
) -> None:
    """Measure the likelihood lost by inferring with other statistics than those of training.

    Of the validation data, with dropout off and without label smoothing: with the running
    statistics, with statistics estimated anew on training batches, without dropout and with it,
    for all sentences and for those of like length, and with each batch's own, for batches made as
    in training and for batches of random sentences.
    """
    from rich.table import Table

    from rbn_fairseq.measuring.cost import cost_of_checkpoint
    from rbn_fairseq.measuring.session import open_session

    computing = options.choose_device(device)
    chosen = options.choose_checkpoints(checkpoints)
    options.check_json(json, [path for _, path in chosen], overwrite)
    table = Table("checkpoint", "update", title="Valid set: bits per token, text or tag")
    table.add_column("statistics", no_wrap=True)
    for column in ("nll", "cost against batch", "against random"):
        table.add_column(column, justify="right")
    records: list[dict[str, Any]] = []
    for label, path in chosen:
        session = open_session(path, data, computing)
        costs = cost_of_checkpoint(session, batches, seed, options.progress)
        for record in costs:
            figures = (f"{record[key]:z.4f}" for key in ("nll", "cost", "cost_random"))
            table.add_row(label, str(session.update), record["statistics"], *figures)
            records.append({"checkpoint": str(path), "update": session.update, **record})
            if record["statistics"] == "length-conditional" and session.mixing != 1:
                table.caption = (
                    "length-conditional: no cost of inference after --length-mixing, as training "
                    "normalised by all lengths together"
                )
    options.console(json).print(table)
    options.write_json(json, records)
