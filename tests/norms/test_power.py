"""PowerNorm, against a simulation of its two algorithms in float64, step by step.

Its backward is not the derivative of its forward, so that autograd is no oracle.
"""

import copy

import pytest
import torch
from torch import nn

import oracles
from rbn_fairseq.norms import (
    PowerNorm,
    PowerNormOptions,
    ValidTokens,
    dummy_batch,
    freeze_statistics,
)

# A warm-up that 60 steps cross, and alphas that differ.
OPTIONS = {"alpha_forward": 0.8, "alpha_backward": 0.7, "warmup": 25}


def random_norm(channels=4, **options):
    norm = PowerNorm(channels, PowerNormOptions(**(OPTIONS | options)))
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


def batch(step, channels=4):
    generator = torch.Generator().manual_seed(step)
    valid = oracles.real_tokens(6, [6, 1 + step % 5, 3])
    x = torch.randn(*valid.shape, channels, generator=generator, dtype=torch.double)
    scale = 0.3 + 3 * torch.rand(channels, generator=generator, dtype=torch.double)
    upstream = torch.randn(*x.shape, generator=generator, dtype=torch.double)
    return (x * scale).float(), valid, upstream.float()  # upstream: not zero at padding


class Simulation:
    """Algorithms 1 and 2 of the paper, with the authors' warm-up, for real tokens only."""

    def __init__(self, norm):
        self.weight, self.bias = (p.detach().double() for p in norm.parameters())
        self.psi2, self.n = torch.ones_like(self.weight), torch.zeros_like(self.weight)

    def step(self, u, grad, number, o):
        """``number`` counts from 1. Returns output and the gradients of u, weight and bias."""
        q = (u**2).mean(0)
        divisor = q if number <= o.warmup else self.psi2
        z = u / torch.sqrt(divisor + o.eps)
        if number < o.warmup:
            self.psi2 = self.psi2 * (number - 1) / number + q / number
        self.psi2 = o.alpha_forward * self.psi2 + (1 - o.alpha_forward) * q
        t = grad * self.weight - (1 - o.alpha_backward) * self.n * z
        self.n = self.n + (t * z).mean(0)
        by = q if o.backward == "batch" else divisor
        return (
            z * self.weight + self.bias,
            t / torch.sqrt(by + o.eps),
            (grad * z).sum(0),
            grad.sum(0),
        )


def run(norm, x, valid, upstream, step, drop=None):
    norm.set_num_updates(step)
    x = x.clone().requires_grad_()
    y = norm(x, ValidTokens(valid, drop=drop))
    return y, *torch.autograd.grad(y, (x, *norm.parameters()), upstream)


def assert_steps_agree(norm, simulation, steps, drop=None):
    # fp32's rounding, gathered in the running terms over the steps.
    close = {"rtol": 1e-4, "atol": 1e-4}
    for step in steps:
        x, valid, upstream = batch(step)
        y, dx, dweight, dbias = run(norm, x, valid, upstream, step, drop)
        u, grad = x[valid].double(), upstream[valid].double()
        wanted = simulation.step(u, grad, step + 1, norm.options)
        assert not dx[~valid].any()
        for actual, value in zip((y[valid], dx[valid], dweight, dbias), wanted, strict=True):
            torch.testing.assert_close(actual.double(), value, **close)
        population = norm.population
        torch.testing.assert_close(population.running_square.double(), simulation.psi2, **close)
        torch.testing.assert_close(population.running_gradient.double(), simulation.n, **close)


@pytest.mark.parametrize("backward", ["batch", "running"])
@pytest.mark.parametrize("drop", [True, False], ids=["drop", "zero"])
def test_agrees_with_the_algorithms_across_the_warm_up(backward, drop):
    norm = random_norm(backward=backward)
    assert_steps_agree(norm, Simulation(norm), range(60), drop)


def test_without_warm_up():
    norm = random_norm(warmup=0)
    assert_steps_agree(norm, Simulation(norm), range(10))


