"""Batch renormalisation, against a simulation of Algorithm 1 in float64, step by step."""

import copy

import pytest
import torch
from torch import nn

import oracles
from rbn_fairseq.norms import (
    BatchNorm,
    BatchRenorm,
    BatchRenormOptions,
    ValidTokens,
    dummy_batch,
    freeze_statistics,
    record_gaps,
)

# A schedule that 60 steps cross: plain batch norm, growing limits, full limits.
OPTIONS = BatchRenormOptions(momentum=0.2, r_max=1.5, d_max=0.5, start=10, r_end=40, d_end=25)


def random_norm(channels=4, options=OPTIONS):
    norm = BatchRenorm(channels, options)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


def batch(step, channels=4):
    """Padded sentences whose statistics wander, so that the limits bind at times."""
    generator = torch.Generator().manual_seed(step)
    valid = oracles.real_tokens(6, [6, 1 + step % 5, 3])
    x = torch.randn(*valid.shape, channels, generator=generator, dtype=torch.double)
    spread = 0.3 + 3 * torch.rand(channels, generator=generator, dtype=torch.double)
    shift = 2 * torch.randn(channels, generator=generator, dtype=torch.double)
    return x * spread + shift, valid


class Simulation:
    """Algorithm 1 of the paper in float64, for real tokens only; autograd does the gradients."""

    def __init__(self, norm):
        self.weight, self.bias = (p.detach().double().requires_grad_() for p in norm.parameters())
        channels = len(self.weight)
        self.mean, self.std = torch.zeros(channels).double(), torch.ones(channels).double()

    def limits(self, step, o):
        def passed(end):
            if end == o.start:
                return float(step >= end)
            return min(max(step - o.start, 0) / (end - o.start), 1)

        return 1 + (o.r_max - 1) * passed(o.r_end), o.d_max * passed(o.d_end)

    def step(self, real, step, o):
        mean, var = oracles.moments(real)
        std = torch.sqrt(var + o.eps)
        r_max, d_max = self.limits(step, o)
        r = (std / self.std).detach().clip(1 / r_max, r_max)
        d = ((mean - self.mean) / self.std).detach().clip(-d_max, d_max)
        self.bound = (r == r_max) | (r == 1 / r_max) | (d.abs() == d_max)
        self.mean += o.momentum * (mean.detach() - self.mean)
        self.std += o.momentum * (std.detach() - self.std)
        return ((real - mean) / std * r + d) * self.weight + self.bias


