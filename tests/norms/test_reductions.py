"""Sums over rows by torch's kernels and by formula, against float64."""

import pytest
import torch

from rbn_fairseq.norms import reductions
from rbn_fairseq.norms.reductions import gradient_sums, mean_and_variance

# No row, one channel, one row and odd numbers: where kernels' vectors end. The last is over one
# thread's share of work.
SIZES = pytest.mark.parametrize(
    "size", [(0, 3), (1, 1), (7, 1), (1, 3), (64, 513), (1000, 65)], ids=str
)


@pytest.fixture(params=[True, False], ids=["kernels", "formula"], autouse=True)
def way(request, monkeypatch):
    """The CPU's kernels, and the formula that GPUs without Triton use."""
    if not request.param:
        monkeypatch.setattr(reductions, "_has_kernels", lambda rows: False)


@SIZES
def test_mean_and_variance(size):
    rows = torch.randn(size, dtype=torch.float64) + 3
    mean, var, count = mean_and_variance(rows.float())
    assert count == len(rows) and count.dtype == mean.dtype == var.dtype == torch.float32
    if not len(rows):
        assert not mean.any() and not var.any()
        return
    # Of some 60 additions in a row, each is off by 6e-8 at most.
    torch.testing.assert_close(mean.double(), rows.mean(0), rtol=1e-5, atol=0)
    exact = rows.var(0, correction=0)
    torch.testing.assert_close(var.double(), exact, rtol=5e-5, atol=1e-9)


@SIZES
def test_gradient_sums(size):
    rows, grad = 3 + torch.randn(2, *size, dtype=torch.float64)
    mean, inverse = 0.5 + torch.rand(2, size[1], dtype=torch.float64)
    expected = grad.sum(0), (grad * (rows - mean) * inverse).sum(0)
    sums = gradient_sums(grad, rows, mean, inverse)
    for got, exact in zip(sums, expected, strict=True):
        torch.testing.assert_close(got, exact)


def test_a_row_that_is_not_finite_is_seen():
    grad, rows = torch.ones(2, 2), torch.ones(2, 2)
    rows[0, 1] = torch.nan
    total, dot = gradient_sums(grad, rows, torch.zeros(2), torch.full((2,), 0.5))
    assert total.tolist() == [2, 2]
    assert dot[0] == 1
    assert dot[1].isnan()
