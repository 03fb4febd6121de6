"""RepBN and PRepBN, against autograd of their formulas in float64, step by step."""

import pytest
import torch

import oracles
from agreement import randomise
from rbn_fairseq.norms import (
    BatchNorm,
    RepBatchNorm,
    RepBatchNormOptions,
    ValidTokens,
    freeze_statistics,
    record_gaps,
)
from simulations import assert_steps_agree, batch

ENDS = pytest.mark.parametrize("end", [0, 1, 12])


def random_norm(end, channels=4):
    return randomise(RepBatchNorm(channels, RepBatchNormOptions(momentum=0.2, layer_end=end)))


class Simulation:
    """The paper's formulas for real tokens only; autograd does the gradients."""

    def __init__(self, norm):
        self.leaves = [p.detach().double().requires_grad_() for p in norm.parameters()]
        channels = len(norm.weight)
        self.mean, self.var = torch.zeros(channels).double(), torch.ones(channels).double()

    def state(self):
        return {"running_mean": self.mean, "running_var": self.var}

    def step(self, u, grad, number, o):
        weight, bias, eta, *layer = self.leaves
        u.requires_grad_()
        mean, var = oracles.moments(u)
        y = (u - mean) / torch.sqrt(var + o.eps) * weight + bias + eta * u
        if layer:
            part = max(0, o.layer_end - (number - 1)) / o.layer_end
            centred = u - u.mean(1, keepdim=True)
            deviation = torch.sqrt((centred**2).mean(1, keepdim=True) + o.eps)
            y = part * (centred / deviation * layer[0] + layer[1]) + (1 - part) * y
        self.mean = self.mean + o.momentum * (mean.detach() - self.mean)
        self.var = self.var + o.momentum * (var.detach() - self.var)
        return y.detach(), *torch.autograd.grad(y, (u, *self.leaves), grad)


@ENDS
def test_agrees_with_the_formulas_over_its_schedule(end):
    norm = random_norm(end)
    assert_steps_agree(norm, Simulation(norm), range(16), shift=2)


def test_first_values():
    state = RepBatchNorm(3, RepBatchNormOptions(layer_end=2)).state_dict()
    assert list(state) == [
        "weight", "bias", "eta", "layer_weight", "layer_bias", "population.running_mean",
        "population.running_var",
    ]  # fmt: skip
    assert state["eta"].tolist() == [1]
    assert state["layer_weight"].tolist() == [1] * 3 and not state["layer_bias"].any()
    assert list(RepBatchNorm(3).state_dict())[:4] == list(state)[:3] + ["population.running_mean"]


@ENDS
def test_evaluation_is_batch_norm_and_a_part_of_the_input_whatever_the_update(end):
    norm = random_norm(end).double()
    norm.population.set(torch.randn(4), 0.5 + torch.rand(4))
    plain = BatchNorm(4).double()
    plain.load_state_dict(norm.state_dict(), strict=False)
    x = torch.randn(5, 2, 4).double()
    expected = plain.eval()(x) + norm.eta * x
    torch.testing.assert_close(norm.eval()(x), expected)  # fp64's rounding
    scale, shift = norm.affine_map()
    torch.testing.assert_close(x * scale + shift, expected)


def test_measured_in_training_it_has_no_layer_norm():
    """What TID and recalibration rest on."""
    norm, alone = random_norm(12), random_norm(0)
    alone.load_state_dict({n: norm.state_dict()[n] for n in alone.state_dict()})
    norm.set_num_updates(3)
    x, valid, _ = batch(1, shift=2)
    tokens = ValidTokens(valid)
    with freeze_statistics():
        expected = alone(x, tokens)
        torch.testing.assert_close(norm(x, tokens), expected)
    assert not torch.allclose(norm(x, tokens), expected)


@pytest.mark.parametrize("update", [0, 5, 20])
def test_gaps_are_those_of_batch_norm(update):
    norm = random_norm(12).double()
    norm.set_num_updates(update)
    x = torch.randn(7, 4, dtype=torch.double, requires_grad=True)
    with record_gaps() as gaps:
        norm(x)
    (gap,) = gaps
    torch.testing.assert_close(gap.batch_mean, x.mean(0))
    (dx,) = torch.autograd.grad(gap.batch_var.sum(), x)  # as the penalty's gradient
    torch.testing.assert_close(dx, 2 / 7 * (x - x.mean(0)))
