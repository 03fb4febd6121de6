"""Degenerate batches: gradients stay finite, running statistics whole."""

import pytest
import torch

import oracles
from rbn_fairseq.norms import NORMS, NormPlace, PopulationNorm, ValidTokens

CHANNELS = 16
PLACE = NormPlace(CHANNELS, heads=2)
RUNNING = [
    name for name, entry in NORMS.items()
    if isinstance(entry.build(PLACE, entry.options_type()), PopulationNorm)
]  # fmt: skip


def outlier(x):
    x[1, 0, 3] = 1e15  # its square is finite in fp32


def constant(x):
    x[..., 2], x[..., 5] = 0.0, 3.0


def equal(x):
    x[:] = x[0, 0].clone()


ATTACKS = {
    "one huge outlier": (outlier, [4, 2], (4, 2)),
    "constant channels": (constant, [4, 2], (4, 2)),
    "equal tokens": (equal, [4, 2], (4, 2)),
    "all padding": (lambda x: None, [0, 0], (4, 2)),
    "one token": (lambda x: None, [1, 0], (4, 2)),
    "T = 1": (lambda x: None, [1, 1, 1], (1, 3)),
    "one token in all": (lambda x: None, [1], (1, 1)),
    "tiny values": (lambda x: x.mul_(1e-30), [4, 2], (4, 2)),
}
EVERY = pytest.mark.parametrize("name", RUNNING)


def train(name, x, valid):
    """Two batches through a norm in training, the second one the attack."""
    norm = NORMS[name].build(PLACE, NORMS[name].options_type())
    norm(torch.randn(5, 3, CHANNELS)).sum().backward()
    norm.zero_grad()
    before = [buffer.clone() for buffer in norm.population.buffers()]
    x.requires_grad_()
    y = norm(x, ValidTokens(valid))
    (y * torch.randn_like(y))[valid].sum().backward()
    return norm, y[valid], before


@EVERY
@pytest.mark.parametrize("attack", ATTACKS)
def test_gradients_are_finite(name, attack):
    spoil, lengths, shape = ATTACKS[attack]
    x, valid = torch.randn(*shape, CHANNELS), oracles.real_tokens(shape[0], lengths)
    spoil(x)
    norm, y, before = train(name, x, valid)
    for value in (y, x.grad, norm.weight.grad, *norm.population.buffers()):
        assert value.isfinite().all()
    moved = [not torch.equal(a, b) for a, b in zip(norm.population.buffers(), before, strict=True)]
    assert any(moved) == bool(valid.any())


@EVERY
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30], ids=str)
def test_statistics_that_are_not_finite_move_nothing(name, value):
    x, valid = torch.randn(4, 2, CHANNELS), oracles.real_tokens(4, [4, 2])
    x[1, 1, 3] = value
    norm, _, before = train(name, x, valid)
    for now, was in zip(norm.population.buffers(), before, strict=True):
        assert torch.equal(now, was)
