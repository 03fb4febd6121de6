"""Moving average batch norm, against a simulation in float64, step by step.

Behind its warm-up its backward is not the derivative of its forward, so that autograd is no oracle.
"""

import pytest
import torch

from agreement import randomise
from rbn_fairseq.norms import MovingAverageBatchNorm, MovingAverageBatchNormOptions
from simulations import assert_steps_agree, batch, run

# 70 steps cross both bounds; the correction's limits bind.
OPTIONS = {"window": 5, "momentum": 0.1, "warmup": 12, "r_max": 1.05, "r_start": 30}


def random_norm(channels=4, **options):
    return randomise(
        MovingAverageBatchNorm(channels, MovingAverageBatchNormOptions(**(OPTIONS | options)))
    )


class Simulation:
    """The authors' rules for real tokens only, with lists of the last batches for windows."""

    corrects_output = True

    def __init__(self, norm):
        self.weight, self.bias = (p.detach().double() for p in norm.parameters())
        self.running = torch.ones_like(self.weight)
        window = norm.options.window
        self.squares = [torch.ones_like(self.weight)] * window
        self.gradients = [torch.zeros_like(self.weight)] * window
        self.bound = []

    def state(self):
        return {
            "running_square": self.running,
            "square_window": torch.stack(self.squares),
            "gradient_window": torch.stack(self.gradients),
        }

    def mean_square(self, o):
        return sum(self.squares) / o.window

    def smoothed(self, mean, o):
        return mean

    def step(self, u, grad, number, o):
        slot = number % o.window
        by_batch = number <= o.window or number < o.warmup
        self.squares[slot] = (u**2).mean(0)
        v = self.squares[slot] if by_batch else self.mean_square(o)
        z = u / torch.sqrt(v + o.eps)
        r = torch.ones_like(v)
        if number > o.r_start:
            free = torch.sqrt(v + o.eps) / torch.sqrt(self.running + o.eps)
            r = torch.clip(free, 1 / o.r_max, o.r_max)
            self.bound.append((r != free).double().mean().item())
        self.running = (1 - o.momentum) * self.running + o.momentum * v
        arriving = grad * self.weight * r
        self.gradients[slot] = (arriving * z).mean(0)
        m = self.gradients[slot] if by_batch else sum(self.gradients) / o.window
        return (
            self.weight * (r if self.corrects_output else 1) * z + self.bias,
            (arriving - z * self.smoothed(m, o)) / torch.sqrt(v + o.eps),
            (grad * r * z).sum(0),
            grad.sum(0),
        )


@pytest.mark.parametrize("window", [1, 5, 20], ids="window {}".format)
def test_agrees_with_the_rules_across_both_bounds(window):
    norm = random_norm(window=window)
    simulation = Simulation(norm)
    assert_steps_agree(norm, simulation, range(70))
    share = sum(simulation.bound) / len(simulation.bound)
    assert 0.05 < share < 0.95  # the limits bind at times


def test_without_warm_up_and_with_the_correction_from_the_start():
    norm = random_norm(warmup=0, r_start=0)
    assert_steps_agree(norm, Simulation(norm), range(12))


def test_micro_batches_share_a_slot():
    norm = random_norm()
    for part in (1, 2):
        run(norm, *batch(part), 7)
    x, valid, _ = batch(2)
    slots = norm.population.get_buffer("square_window")
    torch.testing.assert_close(slots[8 % 5], x[valid].square().mean(0))
    assert (slots == 1).all(1).sum() == 4
