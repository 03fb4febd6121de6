"""Unified normalisation, against a simulation in float64, step by step.

Its backward is not the derivative of its forward; while statistics are frozen, autograd is an
oracle.
"""

import pytest
import torch

import test_mabn
from agreement import randomise
from rbn_fairseq.norms import UnifiedNorm, UnifiedNormOptions, freeze_statistics
from simulations import assert_steps_agree, batch, run

# 60 steps cross all bounds; the correction's limits bind at times.
OPTIONS = {"window": 5, "momentum": 0.2, "warmup": 12, "r_max": 1.05, "r_start": 30}


def random_norm(channels=4, **options):
    return randomise(UnifiedNorm(channels, UnifiedNormOptions(**(OPTIONS | options))))


class Simulation(test_mabn.Simulation):
    """The authors' rules: a geometric mean of squares, a running mean of the gradients' means, and
    an output that is not corrected."""

    corrects_output = False

    def __init__(self, norm):
        super().__init__(norm)
        self.term = torch.zeros_like(self.weight)

    def state(self):
        return super().state() | {"running_gradient": self.term}

    def mean_square(self, o):
        return (torch.stack(self.squares) + o.eps).prod(0) ** (1 / o.window) - o.eps

    def smoothed(self, mean, o):
        self.term = (1 - o.momentum) * self.term + o.momentum * mean
        return self.term


@pytest.mark.parametrize("window", [2, 5, 20], ids="window {}".format)
def test_agrees_with_the_rules_across_all_bounds(window):
    norm = random_norm(window=window)
    simulation = Simulation(norm)
    assert_steps_agree(norm, simulation, range(60))
    share = sum(simulation.bound) / len(simulation.bound)
    assert 0.05 < share < 0.95  # the limits bind at times


def test_without_warm_up_and_with_the_correction_from_the_start():
    norm = random_norm(warmup=0, r_start=0)
    assert_steps_agree(norm, Simulation(norm), range(12))


def test_a_channel_of_zeros_leaves_the_next_batches_their_size():
    norm = UnifiedNorm(2, UnifiedNormOptions(window=4, warmup=0, r_start=0))
    for update in range(12):
        norm.set_num_updates(update)
        x = torch.randn(200, 2) * torch.tensor([float(update != 6), 1])
        y = norm(x)
        # The geometric mean of three batches of size 1 and one of eps: 1e-5^(1/4), 1/18.
        assert y.square().mean(0).max() < 40, update


def test_rows_of_a_wider_dtype_move_the_same_statistics():
    norm = random_norm(window=2)
    y = norm(torch.ones(5, 4, dtype=torch.double))
    assert y.dtype == torch.double
    assert {buffer.dtype for buffer in norm.population.buffers()} == {torch.float32}


def test_while_frozen_the_backward_is_the_derivative():
    norm = random_norm().double()
    x, valid, upstream = (part.double() if part.is_floating_point() else part for part in batch(3))
    with freeze_statistics():
        _, *ours = run(norm, x, valid, upstream, 50)
    leaves = [x.clone().requires_grad_(), *norm.parameters()]
    u = leaves[0][valid]
    y = u / torch.sqrt((u**2).mean(0) + 1e-5) * leaves[1] + leaves[2]
    for one, two in zip(ours, torch.autograd.grad(y, leaves, upstream[valid]), strict=True):
        torch.testing.assert_close(one, two)
