"""Prints what running statistics lose by remembering the last batches, with the weights as saved.

A running average with momentum m gives the batch of k updates before the weight m (1 - m)^k. The
statistics of all training batches are taken once, as training does: with dropout on, each batch
normalised by its own. Averages of them by these weights, in random orders and in that of the last
epoch of the training (one process), then take the place of the running statistics. Prints JSON
lines: nll of the validation set in bits a token, what it is above that of equal weights, and the
mean length of the sentences remembered, in tokens.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import data_utils

from rbn_fairseq.diagnostics import collect_moments, population_norms
from rbn_fairseq.measuring.batches import collate
from rbn_fairseq.measuring.cost import likelihood
from rbn_fairseq.measuring.session import open_session


def weights_by_momentum(number: int, momentum: float) -> np.ndarray:
    """Return the weights of ``number`` batches in the order of training, which add up to 1."""
    weights = (1 - momentum) ** np.arange(number)[::-1]
    return weights / weights.sum()


def last_order(number: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order in which fairseq takes an epoch's batches."""
    order = np.arange(number)
    with data_utils.numpy_seed(seed + epoch):
        np.random.shuffle(order)  # noqa: NPY002 (fairseq's)
    return order


def measure(path: Path, epoch: int, draws: int, momenta: list[float]) -> None:
    """Measure a checkpoint that an epoch ended with."""
    session = open_session(path)
    model, batches = session.model, session.iterator.frozen_batches
    lengths = session.task.adapter.source_lengths(session.dataset)
    mean_lengths = np.array([lengths[np.asarray(batch)].mean() for batch in batches])
    norms = population_norms(model)
    torch.manual_seed(1)  # for dropout
    samples = collate(session.dataset, batches, model)
    layers = collect_moments(model, samples, session.task.adapter.run_norms, True, norms)
    dataset, iterator = session.validation()
    padding = session.task.target_dictionary.pad()

    def nll() -> float:
        valid = collate(dataset, iterator.frozen_batches, model)
        return likelihood(model, valid, padding).nll

    def show(statistics: str, weights: Any = None, **more: Any) -> float:
        if weights is not None:
            for name, norm in norms.items():
                moments = torch.from_numpy(weights)
                norm.population.set(moments @ layers[name].mean, moments @ layers[name].var)
            more["length"] = round(float(weights @ mean_lengths), 3)
        value = nll()
        if "equal" in more:
            more["lag"] = value - more.pop("equal")
        print(json.dumps({"statistics": statistics, "nll": value, **more}), flush=True)
        return value

    number = len(batches)
    show("as saved")
    equal = show("equal weights", np.full(number, 1 / number))
    orders = {"training": last_order(number, session.cfg.common.seed, epoch)}
    rng = np.random.default_rng(1)
    orders |= {f"random {n + 1}": rng.permutation(number) for n in range(draws)}
    for momentum in momenta:
        for name, order in orders.items():
            weights = np.empty(number)
            weights[order] = weights_by_momentum(number, momentum)
            show(f"order: {name}", weights, momentum=momentum, equal=equal)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--epoch", type=int, required=True, help="the one that it ended")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--momenta", type=float, nargs="+", default=[0.05, 0.02, 0.01])
    arguments = parser.parse_args()
    measure(arguments.checkpoint, arguments.epoch, arguments.draws, arguments.momenta)
