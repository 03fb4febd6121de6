"""TID, against Eq. 5 written as two passes over raw tokens, and against known distributions."""

import math

import pytest
import torch

import oracles
from rbn_fairseq.diagnostics import POPULATIONS, TID, LayerMoments, average_tid, population, tid


def layer_moments(batches):
    mean, var = zip(*map(oracles.moments, batches), strict=True)
    count = torch.tensor([len(batch) for batch in batches], dtype=torch.double)
    return LayerMoments(torch.stack(mean), torch.stack(var), count)


def make_batches(sizes=(7, 1, 30, 12), channels=5):
    """Batches of different sizes, means and spreads: no two estimates agree."""
    return [
        torch.randn(channels) + (1 + index) * torch.randn(size, channels, dtype=torch.double)
        for index, size in enumerate(sizes)
    ]


def population_by_hand(batches, estimate):
    if estimate == "pooled":
        return oracles.moments(torch.cat(batches))
    moments = [oracles.moments(batch) for batch in batches]
    return tuple(sum(parts) / len(batches) for parts in zip(*moments, strict=True))


def tid_by_hand(batches, estimate):
    mean, var = population_by_hand(batches, estimate)  # first pass
    length = math.sqrt(sum(var))  # ||sigma||: its squares are the variances
    mean_tid = var_tid = 0.0
    for batch in batches:  # second pass
        batch_mean, batch_var = oracles.moments(batch)
        mean_tid += math.dist(batch_mean, mean) / length
        var_tid += math.dist(batch_var.sqrt(), var.sqrt()) / length
    return mean_tid / len(batches), var_tid / len(batches)


@pytest.mark.parametrize("estimate", POPULATIONS)
def test_population_is_its_definition(estimate):
    batches = make_batches()
    ours = population(layer_moments(batches), estimate)
    for part, expected in zip(ours, population_by_hand(batches, estimate), strict=True):
        torch.testing.assert_close(part, expected)  # fp64 rounding


@pytest.mark.parametrize("estimate", POPULATIONS)
@pytest.mark.parametrize("channels", [1, 5, 513])
def test_tid_is_its_definition(estimate, channels):
    batches = make_batches(channels=channels)
    expected = tid_by_hand(batches, estimate)
    assert tid(layer_moments(batches), estimate) == pytest.approx(expected, rel=1e-9)  # fp64


def test_mean_of_batches_is_the_default():
    moments = layer_moments(make_batches())
    assert tid(moments) == tid(moments, "mean-of-batches") != tid(moments, "pooled")
    for ours, named in zip(population(moments), population(moments, POPULATIONS[0]), strict=True):
        assert torch.equal(ours, named)


@pytest.mark.parametrize("tokens", [200, 1000])
def test_iid_normal_tokens_have_tid_of_one_over_sqrt_n(tokens):
    # mu_B - mu has std sigma / sqrt(n) in each channel, sigma_B - sigma about sigma / sqrt(2n).
    # Each norm over 64 channels is within 1 / sqrt(128) = 9 %, their mean over 40 batches within
    # 1.4 %; measuring against the mean of the same batches takes 1.3 % off. 6 % is 3 such errors.
    batches = [3 + 2 * torch.randn(tokens, 64, dtype=torch.double) for _ in range(40)]
    mean_tid, var_tid = tid(layer_moments(batches))
    assert mean_tid == pytest.approx(1 / math.sqrt(tokens), rel=0.06)
    assert var_tid == pytest.approx(1 / math.sqrt(2 * tokens), rel=0.06)


@pytest.mark.parametrize("estimate", POPULATIONS)
def test_identical_batches_have_none(estimate):
    batch = torch.randn(20, 5, dtype=torch.double)
    # Means over equal fp64 numbers round once or twice.
    assert tid(layer_moments([batch] * 3), estimate) == pytest.approx((0, 0), abs=1e-14)


def test_one_batch_has_none():
    assert tid(layer_moments(make_batches((7,)))) == (0, 0)


def test_scale_does_not_matter_and_shift_does_not_either():
    batches = make_batches()
    moved = [100 + 7 * batch for batch in batches]
    # fp64 variances beside a mean of 100 lose a few digits of 16.
    assert tid(layer_moments(moved)) == pytest.approx(tid(layer_moments(batches)), rel=1e-9)


def test_constant_layers_divide_by_no_zero():
    assert tid(layer_moments([torch.ones(4, 3, dtype=torch.double)] * 2)) == (0, 0)


def test_average_is_over_layers():
    layers = {"a": TID(1.0, 5.0), "b": TID(2.0, 7.0), "c": TID(6.0, 0.0)}
    assert average_tid(layers) == pytest.approx((3.0, 4.0))


@pytest.mark.parametrize("function", [tid, population])
@pytest.mark.parametrize("name", ["", "ema", "Pooled"])
def test_refuses_unknown_populations(function, name):
    message = f"unknown population `{name}`. Known: mean-of-batches, pooled"
    with pytest.raises(ValueError, match=message):
        function(layer_moments(make_batches()), name)
