"""Moments in one process, against torch's in float64; tests/distributed has the rest."""

import pytest
import torch

from rbn_fairseq.norms.moments import (
    all_reduce_sum,
    batch_moments,
    mean_over_processes,
    process_rank,
    world_size,
)


@pytest.mark.parametrize("channels", [1, 7, 513])
@pytest.mark.parametrize("number", [1, 2, 50])
def test_agrees_with_torch_in_float64(number, channels):
    rows = 3 + 2 * torch.randn(number, channels)
    mean, var, n, share, _ = batch_moments(rows, sync=False)
    exact = rows.double()
    assert (n, share) == (number, 1)
    # fp32 sums of 50 terms: 50 roundings of 6e-8 at most, on terms of size 10.
    torch.testing.assert_close(mean.double(), exact.mean(0), rtol=3e-6, atol=1e-6)
    torch.testing.assert_close(var.double(), exact.var(0, correction=0), rtol=1e-5, atol=1e-10)


def test_large_mean_leaves_the_variance_right():
    rows = 1000 + 0.1 * torch.randn(4000, 8)
    exact = rows.double().var(0, correction=0)
    var = batch_moments(rows, sync=False).var
    # The input's own rounding, 3e-5, does not count: `exact` is of the rounded values. The mean
    # is off by about 1e-4 at most, which adds its square, 1e-8, to a variance of 1e-2.
    torch.testing.assert_close(var.double(), exact, rtol=1e-3, atol=0)

    one_pass = rows.square().mean(0) - rows.mean(0).square()
    assert ((one_pass.double() - exact).abs() / exact).max() > 0.1  # what the two passes are for


def test_moments_of_no_token_are_zero():
    moments = batch_moments(torch.zeros(0, 3), sync=False)
    assert not moments.mean.any() and not moments.var.any() and not moments.n.any()


def test_one_process_shares_with_nobody():
    values = torch.randn(3)
    before = values.clone()
    assert (world_size(True), world_size(False), process_rank()) == (1, 1, 0)
    assert torch.equal(all_reduce_sum(values, sync=True), before)
    mean_over_processes([values])
    assert torch.equal(values, before)
