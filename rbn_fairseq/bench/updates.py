"""Training updates of several settings, interleaved on the same batches."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Optional

import torch

from rbn_fairseq.bench.machine import MatrixProduct, count_flops
from rbn_fairseq.bench.memory import peak_bytes
from rbn_fairseq.bench.rounds import milliseconds, take_turns
from rbn_fairseq.bench.rows import FLOOR, Row, quartiles, summarise
from rbn_fairseq.bench.training import (
    DEFAULTS,
    check_batches,
    draw,
    make_trainer,
    product_dtype,
    train,
    training_dtype,
)

__all__ = ["SETTINGS", "penalty_row", "time_updates"]

SETTINGS = {
    "layer": "",
    "batch": "--norm-encoder batch",
    "rbn": "--norm-encoder batch --rbn-mean-weight 0.1 --rbn-std-weight 0.01",
}


def _memory(
    makers: Mapping[str, Callable[[], Any]], batches: Sequence[Any], **same: Any
) -> list[Row]:
    def run(make: Callable[[], Any]) -> None:
        train(make(), batches)

    peaks = {name: peak_bytes(partial(run, make), same["device"]) for name, make in makers.items()}
    reference, *_ = peaks.values()
    return [
        Row(bench="memory", norm=name, n=1, bytes=peak, ratio_to_layer=peak / reference, **same)
        for name, peak in peaks.items()
    ]


def _one_update(trainer: Any, batches: Sequence[Any], device: str) -> float:
    return milliseconds(partial(train, trainer, batches), device) / len(batches)


def penalty_row(rounds: Sequence[dict[str, float]], **same: Any) -> Optional[Row]:
    """Return what ``rbn`` takes longer than ``batch``, as a part of the latter's update."""
    if not {"batch", "rbn"} <= rounds[0].keys():
        return None
    _, ms, _ = quartiles([times["rbn"] - times["batch"] for times in rounds])
    low, share, high = quartiles([times["rbn"] / times["batch"] - 1 for times in rounds])
    same |= {"bench": "penalty", "norm": "rbn - batch", "floor": None}
    return Row(ms=ms, n=len(rounds), share=share, spread=(low, high), **same)


def time_updates(
    data: str,
    settings: Mapping[str, Sequence[str]],
    common: Sequence[str] = tuple(DEFAULTS.split()),
    rounds: int = 20,
    updates: int = 5,
    device: str = "cpu",
    threads: int = 1,
) -> list[Row]:
    """Train models of several settings in turn, on the same batches, and measure their memory.

    The memory is that of a trainer from its making to the end of updates on these batches:
    weights, gradients, the optimizer's state, activations. It is measured before the rounds.

    The floor of an update is the time of the first setting's matrix products at the rate of a
    product of large matrices, measured in each round.

    Args:
        data: directory that fairseq-preprocess filled.
        settings: fairseq-train's options by name; the first is the reference.
        common: options of all settings.
        rounds: how often every setting has its turn.
        updates: updates a turn, on batches drawn uniformly from an epoch.
        device: ``cpu`` or ``cuda``.
        threads: of torch, as they are set.

    Raises:
        ValueError: if fairseq-train does not take the options, or settings differ in batches.
    """
    makers, trainers = {}, {}
    for name, own in settings.items():
        makers[name] = partial(make_trainer, data, [*common, *own], device)
        try:
            trainers[name] = makers[name]()
        except ValueError as error:
            raise ValueError(f"`{name}`: {error}") from error
    check_batches({name: trainer.cfg for name, trainer in trainers.items()})
    first, *_ = trainers.values()
    batches = draw(first, updates)
    same: dict[str, Any] = {
        "device": device,
        "threads": threads,
        "dtype": training_dtype(first.cfg),
        "case": f"{first.cfg.model._name}/{first.cfg.dataset.max_tokens}",
    }
    make, *_ = makers.values()
    # First of all: what libraries take from the allocator once is no setting's memory.
    flops = count_flops(partial(train, make(), batches)) / len(batches)
    memory = _memory(makers, batches, **same)
    product = MatrixProduct(device, getattr(torch, product_dtype(first.cfg)))
    actions = {
        name: partial(_one_update, trainer, batches, device) for name, trainer in trainers.items()
    }
    actions[FLOOR] = partial(product.milliseconds, flops)
    taken = take_turns(actions, rounds, "training")
    same |= {"bench": "train", "floor": f"{flops / 1e9:,.0f} GFLOP of matrix products"}
    penalty = penalty_row(taken, **same)
    return summarise(taken, **same) + ([penalty] if penalty else []) + memory
