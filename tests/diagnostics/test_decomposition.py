"""Shares of squared TID, against sums of independent influences on a batch's mean."""

import math

import pytest
import torch

import oracles
from rbn_fairseq.diagnostics import TID, LayerMoments, decompose, squared_share, tid


def test_shares_are_of_squares():
    sources = decompose(TID(0.05, 0.10), TID(0.03, 0.08))
    assert sources.sentence_sampling == pytest.approx((0.36, 0.64))
    assert sources.length_bucketing == pytest.approx((0.64, 0.36))


def test_random_batches_may_have_more():
    assert decompose(TID(1.0, 1.0), TID(2.0, 1.0)).length_bucketing == (-3, 0)


def test_nothing_has_no_shares():
    assert all(map(math.isnan, squared_share(TID(0.0, 0.0), TID(0.0, 0.0))))


def moments(means):
    """64 batches of two tokens in 512 channels with these means and a variance of 1."""
    batches = [torch.stack([mean - 1, mean + 1]) for mean in means]
    mean, var = zip(*map(oracles.moments, batches), strict=True)
    return LayerMoments(torch.stack(mean), torch.stack(var), torch.full((64,), 2.0))


def test_independent_influences_add_up():
    sampling = 0.3 * torch.randn(64, 512, dtype=torch.double)
    bucketing = 0.4 * torch.randn(64, 512, dtype=torch.double)
    sources = decompose(tid(moments(sampling + bucketing)), tid(moments(sampling)))
    # Lengths in 512 channels vary by 3 %, their means over 64 batches by 0.4 %, squares by twice.
    assert sources.sentence_sampling.mean == pytest.approx(0.09 / 0.25, rel=0.03)
    assert sources.length_bucketing.mean == pytest.approx(0.16 / 0.25, rel=0.03)
