"""Seconds per training update of several settings, interleaved on the same batches."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rbn_fairseq.bench.training import DEFAULTS, make_trainer, seconds, train

__all__ = ["UpdateTimes", "compare_updates", "time_updates"]


@dataclass(frozen=True)
class UpdateTimes:
    """What one setting took.

    Attributes:
        name: of the setting.
        seconds: per update, the median over rounds.
        ratio: to the first setting's seconds in the same round, the median over rounds.
        quartiles: first and third quartile of that ratio.
    """

    name: str
    seconds: float
    ratio: float
    quartiles: tuple[float, float]


def _batches(trainer: Any, number: int) -> list[Any]:
    """Return training batches in the order of an epoch; from the start again where they end."""
    epoch = trainer.get_train_iterator(epoch=1).next_epoch_itr(shuffle=True)
    read = list(itertools.islice(epoch, number))
    return list(itertools.islice(itertools.cycle(read), number))


def _batch_options(trainer: Any) -> tuple[Any, ...]:
    cfg = trainer.cfg
    return cfg.dataset, cfg.common.seed, cfg.optimization.update_freq, cfg.task.data


def _check_batches(trainers: dict[str, Any]) -> None:
    first, *_ = trainers.values()
    for name, trainer in trainers.items():
        if list(trainer.cfg.optimization.update_freq) != [1]:
            raise ValueError("--update-freq must be 1: an update is timed on one batch.")
        if _batch_options(trainer) != _batch_options(first):
            raise ValueError(
                f"`{name}`: options that make the batches (--max-tokens, --batch-size, --seed and "
                "the like) must be the same for all settings. Give them behind `--`."
            )


def time_updates(
    data: str,
    settings: dict[str, Sequence[str]],
    common: Sequence[str] = tuple(DEFAULTS.split()),
    rounds: int = 20,
    updates: int = 5,
) -> Iterator[dict[str, float]]:
    """Train models of several settings in turn, each round on the same batches.

    Every setting begins the round once in a while: the order moves on by one each time. A first
    round, not counted, warms up.

    Args:
        data: directory that fairseq-preprocess filled.
        settings: fairseq-train's options by name.
        common: options of all settings.
        rounds: how often every setting has its turn.
        updates: updates a turn.

    Yields:
        Seconds per update by name, round by round.

    Raises:
        ValueError: if fairseq-train does not take the options, or settings differ in batches.
    """
    trainers = {}
    for name, own in settings.items():
        try:
            trainers[name] = make_trainer(data, [*common, *own])
        except ValueError as error:
            raise ValueError(f"`{name}`: {error}") from error
    _check_batches(trainers)
    batches = _batches(next(iter(trainers.values())), (rounds + 1) * updates)
    names = list(settings)
    for round_ in range(rounds + 1):
        turn = batches[round_ * updates : (round_ + 1) * updates]
        first = round_ % len(names)
        times = {
            name: seconds(partial(train, trainers[name], turn)) / updates
            for name in names[first:] + names[:first]
        }
        if round_ > 0:
            yield {name: times[name] for name in names}


def compare_updates(rounds: Sequence[dict[str, float]]) -> list[UpdateTimes]:
    """Summarise the rounds of :func:`time_updates`, setting by setting, against the first."""
    reference, *_ = rounds[0]
    results = []
    for name in rounds[0]:
        ratios = np.array([times[name] / times[reference] for times in rounds])
        low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75]).tolist()
        median = float(np.median([times[name] for times in rounds]))
        results.append(UpdateTimes(name, median, middle, (low, high)))
    return results
