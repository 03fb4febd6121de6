"""RMSNorm, against the definition and autograd in float64."""

import pytest
import torch

from agreement import SHAPES, assert_agrees, assert_half_rounds_once, randomise
from rbn_fairseq.norms import RMSNorm, RMSNormOptions

MODES = pytest.mark.parametrize("mode", ["inside", "outside"])


def definition(eps, mode):
    def norm(x, weight):
        mean_square = (x * x).sum(-1, keepdim=True) / x.shape[-1]
        inside = mode == "inside"
        return (
            x
            / (torch.sqrt(mean_square + eps) if inside else torch.sqrt(mean_square) + eps)
            * weight
        )

    return norm


@MODES
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("eps", [1e-5, 0.5])  # 0.5: its place shows
# Rounding is 6e-8 (fp32) or 1.1e-16 (fp64), times some ten operations; gradients at C = 1, where
# nearly everything cancels, are off by that over the root mean square.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.float64, 1e-14)])
def test_agrees_with_the_definition(shape, mode, eps, dtype, tolerance):
    norm = randomise(RMSNorm(shape[-1], RMSNormOptions(eps, mode))).to(dtype)
    x = (1 + torch.randn(shape)).to(dtype)
    assert_agrees(norm, definition(eps, mode), x, tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cast", [True, False], ids=["the model", "activations alone"])
@MODES
def test_half_precision_rounds_nothing_but_results(dtype, cast, mode):
    norm = randomise(RMSNorm(64, RMSNormOptions(eps_mode=mode)))
    assert_half_rounds_once(norm, 3 + 2 * torch.randn(20, 3, 64), dtype, cast)


@MODES
def test_squares_do_not_overflow_in_half_precision(mode):
    x = torch.full((2, 8), 1000.0, dtype=torch.float16)  # its square is beyond 65504
    y = RMSNorm(8, RMSNormOptions(eps_mode=mode)).half()(x)
    torch.testing.assert_close(y, torch.ones_like(y), rtol=1e-3, atol=0)


@MODES
def test_a_token_of_zeros_has_a_gradient(mode):
    # fairseq zeroes the embeddings of padding. Near 0 the norm is x / sqrt(eps), or x / eps.
    eps = 0.01
    norm = RMSNorm(5, RMSNormOptions(eps, mode))
    x = torch.zeros(2, 5, requires_grad=True)
    y = norm(x)
    y.backward(torch.ones_like(y))
    assert torch.equal(y, torch.zeros_like(y))
    slope = eps**-0.5 if mode == "inside" else 1 / eps
    torch.testing.assert_close(x.grad, torch.full((2, 5), slope))
    assert torch.equal(norm.weight.grad, torch.zeros(5))


def test_has_a_gain_and_no_bias():
    norm = RMSNorm(5)
    assert list(norm.state_dict()) == ["weight"]
    assert torch.equal(norm.weight, torch.ones(5))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eps": 0.0}, ["--norm-rms-eps", "positive", "0.0", "1e-05"]),
        ({"eps": float("nan")}, ["--norm-rms-eps", "nan"]),
        ({"eps": float("inf")}, ["--norm-rms-eps", "finite", "inf"]),
        ({"eps_mode": "beside"}, ["--norm-rms-eps-mode", "`inside`", "`outside`", "beside"]),
    ],
)
def test_refuses(options, words):
    with pytest.raises(ValueError) as error:
        RMSNormOptions(**options)
    assert all(word in str(error.value) for word in words), error.value
