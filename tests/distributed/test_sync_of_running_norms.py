"""Norms with running statistics on two processes, against themselves on the joined batch.

What one process computes has its own oracles in tests/norms.
"""

import pytest
import torch

import oracles
from processes import WORLD
from rbn_fairseq.norms import (
    BatchRenorm,
    BatchRenormOptions,
    MovingAverageBatchNorm,
    MovingAverageBatchNormOptions,
    PowerNorm,
    PowerNormOptions,
    RepBatchNorm,
    RepBatchNormOptions,
    UnifiedNorm,
    UnifiedNormOptions,
    ValidTokens,
)

CHANNELS, STEPS = 4, 8
NORMS = {  # their schedules begin and end within the steps
    "renorm": lambda sync: BatchRenorm(
        CHANNELS, BatchRenormOptions(momentum=0.2, start=1, r_end=4, d_end=4), sync
    ),
    "repbn": lambda sync: RepBatchNorm(CHANNELS, RepBatchNormOptions(), sync),
    "repbn with layer_end": lambda sync: RepBatchNorm(
        CHANNELS, RepBatchNormOptions(layer_end=4), sync
    ),
    "power": lambda sync: PowerNorm(CHANNELS, PowerNormOptions(warmup=3), sync),
    "power, paper": lambda sync: PowerNorm(
        CHANNELS, PowerNormOptions(warmup=3, backward="running"), sync
    ),
    "mabn": lambda sync: MovingAverageBatchNorm(
        CHANNELS, MovingAverageBatchNormOptions(window=2, warmup=3, r_max=1.1, r_start=4), sync
    ),
    "un": lambda sync: UnifiedNorm(
        CHANNELS,
        UnifiedNormOptions(window=2, warmup=3, r_max=1.1, r_start=4),
        sync,
    ),
}
LENGTHS = [[[5, 2], [3, 4]], [[1], [0]], [[2, 2], [5, 5]]]  # by step, then by rank


def data(step, rank):
    valid = oracles.real_tokens(5, LENGTHS[step % 3][rank])
    generator = torch.Generator().manual_seed(10 * step + rank)
    x, upstream = torch.randn(2, *valid.shape, CHANNELS, dtype=torch.double, generator=generator)
    return (x * (1 + rank) + rank).masked_fill(~valid.unsqueeze(2), torch.nan), valid, upstream


def train_step(norm, step, x, valid, upstream):
    """Outputs and gradients at real tokens, gradients of the parameters, buffers."""
    norm.set_num_updates(step)
    x = x.clone().requires_grad_()
    y = norm(x, ValidTokens(valid))
    dx, *rest = torch.autograd.grad(y, (x, *norm.parameters()), upstream)
    assert not dx[~valid].any()
    return y.detach()[valid], dx[valid], rest, [b.clone() for b in norm.buffers()]


def train(name, rank):
    norm = NORMS[name](True).double()
    return [train_step(norm, step, *data(step, rank)) for step in range(STEPS)]


def joined(name):
    """One process whose sentences are those of both ranks, tokens of rank 0 first."""
    norm = NORMS[name](False).double()
    for step in range(STEPS):
        batches = [data(step, rank) for rank in range(WORLD)]
        real = [torch.cat([b[i][b[1]] for b in batches]).unsqueeze(1) for i in (0, 2)]
        valid = torch.ones(len(real[0]), 1, dtype=torch.bool)
        yield train_step(norm, step, real[0], valid, real[1])


def work(rank):
    return {name: train(name, rank) for name in NORMS}


@pytest.mark.parametrize("name", NORMS)
def test_two_processes_are_one(ranks, name):
    for step, (y, dx, gradients, buffers) in enumerate(joined(name)):
        one, two = (results[name][step] for results in ranks)
        expected = {"y": (y, torch.cat([one[0], two[0]])), "x": (dx, torch.cat([one[1], two[1]]))}
        for number, parts in enumerate(zip(gradients, one[2], two[2], strict=True)):
            expected[f"parameter {number}"] = (parts[0], parts[1] + parts[2])
        for number, (value, *both) in enumerate(zip(buffers, one[3], two[3], strict=True)):
            assert torch.equal(*both)
            expected[f"buffer {number}"] = (value, both[0])
        for what, (wanted, actual) in expected.items():
            # fp64, in sums of another order.
            assert torch.allclose(actual, wanted, rtol=1e-9, atol=1e-9), (what, step)