def assert_steps_agree(norm, first, last, simulation):
    for step in range(first, last):
        x, valid = batch(step)
        upstream = torch.randn_like(x)  # not zero at padding
        norm.set_num_updates(step)
        x32 = x.float().requires_grad_()
        y = norm(x32, ValidTokens(valid))
        dx, *dp = torch.autograd.grad(y, (x32, *norm.parameters()), upstream.float())
        real = x32.detach()[valid].double().requires_grad_()
        expected = simulation.step(real, step, norm.options)
        wanted = torch.autograd.grad(
            expected, (real, simulation.weight, simulation.bias), upstream.float()[valid].double()
        )
        # fp32: about 1e-6 of the largest number, through divisions by a std down to 0.1.
        close = {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(y[valid].double(), expected, **close)
        torch.testing.assert_close(dx[valid].double(), wanted[0], **close)
        assert not dx[~valid].any()
        for actual, value in zip(dp, wanted[1:], strict=True):
            torch.testing.assert_close(actual.double(), value, **close)
        torch.testing.assert_close(norm.population.running_mean.double(), simulation.mean, **close)
        torch.testing.assert_close(norm.population.running_std.double(), simulation.std, **close)


def test_agrees_with_the_algorithm_over_its_schedule():
    norm = random_norm()
    assert_steps_agree(norm, 0, 60, Simulation(norm))


@pytest.mark.parametrize("r_end, d_end", [(3, 3), (3, 5), (5, 3)])
def test_a_schedule_may_be_a_step(r_end, d_end):
    options = BatchRenormOptions(
        momentum=0.2, r_max=1.5, d_max=0.5, start=3, r_end=r_end, d_end=d_end
    )
    norm = random_norm(options=options)
    assert_steps_agree(norm, 0, 8, Simulation(norm))


def test_these_steps_meet_limits_and_do_not():
    """Else the comparison above would not see the clipping, or nothing else."""
    simulation, bound = Simulation(random_norm()), []
    for step in range(60):
        x, valid = batch(step)
        simulation.step(x[valid], step, OPTIONS)
        bound.append(simulation.bound)
    full = torch.cat(bound[40:]).double().mean()
    assert 0.2 < full < 0.8 and torch.cat(bound[:10]).all()


def test_before_the_start_it_is_batch_norm():
    norm, other = random_norm(), BatchNorm(4)
    other.load_state_dict(
        {
            "weight": norm.weight,
            "bias": norm.bias,
            **other.population.state_dict(prefix="population."),
        }
    )
    x, valid = batch(3)
    norm.set_num_updates(OPTIONS.start)
    y, wanted = norm(x.float(), ValidTokens(valid)), other(x.float(), ValidTokens(valid))
    torch.testing.assert_close(y, wanted)


def test_within_the_limits_training_is_evaluation():
    wide = BatchRenormOptions(r_max=1e6, d_max=1e6, start=0, r_end=0, d_end=0)
    norm = random_norm(options=wide)
    norm.population.set(torch.randn(4), 0.5 + torch.rand(4))
    x, valid = batch(3)
    y = copy.deepcopy(norm)(x.float(), ValidTokens(valid))  # which moves the copy's statistics
    # Both divide by the same deviation, in another order.
    torch.testing.assert_close(
        y[valid], norm.eval()(x.float(), ValidTokens(valid))[valid], rtol=1e-4, atol=1e-4
    )


def test_population_tells_variances():
    norm = random_norm()
    mean, var = torch.randn(4), torch.tensor([2.0, 0.1, 1e-5, 0.0])  # as small as eps, too
    norm.population.set(mean, var)
    torch.testing.assert_close(norm.population.get()[1], var, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(norm.population.running_std, torch.sqrt(var + OPTIONS.eps))
    with record_gaps() as gaps:
        norm(torch.randn(5, 2, 4))
    torch.testing.assert_close(gaps[0].var_before, var, rtol=1e-6, atol=1e-8)


def test_interrupted_run_goes_on():
    """State in mid-schedule: a copy by state dict, told the update, does the same."""
    norm = random_norm()
    simulation = Simulation(norm)
    assert_steps_agree(norm, 0, 30, simulation)
    resumed = BatchRenorm(4, OPTIONS)
    resumed.load_state_dict(norm.state_dict())
    for step in range(30, 45):
        x, valid = batch(step)
        for each in (norm, resumed):
            each.set_num_updates(step)
        assert torch.equal(*(each(x.float(), ValidTokens(valid)) for each in (norm, resumed)))
    assert torch.equal(norm.population.running_std, resumed.population.running_std)


@pytest.mark.parametrize("scope", [freeze_statistics, dummy_batch])
def test_statistics_that_must_not_move(scope):
    norm = random_norm()
    before = copy.deepcopy(norm.state_dict())
    with scope():
        assert norm(torch.randn(5, 2, 4)).isfinite().all()
    norm(torch.full((5, 2, 4), torch.inf))  # not finite
    norm(torch.randn(3, 1, 4), ValidTokens(torch.zeros(3, 1, dtype=torch.bool)))  # empty
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())


@pytest.mark.parametrize(
    "options, said",
    [
        ({"momentum": 0.0}, "--norm-renorm-momentum"),
        ({"eps": -1.0}, "--norm-renorm-eps"),
        ({"r_max": 0.5}, "--norm-renorm-r-max"),
        ({"d_max": float("inf")}, "--norm-renorm-d-max"),
        ({"start": -1}, "--norm-renorm-start"),
        ({"start": 10, "r_end": 9}, "--norm-renorm-r-end.*at least `start`, 10 .*but is 9"),
        ({"start": 30_000}, "--norm-renorm-d-end.*at least `start`, 30000"),
    ],
)
def test_refuses_options(options, said):
    with pytest.raises(ValueError, match=said):
        BatchRenormOptions(**options)


def test_frozen_in_training_corrects_nothing():
    """What TID and recalibration rest on: then nothing depends on running statistics."""
    norm, plain = random_norm(), BatchNorm(4)
    plain.load_state_dict(norm.state_dict(), strict=False)
    norm.set_num_updates(50)
    norm.population.running_std.fill_(7.0)
    x, valid = batch(1)
    with freeze_statistics():
        one, two = (part(x.float(), ValidTokens(valid)) for part in (norm, plain))
    assert torch.equal(one, two)
