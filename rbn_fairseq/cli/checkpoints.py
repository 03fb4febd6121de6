"""Verbs that work on saved checkpoints."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from rbn_fairseq.checkpoints.average import average_checkpoints, choose_last
from rbn_fairseq.checkpoints.files import epoch_checkpoints, read_checkpoint, write_checkpoint
from rbn_fairseq.checkpoints.session import Session, open_session
from rbn_fairseq.diagnostics import POPULATIONS, average_tid, batch_norms, population_norms
from rbn_fairseq.diagnostics import recalibrate as recalibrate_model
from rbn_fairseq.tasks.batches import collate, run_norms, sample_batches
from rbn_fairseq.tasks.monitor import measure_tid, tid_records

__all__ = ["average", "recalibrate", "tid"]

Batches = Annotated[
    int, typer.Option(min=0, help="Number of training batches, a seeded uniform sample; 0 = all.")
]
Seed = Annotated[int, typer.Option(help="Seed of that sample.")]
Population = Annotated[
    str,
    typer.Option(
        help="Population estimate: `mean-of-batches` (of batch means and variances) or `pooled` "
        "(over all tokens)."
    ),
]


def _check_population(population: str) -> None:
    if population not in POPULATIONS:
        known = ", ".join(POPULATIONS)
        raise ValueError(f"--population: unknown estimate `{population}`. Known: {known}.")


def _progress(session: Session, number: int, seed: int, label: str) -> Any:
    batches = sample_batches(session.iterator, number, seed)
    return track(batches, label, console=Console(stderr=True), transient=True)


def _recalibrate_state(
    path: Path, state: dict[str, Any], data: Path, number: int, seed: int, population: str
) -> dict[str, Any]:
    """Return ``state`` with population statistics estimated with the weights in ``path``."""
    session = open_session(path, str(data))
    batches = _progress(session, number, seed, "recalibrating")
    samples = collate(session.dataset, batches, session.model)
    used = recalibrate_model(session.model, samples, run_norms, population)
    own = session.model.state_dict()
    for name in state["model"]:
        if ".population." in name:
            state["model"][name] = own[name].cpu()
    note = {"batches": used, "seed": seed, "population": population}
    state["rbn_fairseq"] = {**state.get("rbn_fairseq", {}), "recalibrated": note}
    return state


def average(
    inputs: Annotated[
        list[Path],
        typer.Option(help="A directory of epoch checkpoints, or a checkpoint file (repeatable)."),
    ],
    output: Annotated[Path, typer.Option(help="File to write.")],
    last: Annotated[
        Optional[int], typer.Option(help="How many of the last epochs; with a directory.")
    ] = None,
    recalibrate: Annotated[
        Optional[Path],
        typer.Option(
            metavar="DATA-BIN",
            help="Estimate the population statistics of the averaged weights on this training "
            "data. Without it they are the averages of the running statistics, which do not "
            "belong to the averaged weights.",
        ),
    ] = None,
    batches: Batches = 200,
    seed: Seed = 1,
    population: Population = POPULATIONS[0],
) -> None:
    """Average the weights of checkpoints and recalibrate the population statistics."""
    _check_population(population)
    if len(inputs) == 1 and inputs[0].is_dir():
        if last is None:
            raise ValueError("--inputs is a directory: say with --last how many epochs to average.")
        paths = choose_last(inputs[0], last)
    elif last is not None:
        raise ValueError("--last goes with one directory as --inputs, not with files.")
    else:
        paths = inputs
    state = average_checkpoints(paths)
    for path in paths:
        typer.echo(f"averaged {path}")
    if recalibrate is not None:
        # fairseq loads models from files only.
        unfinished = output.with_name(output.name + ".averaged")
        try:
            write_checkpoint(unfinished, state)
            state = _recalibrate_state(unfinished, state, recalibrate, batches, seed, population)
        finally:
            unfinished.unlink(missing_ok=True)
        typer.echo(f"recalibrated on {state['rbn_fairseq']['recalibrated']['batches']} batches")
    write_checkpoint(output, state)
    typer.echo(f"wrote {output}")


def recalibrate(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint file.")],
    data: Annotated[Path, typer.Argument(metavar="DATA-BIN", help="Training data.")],
    output: Annotated[Path, typer.Option(help="File to write.")],
    batches: Batches = 200,
    seed: Seed = 1,
    population: Population = POPULATIONS[0],
) -> None:
    """Estimate the population statistics of a checkpoint anew on training data."""
    _check_population(population)
    state = read_checkpoint(checkpoint)
    state = _recalibrate_state(checkpoint, state, data, batches, seed, population)
    write_checkpoint(output, state)
    used = state["rbn_fairseq"]["recalibrated"]["batches"]
    typer.echo(f"recalibrated on {used} batches, wrote {output}")


def _choose_epochs(paths: list[Path], epochs: Optional[str]) -> dict[str, Path]:
    if len(paths) > 1 or not paths[0].is_dir():
        if epochs is not None:
            raise ValueError("--epochs goes with one directory, not with checkpoint files.")
        return {path.name: path for path in paths}
    found = epoch_checkpoints(paths[0])
    if not found:
        raise ValueError(f"`{paths[0]}` has no epoch checkpoints (checkpoint1.pt and so on).")
    if epochs is None:
        return {str(epoch): path for epoch, path in found.items()}
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", epochs)
    if match is None:
        raise ValueError(f"--epochs must be a number or a range such as 3-10, but is `{epochs}`.")
    wanted = range(int(match[1]), int(match[2] or match[1]) + 1)
    missing = [str(epoch) for epoch in wanted if epoch not in found]
    if missing or not wanted:
        have = ", ".join(map(str, found))
        raise ValueError(
            f"--epochs {epochs}: `{paths[0]}` has no checkpoint of epoch "
            f"{', '.join(missing) or epochs}; it has {have}."
        )
    return {str(epoch): found[epoch] for epoch in wanted}


def tid(
    checkpoints: Annotated[
        list[Path], typer.Argument(help="A save directory, or checkpoint files.")
    ],
    data: Annotated[
        Optional[Path],
        typer.Option(metavar="DATA-BIN", help="Training data [default: the checkpoint's own]"),
    ] = None,
    epochs: Annotated[
        Optional[str], typer.Option(help="With a directory: an epoch or a range (3-10).")
    ] = None,
    batches: Batches = 200,
    seed: Seed = 1,
    dropout: Annotated[bool, typer.Option(help="Leave dropout on while measuring.")] = False,
    population: Population = POPULATIONS[0],
    layers: Annotated[bool, typer.Option(help="Show every layer.")] = False,
    output: Annotated[
        Optional[Path], typer.Option(help="Also write the values as JSON lines.")
    ] = None,
) -> None:
    """Measure TID (paper, Definition 1) of saved checkpoints on their training batches."""
    _check_population(population)
    table = Table("checkpoint", "update")
    table.add_column("layer", overflow="fold")
    table.add_column("mean TID %", justify="right")
    table.add_column("variance TID %", justify="right")
    records = []
    for label, path in _choose_epochs(checkpoints, epochs).items():
        session = open_session(path, None if data is None else str(data))
        if not batch_norms(session.model):
            others = {type(norm).__name__ for norm in population_norms(session.model).values()}
            raise ValueError(
                f"TID is defined for norms with a batch mean and variance; `{path}` has only "
                f"{' and '.join(sorted(others))}, with other statistics."
            )
        chosen = _progress(session, batches, seed, f"{path.name}")
        values, used = measure_tid(session.model, session.dataset, chosen, dropout, population)
        last, average = list(values.values())[-1], average_tid(values)
        summary = {"last layer": last, f"average of {len(values)} layers": average}
        shown = {**values, **summary} if layers else summary
        for layer, value in shown.items():
            cells = (f"{100 * value.mean:.2f}", f"{100 * value.var:.2f}")
            table.add_row(label, str(session.update), layer, *cells)
        epoch = int(label) if label.isdigit() else None
        records += tid_records(values, epoch, session.update, used, population, dropout)
    Console().print(table)
    if output is not None:
        temporary = output.with_name(output.name + ".tmp")
        temporary.write_text("".join(json.dumps(record) + "\n" for record in records))
        temporary.replace(output)
