"""Drift and outliers, on statistics made so that the answer is known."""

import pytest
import torch

from rbn_fairseq.diagnostics import distance, near_eps, spread


def test_distance_is_in_units_of_sigma():
    # ||sigma|| = 5; the means are (6, 8) apart, the standard deviations (2, 1).
    var = torch.tensor([9.0, 16.0])
    one = torch.tensor([1.0, 2.0]), torch.tensor([9.0, 4.0])
    other = torch.tensor([7.0, 10.0]), torch.tensor([1.0, 1.0])
    assert distance(one, other, var) == pytest.approx((2.0, 5**0.5 / 5))
    assert distance(other, one, var) == distance(one, other, var)
    assert distance(one, one, var) == (0, 0)


def test_near_eps_is_a_share_of_channels():
    var = torch.tensor([0.0, 9e-5, 1.1e-4, 1.0])
    assert near_eps(var, 1e-5) == 0.5
    assert near_eps(var, 0.0) == 0.0


def test_spread_compares_with_the_median_channel():
    assert spread(torch.tensor([1.0, 4.0, 100.0])) == pytest.approx(5.0)
    assert spread(torch.full((513,), 3.0)) == 1.0
