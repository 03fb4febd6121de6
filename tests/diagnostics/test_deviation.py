"""Deviation, against the paper's words written as two passes over raw tokens."""

import math

import pytest
import torch

import oracles
from rbn_fairseq.diagnostics import LayerMoments, deviation


def layer_moments(batches):
    mean, var = zip(*map(oracles.moments, batches), strict=True)
    count = torch.tensor([len(batch) for batch in batches], dtype=torch.double)
    return LayerMoments(torch.stack(mean), torch.stack(var), count)


@pytest.mark.parametrize("channels", [1, 5, 513])
@pytest.mark.parametrize("estimate", ["mean-of-batches", "pooled"])
def test_is_relative_to_the_populations_own_statistic(channels, estimate):
    batches = [
        3 + torch.randn(channels) + size * torch.randn(size, channels, dtype=torch.double)
        for size in (4, 9, 2)
    ]
    moments = [oracles.moments(batch) for batch in batches]
    if estimate == "pooled":
        mean, var = oracles.moments(torch.cat(batches))
    else:
        mean, var = (sum(parts) / 3 for parts in zip(*moments, strict=True))
    zero = [0.0] * channels
    of_mean = sum(math.dist(m, mean) / math.dist(mean, zero) for m, _ in moments) / 3
    of_var = sum(math.dist(v, var) / math.dist(var, zero) for _, v in moments) / 3
    assert deviation(layer_moments(batches), estimate) == pytest.approx((of_mean, of_var))


def test_constructed_batches():
    # Means 9 and 11 about 10; variances 1 and 3 about 2: 10 % and 50 %.
    base = torch.tensor([[-1.0], [1.0]], dtype=torch.double)
    assert deviation(layer_moments([9 + base, 11 + base * math.sqrt(3)])) == pytest.approx(
        (0.1, 0.5)
    )


def test_a_population_mean_of_zero_is_infinitely_far():
    base = torch.tensor([[-1.0], [1.0]], dtype=torch.double)
    mean, var = deviation(layer_moments([base - 1, base + 1]))
    assert mean == math.inf and var == 0
