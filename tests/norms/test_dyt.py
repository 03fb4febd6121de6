"""Dynamic Tanh, against the definition and autograd in float64."""

import pytest
import torch

from agreement import SHAPES, assert_agrees, assert_half_rounds_once, randomise
from rbn_fairseq.norms import DynamicTanh, DynamicTanhOptions


def definition(x, alpha, weight, bias):
    twice = torch.exp(2 * alpha * x)
    return weight * (twice - 1) / (twice + 1) + bias


@pytest.mark.parametrize("shape", SHAPES, ids=str)
# Rounding is 6e-8 (fp32) or 1.1e-16 (fp64), times some ten operations; alpha's gradient is a sum
# over everything.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 3e-14)])
def test_agrees_with_the_definition(shape, dtype, tolerance):
    norm = randomise(DynamicTanh(shape[-1])).to(dtype)
    assert_agrees(norm, definition, (1 + torch.randn(shape)).to(dtype), tolerance)


def test_is_new():
    norm = DynamicTanh(5, DynamicTanhOptions(alpha_init=0.25))
    state = {name: value.tolist() for name, value in norm.state_dict().items()}
    assert state == {"alpha": [0.25], "weight": [1] * 5, "bias": [0] * 5}
    assert DynamicTanh(5).alpha.item() == 0.5


def test_large_inputs_saturate():
    x = torch.tensor([[1e4, -1e4]], dtype=torch.float16, requires_grad=True)
    y = DynamicTanh(2).half()(x)
    assert y.tolist() == [[1, -1]]
    y.sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cast", [True, False], ids=["the model", "activations alone"])
def test_half_precision_rounds_nothing_but_results(dtype, cast):
    norm = randomise(DynamicTanh(64))
    assert_half_rounds_once(norm, 1 + torch.randn(20, 3, 64), dtype, cast)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf"), float("nan")])
def test_refuses_alpha(alpha):
    with pytest.raises(ValueError, match=f"--norm-dyt-alpha-init.*positive.*{alpha}.*0.5"):
        DynamicTanhOptions(alpha_init=alpha)
