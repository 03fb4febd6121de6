"""TID, against Eq. 5 written as two passes over raw tokens, and against known distributions."""

import itertools
import math

import pytest
import torch

import oracles
from rbn_fairseq.diagnostics import (
    POPULATIONS,
    TID,
    LayerMoments,
    average_tid,
    measure_tid,
    population,
    tid,
    tid_error,
)
from rbn_fairseq.norms import BatchNorm

RUNNING = torch.rand(513, dtype=torch.double), 1 + torch.rand(513, dtype=torch.double)


def layer_moments(batches):
    mean, var = zip(*map(oracles.moments, batches), strict=True)
    count = torch.tensor([len(batch) for batch in batches], dtype=torch.double)
    running = RUNNING[0][: len(mean[0])], RUNNING[1][: len(mean[0])]
    return LayerMoments(torch.stack(mean), torch.stack(var), count, running)


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
    if estimate == "running":
        return RUNNING[0][: batches[0].shape[1]], RUNNING[1][: batches[0].shape[1]]
    if estimate == "ema":  # as torch's running statistics move, from the first one on
        order = torch.randperm(len(batches), generator=torch.Generator().manual_seed(0)).tolist()
        mean, var = moments[order[0]]
        for batch in order[1:]:
            mean = 0.95 * mean + 0.05 * moments[batch][0]
            var = 0.95 * var + 0.05 * moments[batch][1]
        return mean, var
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


@pytest.mark.parametrize("estimate", ["mean-of-batches", "pooled", "ema"])
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
@pytest.mark.parametrize("name", ["", "median", "Pooled"])
def test_refuses_unknown_populations(function, name):
    message = f"unknown population `{name}`. Known: mean-of-batches, pooled"
    with pytest.raises(ValueError, match=message):
        function(layer_moments(make_batches()), name)


def test_running_needs_running_statistics():
    moments = layer_moments(make_batches())
    bare = LayerMoments(moments.mean, moments.var, moments.count)
    with pytest.raises(ValueError, match="`running`: the norm keeps no running statistics"):
        tid(bare, "running")


def test_momentum_of_the_moving_average():
    moments = layer_moments(make_batches())
    order = torch.randperm(4, generator=torch.Generator().manual_seed(0))
    last, first = moments.mean[order[-1]], moments.mean[order[0]]
    torch.testing.assert_close(population(moments, "ema", momentum=1.0)[0], last)
    torch.testing.assert_close(population(moments, "ema", momentum=0.0)[0], first)


def test_the_error_is_that_of_a_sample_without_replacement():
    # Over all samples of 3 of 7 given distances, the mean's standard deviation is the formula's
    # with the population's own standard deviation in the place of the sample's.
    whole = torch.tensor([0.1, 0.4, 0.2, 0.9, 0.3, 0.35, 0.6], dtype=torch.double)
    samples = torch.stack([whole[list(kept)] for kept in itertools.combinations(range(7), 3)])
    exact = samples.mean(1).std(correction=0).item()
    formula = (samples.var(1) * (1 - 3 / 7) / 3).mean().sqrt().item()
    assert formula == pytest.approx(exact)
    # One channel of variance 1: distances to a population of mean 0 are the means themselves.
    mean = samples[5].unsqueeze(1)
    zero, one = torch.zeros(1, dtype=torch.double), torch.ones(1, dtype=torch.double)
    moments = LayerMoments(mean, one.expand(3, 1), torch.ones(3), (zero, one))
    expected = (samples[5].var() * (1 - 3 / 7) / 3).sqrt().item()
    assert tid_error(moments, 7, "running") == pytest.approx((expected, 0.0))


def test_all_batches_leave_no_error():
    moments = layer_moments(make_batches())
    assert tid_error(moments, 4) == (0, 0)
    assert min(tid_error(moments, 5)) > 0


def test_measure_tid_calls_the_model_itself():
    norm, batches = BatchNorm(5).double(), make_batches((7, 2, 30))
    assert measure_tid(norm, batches)[""] == pytest.approx(tid_by_hand(batches, "mean-of-batches"))
    pooled = measure_tid(norm, batches, lambda model, batch: model(2 * batch), estimate="pooled")
    expected = tid_by_hand([2 * batch for batch in batches], "pooled")
    assert pooled[""] == pytest.approx(expected)
