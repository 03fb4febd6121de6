"""Training updates of several settings, in turn: python benchmarks/updates.py DATA-BIN."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from machine import peak_bytes
from rbn_fairseq.cli.options import Json, Overwrite
from rounds import Row, milliseconds, summarise, take_turns
from script import DEVICE, Data, Device, Options, Rounds, Threads, begin, show
from trainers import (
    DEFAULTS,
    SETTINGS,
    build_all,
    draw,
    dtype_of,
    largest,
    make_trainer,
    read_settings,
    real_tokens,
    train,
)

Settings = Annotated[
    list[str],
    typer.Option(
        "--setting",
        help="`NAME: OPTIONS` of fairseq-train, or `fairseq` (its own model of the same sizes, "
        "task and criterion), `layer`, `batch` (in the encoder) or `rbn` (with the penalty). "
        "Repeatable; the first is the reference.",
    ),
]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _per_token(trainer: Any, turns: Iterator[Sequence[Any]], device: str) -> float:
    """Train on the next turn's batches and return milliseconds per real token."""
    batches = next(turns)
    return milliseconds(partial(train, trainer, batches), device) / real_tokens(batches)


@app.command()
def main(
    data: Data,
    options: Options = DEFAULTS,
    setting: Settings = SETTINGS,
    rounds: Rounds = 10,
    updates: Annotated[int, typer.Option(min=1, help="Updates of a setting in a round.")] = 2,
    device: Device = DEVICE,
    threads: Threads = 1,
    json: Json = None,
    overwrite: Overwrite = False,
) -> None:
    """Time updates per real token, source and target; measure their memory.

    Each setting has batches of its own, drawn uniformly from an epoch and new ones every round;
    settings whose options make the same batches have the same ones. Size of batches, seed and
    precision must be the same for all.

    The memory is the peak of a trainer from its making to the end of updates on the largest
    batches of an epoch: weights, gradients, the optimizer's state, activations.

    Freed memory goes back to the system, as in a training.
    """
    begin(data, json, overwrite, threads, keep_freed=False)
    settings = read_settings(setting, options)
    make = partial(make_trainer, str(data), device=device)
    trainers = build_all(settings, make)
    turns = {name: draw(trainer, updates, rounds + 1) for name, trainer in trainers.items()}

    def train_anew(name: str, batches: Sequence[Any]) -> None:
        train(make(settings[name]), batches)

    reference, last = list(settings)[0], list(settings)[-1]
    # First of all: what libraries take from the allocator once is no setting's memory.
    train_anew(reference, turns[reference][0])
    # Twice: the optimizer's state is there from the first update on.
    peaks = {
        name: peak_bytes(partial(train_anew, name, 2 * largest(trainer)), device)
        for name, trainer in trainers.items()
    }

    actions = {
        name: partial(_per_token, trainer, iter(turns[name]), device)
        for name, trainer in trainers.items()
    }
    timings = take_turns(actions, rounds, "training")
    tokens = {  # of an update
        name: sum(map(real_tokens, timed)) / sum(map(len, timed))
        for name, (_, *timed) in turns.items()
    }

    # The first may be fairseq's own model, whose name does not tell its size.
    cfg = trainers[last].cfg
    case = f"{cfg.model._name}/{cfg.dataset.max_tokens}"
    fields: Row = {"device": device, "threads": threads, "dtype": dtype_of(cfg), "case": case}
    rows = summarise(timings, tokens=tokens, bench="train", **fields)
    for name, peak in peaks.items():
        measured = {"norm": name, "bytes": peak, "ratio_to_layer": peak / peaks[reference], "n": 1}
        rows.append(fields | {"bench": "memory"} | measured)
    show(rows, json, device)


if __name__ == "__main__":
    app()
