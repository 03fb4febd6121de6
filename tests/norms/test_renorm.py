"""Batch renormalisation, against a simulation of Algorithm 1 in float64, step by step."""

import copy

import pytest
import torch

import oracles
from agreement import randomise
from rbn_fairseq.norms import (
    BatchNorm,
    BatchRenorm,
    BatchRenormOptions,
    ValidTokens,
    freeze_statistics,
    record_gaps,
)
from simulations import assert_steps_agree, batch

# A schedule that 60 steps cross: plain batch norm, growing limits, full limits.
OPTIONS = {"momentum": 0.2, "r_max": 1.5, "d_max": 0.5, "start": 10, "r_end": 40, "d_end": 25}


def random_norm(**options):
    return randomise(BatchRenorm(4, BatchRenormOptions(**(OPTIONS | options))))


class Simulation:
    """Algorithm 1 of the paper, for real tokens only; autograd does the gradients."""

    def __init__(self, norm):
        self.weight, self.bias = (p.detach().double().requires_grad_() for p in norm.parameters())
        channels = len(self.weight)
        self.mean, self.std = torch.zeros(channels).double(), torch.ones(channels).double()
        self.bound = []

    def state(self):
        return {"running_mean": self.mean, "running_std": self.std}

    def limits(self, step, o):
        def passed(end):
            if end == o.start:
                return float(step >= end)
            return min(max(step - o.start, 0) / (end - o.start), 1)

        return 1 + (o.r_max - 1) * passed(o.r_end), o.d_max * passed(o.d_end)

    def step(self, u, grad, number, o):
        u.requires_grad_()
        mean, var = oracles.moments(u)
        std = torch.sqrt(var + o.eps)
        r_max, d_max = self.limits(number - 1, o)
        r = (std / self.std).detach().clip(1 / r_max, r_max)
        d = ((mean - self.mean) / self.std).detach().clip(-d_max, d_max)
        self.bound.append((r == r_max) | (r == 1 / r_max) | (d.abs() == d_max))
        self.mean = self.mean + o.momentum * (mean.detach() - self.mean)
        self.std = self.std + o.momentum * (std.detach() - self.std)
        y = ((u - mean) / std * r + d) * self.weight + self.bias
        return y.detach(), *torch.autograd.grad(y, (u, self.weight, self.bias), grad)


def test_agrees_with_the_algorithm_over_its_schedule():
    norm = random_norm()
    simulation = Simulation(norm)
    assert_steps_agree(norm, simulation, range(60), shift=2)
    # The limits bind at times: a test in which they never did would not see them.
    bound = torch.stack(simulation.bound).double()
    assert 0.2 < bound[40:].mean() < 0.9 and bound[:10].all()


@pytest.mark.parametrize("r_end, d_end", [(3, 3), (3, 5), (5, 3)])
def test_a_schedule_may_be_a_step(r_end, d_end):
    norm = random_norm(start=3, r_end=r_end, d_end=d_end)
    assert_steps_agree(norm, Simulation(norm), range(8), shift=2)


def plain(norm):
    """The batch norm of the same parameters and statistics."""
    other = BatchNorm(4)
    other.load_state_dict(norm.state_dict(), strict=False)
    other.population.set(*norm.population.get())
    return other


def test_frozen_in_training_corrects_nothing():
    """What TID and recalibration rest on: then nothing depends on running statistics."""
    norm, (x, valid, _) = random_norm(), batch(1, shift=2)
    norm.set_num_updates(50)
    norm.population.running_std.fill_(7.0)
    with freeze_statistics():
        assert torch.equal(norm(x, ValidTokens(valid)), plain(norm)(x, ValidTokens(valid)))


def test_within_the_limits_training_is_evaluation():
    norm = random_norm(r_max=1e6, d_max=1e6, start=0, r_end=0, d_end=0)
    norm.population.set(torch.randn(4), 0.5 + torch.rand(4))
    x, valid, _ = batch(3, shift=2)
    y = copy.deepcopy(norm)(x, ValidTokens(valid))  # which moves the copy's statistics
    # Both divide by the same deviation, in another order.
    torch.testing.assert_close(y[valid], norm.eval()(x)[valid], rtol=1e-4, atol=1e-4)


def test_population_tells_variances():
    norm = random_norm()
    mean, var = torch.randn(4), torch.tensor([2.0, 0.1, 1e-5, 0.0])  # as small as eps, too
    norm.population.set(mean, var)
    assert torch.equal(norm.population.running_mean, mean)
    torch.testing.assert_close(norm.population.get()[1], var, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(norm.population.running_std, torch.sqrt(var + norm.options.eps))
    with record_gaps() as gaps:
        norm(torch.randn(5, 2, 4))
    torch.testing.assert_close(gaps[0].var_before, var, rtol=1e-6, atol=1e-8)
