"""Norms that normalise nothing: the multiply-add that is left of a norm, and the identity."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from rbn_fairseq.norms import (
    Affine,
    NoNorm,
    ValidTokens,
)

C = 16


def trained():
    norm = Affine(C)
    assert not list(norm.parameters())  # it does not learn
    norm.scale.normal_()
    norm.shift.normal_()
    return norm


@pytest.mark.parametrize("shape", [(5, 3, C), (1, 1, C), (C,)], ids=str)
def test_is_a_diagonal_linear_layer(shape):
    norm, x = trained(), torch.randn(shape)
    torch.testing.assert_close(norm(x), F.linear(x, norm.scale.diag(), norm.shift))


def test_half_precision_of_the_model_leaves_it_fp32():
    norm, x = trained(), torch.randn(5, 3, C).half()
    y = norm(x)
    scale, shift = norm.scale.clone(), norm.shift.clone()
    norm.half()
    assert torch.equal(norm.scale, scale) and torch.equal(norm.shift, shift)
    assert torch.equal(norm(x), y) and y.dtype == torch.half


class Counter(TorchDispatchMode):
    """Counts the operations that make tensors."""

    made = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.made += 1
        return function(*args, **(kwargs or {}))


def test_a_step_of_generation_makes_its_output_and_nothing_else():
    norm, x = trained(), torch.randn(1, 4, C)
    with torch.no_grad(), Counter() as counter:
        norm(x)
    assert counter.made == 1


def test_is_the_identity():
    x = torch.randn(4, 3, 5, requires_grad=True)
    y = NoNorm()(x, ValidTokens(torch.rand(4, 3) < 0.5))
    assert torch.equal(y, x)
    upstream = torch.randn_like(x)
    assert torch.equal(torch.autograd.grad(y, x, upstream)[0], upstream)
