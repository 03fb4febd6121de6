"""Sums over real tokens by torch's kernels and by formula, against float64."""

import pytest
import torch

from rbn_fairseq.norms import ValidTokens
from rbn_fairseq.norms.reductions import gradient_sums, mean_and_variance

WAYS = pytest.mark.parametrize("drop", [True, False], ids=["drop", "zero"])
# One channel, one token and odd numbers: where kernels' vectors end. The last is over one thread's
# share of work.
SIZES = pytest.mark.parametrize("size", [(1, 1), (7, 1), (1, 3), (64, 513), (1000, 65)], ids=str)


PADDINGS = {  # of how many rows: which are real
    "none": lambda n: None,
    "some": lambda n: torch.arange(n) % 3 != 1,
    "in front": lambda n: torch.arange(n) >= n // 3,
    "in front, not all": lambda n: (torch.arange(n) > n // 3) | (torch.arange(n) % 2 == 0),
    "behind, not all": lambda n: (torch.arange(n) < n // 2) | (torch.arange(n) % 2 == 0),
    "nothing else": lambda n: torch.arange(n) < 0,
}


def some(size, padding):
    valid = PADDINGS[padding](size[0])
    return torch.randn(size, dtype=torch.float64) + 3, valid


@WAYS
@SIZES
@pytest.mark.parametrize("padding", PADDINGS)
def test_mean_and_variance(size, drop, padding):
    rows, valid = some(size, padding)
    if valid is not None:
        rows[~valid] = torch.nan
    tokens = ValidTokens(valid, drop if valid is not None else None)
    mean, var, count = mean_and_variance(rows.float(), tokens)
    real = rows if valid is None else rows[valid]
    assert count == len(real)
    if not len(real):
        assert not mean.any() and not var.any()
        return
    # Of some 60 additions in a row, each is off by 6e-8 at most.
    torch.testing.assert_close(mean.double(), real.mean(0), rtol=1e-5, atol=0)
    exact = real.var(0, correction=0)
    torch.testing.assert_close(var.double(), exact, rtol=5e-5, atol=1e-9)


@WAYS
@SIZES
@pytest.mark.parametrize("padding", PADDINGS)
def test_gradient_sums(size, drop, padding):
    rows, valid = some(size, padding)
    grad, mean = torch.randn(size, dtype=torch.float64), torch.randn(size[1], dtype=torch.float64)
    inverse = torch.rand(size[1], dtype=torch.float64) + 0.5
    real = slice(None) if valid is None else valid
    expected = grad[real].sum(0), (grad * (rows - mean) * inverse)[real].sum(0)
    if valid is not None:
        grad[~valid] = rows[~valid] = torch.nan
    tokens = ValidTokens(valid, drop if valid is not None else None)
    sums = gradient_sums(grad, rows, mean, inverse, tokens)
    for got, exact in zip(sums, expected, strict=True):
        torch.testing.assert_close(got, exact)


def test_a_real_token_that_is_not_finite_is_seen():
    grad, rows = torch.ones(3, 2), torch.ones(3, 2)
    rows[0, 1] = torch.nan
    tokens = ValidTokens(torch.tensor([True, True, False]))
    total, dot = gradient_sums(grad, rows, torch.zeros(2), torch.full((2,), 0.5), tokens)
    assert total.tolist() == [2, 2]
    assert dot[0] == 1
    assert dot[1].isnan()
