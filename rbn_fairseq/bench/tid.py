"""What measuring during training costs: TID in one pass and in two, conditioning."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rbn_fairseq.bench.training import make_trainer, seconds, train
from rbn_fairseq.diagnostics import batch_norms, population
from rbn_fairseq.tasks.batches import collate, sample_batches
from rbn_fairseq.tasks.conditioning import ConditioningConfig
from rbn_fairseq.tasks.monitor import MonitorConfig
from rbn_fairseq.tasks.norm_records import How, measure_layers, norm_records

__all__ = ["Cost", "time_measuring", "total_costs"]

_UPDATE, _CONDITIONED, _ONE, _TWO = "update", "update with conditioning", "one pass", "two passes"


@dataclass(frozen=True)
class Cost:
    """What one way of measuring takes, beside an epoch of training.

    Attributes:
        name: what is measured, how often.
        seconds: an epoch's, the median over rounds.
        share: of an epoch of training, the median over rounds of ratios of one round.
        quartiles: first and third quartile of that share.
    """

    name: str
    seconds: float
    share: float
    quartiles: tuple[float, float]


def _one_pass(model: Any, dataset: Any, batches: Sequence[Any]) -> None:
    layers = measure_layers(model, dataset, batches)
    norm_records(layers, 1, 1, How(batches=len(batches)))


def _two_passes(model: Any, dataset: Any, batches: Sequence[Any]) -> None:
    """Measure as the paper tells: one epoch estimates the population, another compares."""
    first = measure_layers(model, dataset, batches)
    populations = {name: population(moments) for name, moments in first.items()}
    for name, moments in measure_layers(model, dataset, batches).items():
        mean, var = populations[name]
        (moments.mean - mean).norm(dim=1).mean() / var.sqrt().norm()
        (moments.var.sqrt() - var.sqrt()).norm(dim=1).mean() / var.sqrt().norm()


def time_measuring(
    data: str, directory: str, arguments: Sequence[str], rounds: int = 10, batches: int = 20
) -> tuple[int, Iterator[dict[str, float]]]:
    """Train and measure in turn, each round all of them on the same batches.

    Batches for measuring are collated within the time, those for training before it.

    Args:
        data: directory that fairseq-preprocess filled.
        directory: for what is written meanwhile.
        arguments: fairseq-train's options; the plan must have batch norms.
        rounds: how often everything has its turn; one more warms up.
        batches: per round, drawn uniformly from an epoch.

    Returns:
        The number of batches of an epoch, and an iterator over the rounds' seconds per batch.

    Raises:
        ValueError: if fairseq-train does not take the options, or there is no batch norm.
    """
    plain = make_trainer(data, arguments)
    if not batch_norms(plain.model):
        raise ValueError("The model has no batch norm to measure. Add --norm-encoder batch.")
    always = ("--conditioning-interval", "1", "--save-dir", directory)
    watched = make_trainer(data, [*arguments, *always])
    iterator = plain.get_train_iterator(epoch=1)
    return len(iterator.frozen_batches), _rounds(plain, watched, iterator, rounds, batches)


def _rounds(
    plain: Any, watched: Any, iterator: Any, rounds: int, batches: int
) -> Iterator[dict[str, float]]:
    dataset = plain.task.dataset(plain.cfg.dataset.train_subset)
    for round_ in range(rounds + 1):
        drawn = sample_batches(iterator, batches, seed=round_)
        samples = list(collate(dataset, drawn, plain.model))
        actions: dict[str, Callable[[], None]] = {
            _UPDATE: partial(train, plain, samples),
            _CONDITIONED: partial(train, watched, samples),
            _ONE: partial(_one_pass, plain.model, dataset, drawn),
            _TWO: partial(_two_passes, plain.model, dataset, drawn),
        }
        names = list(actions)
        first = round_ % len(names)
        times = {
            name: seconds(actions[name]) / len(drawn) for name in names[first:] + names[:first]
        }
        if round_ > 0:
            yield times


def total_costs(rounds: Sequence[dict[str, float]], epoch: int) -> list[Cost]:
    """Turn seconds per batch into shares of an epoch of ``epoch`` updates.

    The first is that of training itself; the last the ratio of one pass to two.
    """
    interval, sample = ConditioningConfig.conditioning_interval, MonitorConfig.tid_batches
    sample = min(sample, epoch)

    def cost(name: str, part: Callable[[dict[str, float]], float], whole: str = _UPDATE) -> Cost:
        shares = [part(times) / times[whole] for times in rounds]
        low, middle, high = np.quantile(shares, [0.25, 0.5, 0.75]).tolist()
        taken = float(np.median([part(times) for times in rounds])) * epoch
        return Cost(name, taken, middle, (low, high))

    return [
        cost(f"training, {epoch} updates", lambda times: times[_UPDATE]),
        cost(
            f"TID of {sample} batches, the monitor's default",
            lambda times: times[_ONE] * sample / epoch,
        ),
        cost("TID of all batches, one pass", lambda times: times[_ONE]),
        cost("TID of all batches, two passes", lambda times: times[_TWO]),
        cost(
            f"conditioning every {interval} updates, the default",
            lambda times: (times[_CONDITIONED] - times[_UPDATE]) / interval,
        ),
        cost("one pass, as a share of two", lambda times: times[_ONE], _TWO),
    ]