def test_the_two_readings_differ_after_the_warm_up_only():
    gradients = []
    norm = random_norm()
    for backward in ("batch", "running"):
        own = copy.deepcopy(norm)
        own.options = PowerNormOptions(**OPTIONS, backward=backward)
        gradients.append([run(own, *batch(step), step)[1] for step in range(30)])
    assert all(torch.equal(*pair) for pair in list(zip(*gradients, strict=True))[:25])
    assert not torch.allclose(gradients[0][25], gradients[1][25], rtol=1e-2)


def test_interrupted_run_goes_on():
    norm = random_norm()
    simulation = Simulation(norm)
    assert_steps_agree(norm, simulation, range(20))
    resumed = random_norm()
    resumed.load_state_dict(norm.state_dict())
    assert_steps_agree(resumed, simulation, range(20, 40))


def test_evaluation():
    norm = random_norm().eval()
    norm.population.running_square.copy_(torch.rand(4) + 0.5)
    x = torch.randn(5, 2, 4)
    exact = x.double() / torch.sqrt(norm.population.running_square.double() + 1e-5)
    torch.testing.assert_close(norm(x).double(), exact * norm.weight + norm.bias)


@pytest.mark.parametrize("dtype, tolerance", [(torch.half, 2e-3), (torch.bfloat16, 2e-2)])
def test_half_precision(dtype, tolerance):
    """Statistics are fp32, also where the squares' sum is beyond half's 65504."""
    norm = random_norm(16)
    twin = copy.deepcopy(norm).to(dtype)
    x, valid, upstream = batch(1, 16)
    x = 40 * x
    y, dx, *_ = run(twin, x.to(dtype), valid, upstream.to(dtype), 0)
    wanted = run(norm, x.to(dtype).float(), valid, upstream.to(dtype).float(), 0)
    assert (y.dtype, twin.population.running_square.dtype) == (dtype, torch.float32)
    # Inputs, weight and outputs are rounded to 11 or 8 bits.
    torch.testing.assert_close(
        y[valid].float(), wanted[0][valid], rtol=4 * tolerance, atol=tolerance
    )
    torch.testing.assert_close(
        twin.population.running_square, norm.population.running_square, rtol=tolerance, atol=0
    )


@pytest.mark.parametrize("scope", [freeze_statistics, dummy_batch])
def test_statistics_that_must_not_move(scope):
    norm = random_norm()
    norm.population.running_gradient.normal_()
    before = copy.deepcopy(norm.state_dict())
    x, valid, upstream = batch(1)
    with scope():
        y = norm(x.requires_grad_(), ValidTokens(valid))
    y.backward(upstream)  # after the block, as in training
    nothing = torch.zeros_like(valid)
    for values, mask in ((x * torch.inf, valid), (x, nothing)):
        run(norm, values.detach(), mask, upstream, 1)
    run(norm, x.detach(), valid, upstream * torch.nan, 1)  # moves the forward's alone
    state = norm.state_dict()
    assert torch.equal(state["population.running_gradient"], before["population.running_gradient"])
    norm.load_state_dict(before)
    with scope():
        run(norm, x.detach(), valid, upstream, 1)
    run(norm, x.detach() * torch.inf, valid, upstream, 1)
    run(norm, x.detach(), nothing, upstream, 1)
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())


def test_frozen_in_training_normalises_by_the_batch():
    """What recalibration rests on: then nothing depends on the running mean."""
    norm = random_norm(warmup=0)
    x, valid, _ = batch(1)
    norm.population.running_square.fill_(100.0)
    with freeze_statistics():
        y = norm(x, ValidTokens(valid))
    u = x[valid].double()
    exact = u / torch.sqrt((u**2).mean(0) + 1e-5) * norm.weight + norm.bias
    torch.testing.assert_close(y[valid].double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"alpha_forward": 1.0}, "--norm-power-alpha-forward"),
        ({"alpha_backward": -0.1}, "--norm-power-alpha-backward"),
        ({"eps": 0.0}, "--norm-power-eps"),
        ({"warmup": -1}, "--norm-power-warmup"),
        ({"backward": "paper"}, "--norm-power-backward.*`batch` or `running`"),
    ],
)
def test_refuses_options(options, said):
    with pytest.raises(ValueError, match=said):
        PowerNormOptions(**options)
