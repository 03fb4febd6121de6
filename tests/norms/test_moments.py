"""Moments in one process, and gradient sums, against float64; tests/distributed has the rest."""

import pytest
import torch

from rbn_fairseq.norms import moments
from rbn_fairseq.norms.moments import (
    all_reduce_sum,
    batch_moments,
    mean_and_variance,
    mean_over_processes,
    process_rank,
    world_size,
)
from rbn_fairseq.norms.normalise import gradient_sums


def test_large_mean_leaves_the_variance_right():
    rows = 1000 + 0.1 * torch.randn(4000, 8)
    exact = rows.double().var(0, correction=0)
    var = batch_moments(rows, sync=False).var
    # The input's own rounding, 3e-5, does not count: `exact` is of the rounded values. The mean
    # is off by about 1e-4 at most, which adds its square, 1e-8, to a variance of 1e-2.
    torch.testing.assert_close(var.double(), exact, rtol=1e-3, atol=0)

    one_pass = rows.square().mean(0) - rows.mean(0).square()
    assert ((one_pass.double() - exact).abs() / exact).max() > 0.1  # what the two passes are for


def test_one_process_shares_with_nobody():
    values = torch.randn(3)
    before = values.clone()
    assert (world_size(True), world_size(False), process_rank()) == (1, 1, 0)
    assert torch.equal(all_reduce_sum(values, sync=True), before)
    mean_over_processes([values])
    assert torch.equal(values, before)


# No row, one channel, one row and odd numbers: where kernels' vectors end. The last is over one
# thread's share of work.
SIZES = pytest.mark.parametrize(
    "size", [(0, 3), (1, 1), (7, 1), (1, 3), (64, 513), (1000, 65)], ids=str
)


@pytest.fixture(params=[True, False], ids=["kernels", "formula"])
def way(request, monkeypatch):
    """Torch's kernels, and the formula that other devices than CPUs and GPUs use."""
    if not request.param:
        monkeypatch.setattr(moments, "has_kernels", lambda rows: False)


@SIZES
def test_mean_and_variance(size, way):
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
def test_gradient_sums(size, way):
    rows, grad = 3 + torch.randn(2, *size, dtype=torch.float64)
    mean, inverse = 0.5 + torch.rand(2, size[1], dtype=torch.float64)
    expected = grad.sum(0), (grad * (rows - mean) * inverse).sum(0)
    sums = gradient_sums(grad, rows, mean, inverse)
    for got, exact in zip(sums, expected, strict=True):
        torch.testing.assert_close(got, exact)


def test_a_row_that_is_not_finite_is_seen(way):
    grad, rows = torch.ones(2, 2), torch.ones(2, 2)
    rows[0, 1] = torch.nan
    total, dot = gradient_sums(grad, rows, torch.zeros(2), torch.full((2,), 0.5))
    assert total.tolist() == [2, 2]
    assert dot[0] == 1
    assert dot[1].isnan()
