"""pRMSNorm, against the definition and autograd in float64."""

import pytest
import torch

from agreement import assert_agrees, assert_half_rounds_once, randomise
from rbn_fairseq.norms import PartialRMSNorm, PartialRMSNormOptions, RMSNorm


def definition(k, eps):
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
def test_agrees_with_the_definition(shape, p, k, eps, dtype, tolerance):
    norm = randomise(PartialRMSNorm(shape[-1], PartialRMSNormOptions(p, eps))).to(dtype)
    # Measured channels away from 0: few of them, all at 0, would make the others huge.
    x = torch.randn(shape)
    x = (x + x.sign()).to(dtype)
    assert_agrees(norm, definition(k, eps), x, tolerance)


def test_all_channels_are_rms():
    x, options = torch.randn(4, 3, 6), PartialRMSNormOptions(p=1.0)
    torch.testing.assert_close(PartialRMSNorm(6, options)(x), RMSNorm(6)(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cast", [True, False], ids=["the model", "activations alone"])
def test_half_precision_rounds_nothing_but_results(dtype, cast):
    norm = randomise(PartialRMSNorm(64))
    assert_half_rounds_once(norm, 3 + torch.rand(20, 3, 64), dtype, cast)


def test_squares_do_not_overflow_in_half_precision():
    x = torch.full((2, 16), 1000.0, dtype=torch.float16)
    y = PartialRMSNorm(16).half()(x)
    torch.testing.assert_close(y, torch.ones_like(y), rtol=1e-3, atol=0)


def test_has_a_gain_and_no_bias():
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
