"""Training updates of several settings, interleaved, each on batches of its own."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Optional

import torch

from rbn_fairseq.bench.machine import MatrixProduct, count_flops, peak_bytes
from rbn_fairseq.bench.rounds import FLOOR, Row, milliseconds, quartiles, summarise, take_turns
from rbn_fairseq.bench.trainers import (
    DEFAULTS,
    build_all,
    draw,
    largest,
    make_trainer,
    product_dtype,
    real_tokens,
    train,
    training_dtype,
)

__all__ = ["penalty_row", "time_updates"]


def _per_token(trainer: Any, turns: Iterator[Sequence[Any]], device: str) -> float:
    """Train on the next turn's batches and return milliseconds per real token."""
    batches = next(turns)
    return milliseconds(partial(train, trainer, batches), device) / real_tokens(batches)


def penalty_row(
    rounds: Sequence[dict[str, float]], tokens: Mapping[str, float], **fields: Any
) -> Optional[Row]:
    """Return what ``rbn`` takes longer than ``batch``, as a share of the latter's update.

    ``rounds`` are milliseconds per real token by name, ``tokens`` those of an update.
    """
    if not {"batch", "rbn"} <= rounds[0].keys():
        return None
    _, ms, _ = quartiles([times["rbn"] - times["batch"] for times in rounds])
    low, share, high = quartiles([times["rbn"] / times["batch"] - 1 for times in rounds])
    fields |= {"bench": "penalty", "norm": "rbn - batch"}
    return Row(ms=ms * tokens["batch"], n=len(rounds), share=share, spread=(low, high), **fields)


def time_updates(
    data: str,
    settings: Mapping[str, Sequence[str]],
    common: Sequence[str] = tuple(DEFAULTS.split()),
    rounds: int = 20,
    updates: int = 5,
    device: str = "cpu",
    threads: int = 1,
) -> list[Row]:
    """Train models of several settings in turn, and measure their memory.

    Every setting has batches of its own, and new ones in each round; settings whose options make
    the same batches have the same ones. Times are compared per real token.

    The memory is that of a trainer from its making to the end of updates on the largest batches of
    an epoch: weights, gradients, the optimizer's state, activations. It is measured before the
    rounds.

    The floor is the time of the first setting's matrix products, with those of padding if it
    computes padding, at the rate of a product of large matrices, measured in each round.

    Args:
        data: directory that fairseq-preprocess filled.
        settings: fairseq-train's options by name; the first is the reference.
        common: options of all settings.
        rounds: how often every setting has its turn.
        updates: updates a turn, on batches drawn uniformly from an epoch.
        device: ``cpu`` or ``cuda``.
        threads: of torch, as they are set.

    Raises:
        ValueError: if fairseq-train does not take the options, or settings differ in the size of
            batches, the seed or the precision.
    """
    arguments = {name: [*common, *options] for name, options in settings.items()}
    make = partial(make_trainer, data, device=device)
    trainers = build_all(arguments, make)
    turns = {name: draw(trainer, updates, rounds + 1) for name, trainer in trainers.items()}
    reference, last = list(settings)[0], list(settings)[-1]
    first = trainers[reference].cfg
    fields: dict[str, Any] = {
        "device": device,
        "threads": threads,
        "dtype": training_dtype(first),
        # The first may be fairseq's own, whose name does not tell its size.
        "case": f"{trainers[last].cfg.model._name}/{first.dataset.max_tokens}",
    }

    def train_anew(name: str, batches: Sequence[Any]) -> None:
        train(make(arguments[name]), batches)

    # First of all: what libraries take from the allocator once is no setting's memory.
    warm_up = turns[reference][0]
    flops = count_flops(partial(train_anew, reference, warm_up)) / real_tokens(warm_up)  # a token's
    # Twice: the optimizer's state is there from the first update on.
    peaks = {
        name: peak_bytes(partial(train_anew, name, 2 * largest(trainer)), device)
        for name, trainer in trainers.items()
    }
    memory = [
        Row(
            bench="memory",
            norm=name,
            n=1,
            bytes=peak,
            ratio_to_layer=peak / peaks[reference],
            **fields,
        )
        for name, peak in peaks.items()
    ]

    product = MatrixProduct(device, getattr(torch, product_dtype(first)))
    actions = {
        name: partial(_per_token, trainer, iter(turns[name]), device)
        for name, trainer in trainers.items()
    }
    actions[FLOOR] = partial(product.milliseconds, flops)
    timings = take_turns(actions, rounds, "training")

    tokens = {  # of an update
        name: sum(map(real_tokens, timed)) / sum(map(len, timed))
        for name, (_, *timed) in turns.items()
    }
    tokens[FLOOR] = tokens[reference]
    penalty = penalty_row(timings, tokens, **fields)
    floor = f"{flops * tokens[FLOOR] / 1e9:,.0f} GFLOP of matrix products"
    rows = summarise(timings, tokens=tokens, bench="train", floor=floor, **fields)
    return rows + ([penalty] if penalty else []) + memory
