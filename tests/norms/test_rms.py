"""RMSNorm and pRMSNorm, against their definitions and autograd in float64."""

import pytest
import torch

from agreement import SHAPES, assert_agrees, assert_half_rounds_once, randomise
from rbn_fairseq.norms import PartialRMSNorm, PartialRMSNormOptions, RMSNorm, RMSNormOptions

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


def partial_definition(k, eps):
    def norm(x, weight):
        mean_square = sum(x[..., i] * x[..., i] for i in range(k)) / k
        return x / torch.sqrt(mean_square + eps).unsqueeze(-1) * weight

    return norm


SIZES = [  # shape, p, k = int(C p)
    ((5, 3, 6), 0.5, 3),
    ((1, 1, 16), 0.0625, 1),
    ((4, 3, 7), 0.3, 2),  # 2.1: rounded down
    ((4, 3, 7), 0.85, 5),  # 5.95: rounded down
    ((3, 513), 0.0625, 32),  # 32.06
    ((4, 2, 1), 1.0, 1),
]


@pytest.mark.parametrize(("shape", "p", "k"), SIZES)
@pytest.mark.parametrize("eps", [1e-5, 0.5])
# Rounding is 6e-8 (fp32) or 1.1e-16 (fp64), times some ten operations.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.float64, 1e-14)])
def test_partial_agrees_with_the_definition(shape, p, k, eps, dtype, tolerance):
    norm = randomise(PartialRMSNorm(shape[-1], PartialRMSNormOptions(p, eps))).to(dtype)
    # Measured channels away from 0: few of them, all at 0, would make the others huge.
    x = torch.randn(shape)
    x = (x + x.sign()).to(dtype)
    assert_agrees(norm, partial_definition(k, eps), x, tolerance)


def test_all_channels_are_rms():
    x, options = torch.randn(4, 3, 6), PartialRMSNormOptions(p=1.0)
    torch.testing.assert_close(PartialRMSNorm(6, options)(x), RMSNorm(6)(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cast", [True, False], ids=["the model", "activations alone"])
def test_partial_half_precision_rounds_nothing_but_results(dtype, cast):
    norm = randomise(PartialRMSNorm(64))
    assert_half_rounds_once(norm, 3 + torch.rand(20, 3, 64), dtype, cast)


def test_partial_squares_do_not_overflow():
    x = torch.full((2, 16), 1000.0, dtype=torch.float16)
    y = PartialRMSNorm(16).half()(x)
    torch.testing.assert_close(y, torch.ones_like(y), rtol=1e-3, atol=0)


def test_partial_has_a_gain_and_no_bias():
    assert list(PartialRMSNorm(16).state_dict()) == ["weight"]


@pytest.mark.parametrize("p", [0.0, -0.5, 1.5, float("nan")])
def test_refuses_p(p):
    with pytest.raises(ValueError, match=rf"--norm-prms-p.*\(0, 1\].*{p}.*0.0625"):
        PartialRMSNormOptions(p=p)


@pytest.mark.parametrize("eps", [0.0, float("inf")])
def test_refuses_eps(eps):
    with pytest.raises(ValueError, match=f"--norm-prms-eps.*positive.*{eps}"):
        PartialRMSNormOptions(eps=eps)


@pytest.mark.parametrize("channels, least", [(15, 0.066667), (49, 0.020409), (512, 0.001954)])
def test_refuses_to_measure_no_channel(channels, least):
    with pytest.raises(ValueError, match=rf"--norm-prms-p.*{channels} \* 0.001 .*{least},.*`rms`"):
        PartialRMSNorm(channels, PartialRMSNormOptions(p=0.001))
    assert PartialRMSNorm(channels, PartialRMSNormOptions(p=least)).measured == 1
