"""Norms with a state or a backward of their own, against step-by-step simulations.

A simulation has ``step(u, grad, number, options)`` for the real tokens ``u: (n, C)`` of update
``number``, counted from 1, and returns output and gradients of u and of the parameters; ``state()``
returns its running statistics by the names of the norm's buffers.
"""

import copy

import torch

import oracles
from rbn_fairseq.norms import ValidTokens


def batch(step, channels=4, shift=0.0):
    """Padded sentences whose scale and mean wander, and gradients, not zero at padding."""
    generator = torch.Generator().manual_seed(step)
    valid = oracles.real_tokens(6, [6, 1 + step % 5, 3])
    x = torch.randn(*valid.shape, channels, generator=generator, dtype=torch.double)
    scale = 0.3 + 3 * torch.rand(channels, generator=generator, dtype=torch.double)
    upstream = torch.randn(*x.shape, generator=generator, dtype=torch.double)
    mean = shift * torch.randn(channels, generator=generator, dtype=torch.double)
    return (x * scale + mean).float(), valid, upstream.float()


def run(norm, x, valid, upstream, step):
    """Output and the gradients of x and of the parameters, after ``step`` updates."""
    norm.set_num_updates(step)
    x = x.clone().requires_grad_()
    y = norm(x, ValidTokens(valid))
    return y, *torch.autograd.grad(y, (x, *norm.parameters()), upstream)


def assert_steps_agree(norm, simulation, steps, shift=0.0):
    """The steps of the norm are those of the simulation; every 7th one begins with a new norm,
    from what a checkpoint has of the old one."""
    new = copy.deepcopy(norm)
    # fp32's rounding, gathered in the running terms over the steps.
    close = {"rtol": 1e-4, "atol": 1e-4}
    for step in steps:
        if step % 7 == 6:
            resumed = copy.deepcopy(new)
            resumed.load_state_dict(norm.state_dict())
            norm = resumed
        x, valid, upstream = batch(step, shift=shift)
        y, dx, *rest = run(norm, x, valid, upstream, step)
        u, grad = x[valid].double(), upstream[valid].double()
        wanted = simulation.step(u, grad, step + 1, norm.options)
        assert not dx[~valid].any()
        for actual, value in zip((y[valid], dx[valid], *rest), wanted, strict=True):
            torch.testing.assert_close(actual.double(), value, **close)
        for name, value in simulation.state().items():
            buffer = norm.population.get_buffer(name)
            torch.testing.assert_close(buffer.double(), value, **close)
    assert simulation.state().keys() == dict(norm.population.named_buffers()).keys()
