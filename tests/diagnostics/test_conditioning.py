"""Conditioning, against matrices with known singular values and torch's own decomposition."""

import math

import pytest
import torch

from rbn_fairseq.diagnostics.conditioning import conditioning


def with_singular_values(tokens, sigma, dtype=torch.float64):
    """``U diag(sigma) V^T`` with random orthonormal U: ``(tokens, d)`` and V: ``(d, d)``."""
    channels = len(sigma)
    left, _ = torch.linalg.qr(torch.randn(tokens, channels, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(channels, channels, dtype=torch.float64))
    return (left * sigma @ right.t()).to(dtype)


def test_percents_of_a_hundred_channels_are_places():
    # 0.07 * 100 is 7.000000000000001 in floating point: its ceiling would be 8.
    sigma = torch.linspace(100, 1, 100, dtype=torch.float64)  # sigma of place k is 101 - k
    _, c_p = conditioning(with_singular_values(150, sigma), range(1, 101))
    assert c_p == pytest.approx({percent: 100 / (101 - percent) for percent in range(1, 101)})


@pytest.mark.parametrize("tokens, channels", [(40, 1), (40, 7), (513, 512), (10000, 20)])
def test_torch_svd(tokens, channels):
    # 10000 rows are more than are taken at a time.
    x = torch.randn(tokens, channels) * torch.rand(channels) + 3 * torch.randn(channels)
    sigma = torch.linalg.svdvals(x.double())
    c_max, c_p = conditioning(x)
    assert c_max == pytest.approx(sigma[0].item())
    # Squaring costs digits: eps of fp64 times C^2, about 1e-16 * 1e8 for 513 rows.
    for percent in (50, 80):
        expected = (sigma[0] / sigma[math.ceil(percent * channels / 100) - 1]).item()
        assert c_p[percent] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_computes_in_fp64_whatever_the_dtype(dtype):
    # In fp16 the squares of 1000 values of 200 overflow; in fp32 C_80 = 1e4 would be lost.
    x = with_singular_values(1000, torch.tensor([6000.0, 5, 2, 0.7, 0.6]), dtype)
    sigma = torch.linalg.svdvals(x.double())
    found = conditioning(x)
    assert found.c_max == pytest.approx(sigma[0].item())
    expected = {50: (sigma[0] / sigma[2]).item(), 80: (sigma[0] / sigma[3]).item()}
    assert found.c_p == pytest.approx(expected)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_squares_neither_vanish_nor_overflow(scale):
    x = torch.tensor([[3.0, 0], [0, 2]], dtype=torch.float64) * scale
    c_max, c_p = conditioning(x, (100,))
    assert c_max == pytest.approx(3 * scale) and c_p == pytest.approx({100: 1.5})


def test_fewer_tokens_than_channels():
    x = torch.randn(6, 10, dtype=torch.float64)  # rank 6: place 5 is there, place 8 is not
    sigma = torch.linalg.svdvals(x)
    assert conditioning(x).c_p == {50: pytest.approx((sigma[0] / sigma[4]).item()), 80: math.inf}


@pytest.mark.parametrize("tokens, channels", [(3, 4), (5000, 4), (700, 513)])
def test_rank_deficient(tokens, channels):
    # Small whole numbers, the second half of channels a copy of the first.
    half = torch.randint(-3, 4, (tokens, -(-channels // 2))).double()
    x = torch.cat([half, half], dim=1)[:, :channels]
    c_max, c_p = conditioning(x)
    assert 1 <= c_p[50] < math.inf and c_p[80] == math.inf
    assert c_max == pytest.approx(torch.linalg.svdvals(x)[0].item())


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (4, 3)])
def test_nothing_and_zeros(shape):
    c_max, c_p = conditioning(torch.zeros(shape))
    assert c_max == 0
    assert c_p.keys() == {50, 80} and all(map(math.isnan, c_p.values()))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_no_number(value):
    x = torch.randn(9, 4)
    x[5, 2] = value
    c_max, c_p = conditioning(x)
    assert math.isnan(c_max) and all(map(math.isnan, c_p.values()))


def test_the_authors_numbers_are_the_squares():
    tokens, padding = torch.randn(50, 8, dtype=torch.float64), torch.zeros(14, 8).double()
    y = torch.cat([tokens, padding])  # B*T = 64 positions
    ascending = torch.linalg.eigvalsh(y.t() @ y / 64)
    c_max, c_p = conditioning(tokens)
    assert c_max**2 / 64 == pytest.approx(ascending[-1].item())
    assert c_p[50] ** 2 == pytest.approx((ascending[-1] / ascending[8 // 2]).item())
    assert c_p[80] ** 2 == pytest.approx((ascending[-1] / ascending[8 // 5]).item())


def test_the_graph_is_left_alone():
    x = torch.randn(9, 4, requires_grad=True)
    before = x.detach().clone()
    conditioning(x)
    assert x.grad is None and torch.equal(x, before)


@pytest.mark.parametrize("percent", [0, 101, -5])
def test_percents_out_of_range(percent):
    with pytest.raises(ValueError, match=f"percents.*{percent}"):
        conditioning(torch.randn(9, 4), (50, percent))


def test_not_a_matrix():
    with pytest.raises(ValueError, match=r"\(tokens, channels\).*\(2, 3, 4\)"):
        conditioning(torch.randn(2, 3, 4))
