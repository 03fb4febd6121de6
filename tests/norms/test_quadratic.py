"""What holds for all norms that divide by a quadratic mean."""

import copy

import pytest
import torch

from agreement import randomise
from rbn_fairseq.norms import (
    MovingAverageBatchNorm,
    MovingAverageBatchNormOptions,
    PowerNorm,
    PowerNormOptions,
    UnifiedNorm,
    UnifiedNormOptions,
    ValidTokens,
    dummy_batch,
    freeze_statistics,
)
from simulations import batch, run

BUILD = {
    "power": lambda: PowerNorm(4, PowerNormOptions(warmup=25)),
    "mabn": lambda: MovingAverageBatchNorm(
        4, MovingAverageBatchNormOptions(window=5, warmup=12, r_max=1.05, r_start=30)
    ),
    "un": lambda: UnifiedNorm(4, UnifiedNormOptions(window=5, warmup=12, r_max=1.05, r_start=30)),
}


@pytest.fixture(params=BUILD)
def norm(request):
    return randomise(BUILD[request.param]())


@pytest.mark.parametrize("scope", [freeze_statistics, dummy_batch])
@pytest.mark.parametrize("step", [1, 50], ids=["in the warm-up", "behind it"])
def test_statistics_that_must_not_move(norm, scope, step):
    """Neither in the scope, nor on empty batches or such as are not finite."""
    for buffer in norm.buffers():
        torch.nn.init.uniform_(buffer, 0.5, 2.0)
    before = copy.deepcopy(norm.state_dict())
    x, valid, upstream = batch(1)
    nothing = torch.zeros_like(valid)
    with scope():
        run(norm, x, valid, upstream, step)
        y = norm(x.clone().requires_grad_(), ValidTokens(valid))
    y.backward(upstream)  # after the block, as in training
    run(norm, x * torch.inf, valid, upstream, step)
    run(norm, x, nothing, upstream, step)
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
    # Gradients that are not finite leave what the backward remembers alone, forward or not.
    run(norm, x, valid, upstream * torch.nan, step)
    for name, value in norm.state_dict().items():
        assert torch.equal(value, before[name]) == ("gradient" in name or "population" not in name)


def test_frozen_in_training_divides_by_the_batch(norm):
    """What recalibration rests on: then nothing depends on running statistics."""
    x, valid, upstream = batch(1)
    norm.population.running_square.fill_(100.0)
    with freeze_statistics():
        y, dx, *_ = run(norm, x, valid, upstream, 50)
    u = x[valid].double()
    exact = u / torch.sqrt((u**2).mean(0) + 1e-5) * norm.weight + norm.bias
    torch.testing.assert_close(y[valid].double(), exact, rtol=1e-5, atol=1e-5)


def test_evaluation(norm):
    norm.eval()
    norm.population.running_square.copy_(torch.rand(4) + 0.5)
    x = torch.randn(5, 2, 4)
    exact = x.double() / torch.sqrt(norm.population.running_square.double() + 1e-5)
    torch.testing.assert_close(norm(x).double(), exact * norm.weight + norm.bias)
