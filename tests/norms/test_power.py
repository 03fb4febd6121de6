"""PowerNorm, against a simulation of its two algorithms in float64, step by step.

Its backward is not the derivative of its forward, so that autograd is no oracle.
"""

import pytest
import torch

from agreement import randomise
from rbn_fairseq.norms import NormPlace, PowerNorm, PowerNormOptions, build_norm
from simulations import assert_steps_agree

# A warm-up that 60 steps cross, and alphas that differ.
OPTIONS = {"alpha_forward": 0.8, "alpha_backward": 0.7, "warmup": 25}


def random_norm(channels=4, **options):
    return randomise(PowerNorm(channels, PowerNormOptions(**(OPTIONS | options))))


class Simulation:
    """Algorithms 1 and 2 of the paper, with the authors' warm-up, for real tokens only."""

    def __init__(self, norm):
        self.weight, self.bias = (p.detach().double() for p in norm.parameters())
        self.psi2, self.n = torch.ones_like(self.weight), torch.zeros_like(self.weight)

    def state(self):
        return {"running_square": self.psi2, "running_gradient": self.n}

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


@pytest.mark.parametrize("backward", ["batch", "running"])
def test_agrees_with_the_algorithms_across_the_warm_up(backward):
    norm = random_norm(backward=backward)
    assert_steps_agree(norm, Simulation(norm), range(60))


def test_without_warm_up():
    norm = random_norm(warmup=0)
    assert_steps_agree(norm, Simulation(norm), range(10))


def test_a_composition_hands_the_update_over():
    norm = build_norm(["groupscale", "power"], NormPlace(4, heads=2), {})
    norm.set_num_updates(7)
    assert norm[1]._update == 7
