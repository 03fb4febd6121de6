"""Norms whose backward is not the derivative of their forward, against step-by-step simulations.

A simulation has ``step(u, grad, number, options)`` for the real tokens ``u: (n, C)`` of update
``number``, counted from 1, and returns output and gradients of u, weight and bias; ``state()``
returns its running statistics by the names of the norm's buffers.
"""

import copy

import pytest
import torch

import oracles
from rbn_fairseq.norms import ValidTokens, dummy_batch, freeze_statistics

SCOPES = pytest.mark.parametrize("scope", [freeze_statistics, dummy_batch])


def batch(step, channels=4):
    """Padded sentences whose scale wanders, and gradients, not zero at padding."""
    generator = torch.Generator().manual_seed(step)
    valid = oracles.real_tokens(6, [6, 1 + step % 5, 3])
    x = torch.randn(*valid.shape, channels, generator=generator, dtype=torch.double)
    scale = 0.3 + 3 * torch.rand(channels, generator=generator, dtype=torch.double)
    upstream = torch.randn(*x.shape, generator=generator, dtype=torch.double)
    return (x * scale).float(), valid, upstream.float()


def run(norm, x, valid, upstream, step, drop=None):
    """Output and the gradients of x, weight and bias, after ``step`` updates."""
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
        for name, value in simulation.state().items():
            buffer = norm.population.get_buffer(name)
            torch.testing.assert_close(buffer.double(), value, **close)
    assert simulation.state().keys() == dict(norm.population.named_buffers()).keys()


def assert_nothing_moves(norm, scope, step):
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


def assert_half_precision(norm, dtype, tolerance):
    """Statistics are fp32, also where the squares' sum is beyond half's 65504."""
    twin = copy.deepcopy(norm).to(dtype)
    x, valid, upstream = batch(1, 16)
    x = 40 * x
    y, *_ = run(twin, x.to(dtype), valid, upstream.to(dtype), 0)
    exact, *_ = run(norm, x.to(dtype).float(), valid, upstream.to(dtype).float(), 0)
    square = twin.population.running_square
    assert (y.dtype, square.dtype) == (dtype, torch.float32)
    # Inputs, weight and outputs are rounded to 11 or 8 bits.
    torch.testing.assert_close(y[valid].float(), exact[valid], rtol=4 * tolerance, atol=tolerance)
    torch.testing.assert_close(square, norm.population.running_square, rtol=tolerance, atol=0)


def assert_frozen_divides_by_the_batch(norm):
    """What recalibration rests on: then nothing depends on running statistics."""
    x, valid, upstream = batch(1)
    norm.population.running_square.fill_(100.0)
    with freeze_statistics():
        y, dx, *_ = run(norm, x, valid, upstream, 50)
    u = x[valid].double()
    exact = u / torch.sqrt((u**2).mean(0) + 1e-5) * norm.weight + norm.bias
    torch.testing.assert_close(y[valid].double(), exact, rtol=1e-5, atol=1e-5)


def assert_evaluation(norm):
    norm.eval()
    norm.population.running_square.copy_(torch.rand(4) + 0.5)
    x = torch.randn(5, 2, 4)
    exact = x.double() / torch.sqrt(norm.population.running_square.double() + 1e-5)
    torch.testing.assert_close(norm(x).double(), exact * norm.weight + norm.bias)
