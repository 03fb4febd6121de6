"""TID and what it is made of, against Eq. 5 over raw tokens and against known distributions."""

import itertools
import math
import warnings

import pytest
import torch

import oracles
from rbn_fairseq.diagnostics import (
    POPULATIONS,
    TID,
    LayerMoments,
    average_tid,
    conditional_tid,
    deviation,
    distances,
    independent_tid,
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
@pytest.mark.parametrize("channels", [1, 5, 513])
def test_tid_is_its_definition(estimate, channels):
    batches = make_batches(channels=channels)
    expected = tid_by_hand(batches, estimate)
    assert tid(layer_moments(batches), estimate) == pytest.approx(expected, rel=1e-9)  # fp64


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


def test_one_batch_of_several_tells_no_error():
    moments = layer_moments(make_batches()[:1])
    with warnings.catch_warnings(action="error"):
        assert all(map(math.isnan, tid_error(moments, 2)))


def test_measure_tid_calls_the_model_itself():
    norm, batches = BatchNorm(5).double(), make_batches((7, 2, 30))
    assert measure_tid(norm, batches)[""] == pytest.approx(tid_by_hand(batches, "mean-of-batches"))
    pooled = measure_tid(norm, batches, lambda model, batch: model(2 * batch), estimate="pooled")
    expected = tid_by_hand([2 * batch for batch in batches], "pooled")
    assert pooled[""] == pytest.approx(expected)


def test_independent_tid_is_a_mean_over_batches():
    half, quarter = 1 / math.sqrt(4), 1 / math.sqrt(16)
    expected = (half + quarter) / 2
    found = independent_tid(torch.tensor([4, 16]))
    assert found == pytest.approx((expected, expected / math.sqrt(2)), rel=1e-12)


TOKENS = 200


def moments_of(batches, lengths=None):
    mean, var = map(torch.stack, zip(*map(oracles.moments, batches), strict=True))
    count = torch.tensor([len(batch) for batch in batches], dtype=torch.double)
    lengths = None if lengths is None else torch.tensor(lengths, dtype=torch.double)
    zero, one = torch.zeros_like(mean[0]), torch.ones_like(var[0])
    return LayerMoments(mean, var, count, (zero, one), length=lengths)


def picked(moments, which):
    return LayerMoments(
        moments.mean[which], moments.var[which], moments.count[which], length=moments.length[which]
    )


@pytest.mark.parametrize("spread", [0, 3])
@pytest.mark.parametrize("lengths, each", [(6, 30), (60, 3), (100, 2)])
def test_normal_tokens_of_a_distribution_by_length(lengths, each, spread):
    # Given its length a batch's mean has std s / sqrt(n) in each channel, its deviation about
    # s / sqrt(2n), s that of the length. Each norm over 128 channels is within 1 / sqrt(256) = 6 %,
    # their mean over at least 90 independent ones within 0.7 %: 2.5 % is more than 3 such errors.
    centres = spread * torch.randn(lengths, 128, dtype=torch.double)
    stds = torch.linspace(1, 1 + spread, lengths, dtype=torch.double).tolist()
    kinds = [kind for kind in range(lengths) for _ in range(each)]
    batches = (centres[k] + stds[k] * torch.randn(TOKENS, 128, dtype=torch.double) for k in kinds)
    moments = moments_of(list(batches), [5 + kind for kind in kinds])
    # In units of ||sigma||: the root of the mean variance.
    share = sum(stds) / lengths / math.sqrt(sum(std**2 for std in stds) / lengths)
    mean_tid, var_tid = conditional_tid(moments, groups=lengths)
    assert mean_tid == pytest.approx(share / math.sqrt(TOKENS), rel=0.025)
    assert var_tid == pytest.approx(share / math.sqrt(2 * TOKENS), rel=0.025)
    if spread:  # what is between lengths is TID, but not given the length
        assert tid(moments).mean > 5 * mean_tid and tid(moments).var > 3 * var_tid


CASES = {  # batches' lengths, groups asked for, and those that there are, by lengths
    "two by two": ([5, 3, 9, 7], 2, [[3, 5], [7, 9]]),
    "two at least": ([5, 1, 4, 2, 3], 16, [[1, 2], [3, 4, 5]]),
    "one length stays together": ([4, 6, 4, 4, 7, 4], 3, [[4, 4, 4, 4], [6, 7]]),
    "the others share what is left": ([1] * 8 + [2, 3, 4, 5], 3, [[1] * 8, [2, 3], [4, 5]]),
    "a lone longest one": ([2, 2, 9, 2], 2, [[2, 2, 2, 9]]),
    "a lone shortest one": ([5, 5, 1, 5], 2, [[1, 5, 5, 5]]),
    "the nearer end is before": ([1, 1, 1, 2, 2, 2, 3, 3], 2, [[1] * 3, [2, 2, 2, 3, 3]]),
    "the nearer end is behind": ([1, 1, 2, 2, 2, 3, 3, 3], 2, [[1, 1, 2, 2, 2], [3] * 3]),
    "all in one": ([5, 3, 9, 7], 1, [[3, 5, 7, 9]]),
    "one length only": ([4, 4, 4], 16, [[4, 4, 4]]),
    "means of lengths": ([5.5, 3.25, 5.5, 3], 2, [[3, 3.25], [5.5, 5.5]]),
}


@pytest.mark.parametrize("estimate", ["mean-of-batches", "pooled"])
@pytest.mark.parametrize("lengths, number, groups", CASES.values(), ids=CASES)
def test_groups(lengths, number, groups, estimate):
    numbers = torch.rand(2, len(lengths), dtype=torch.double).tolist()
    counts = [float(7 + n) for n in range(len(lengths))]
    # Of one channel, so that distances are those of numbers.
    batches = [*zip(lengths, *numbers, counts, strict=True)]
    moments = LayerMoments(
        *(torch.tensor(part, dtype=torch.double).unsqueeze(1) for part in numbers),
        torch.tensor(counts, dtype=torch.double),
        length=torch.tensor(lengths, dtype=torch.double),
    )

    def estimated(own):
        weights = [n if estimate == "pooled" else 1.0 for *_, n in own]
        shares = [weight / sum(weights) for weight in weights]
        mean = sum(share * m for share, (_, m, _, _) in zip(shares, own, strict=True))
        var = sum(share * v for share, (_, _, v, _) in zip(shares, own, strict=True))
        if estimate == "pooled":
            var += sum(s * (m - mean) ** 2 for s, (_, m, _, _) in zip(shares, own, strict=True))
        return mean, var

    whole = math.sqrt(estimated(batches)[1])
    expected = [0.0, 0.0]
    for group in groups:
        own = [batch for batch in batches if batch[0] in group]
        assert len(own) == len(group)
        mean, var = estimated(own)
        factor = math.sqrt(len(own) / (len(own) - 1)) / whole / len(batches)
        expected[0] += factor * sum(abs(m - mean) for _, m, _, _ in own)
        expected[1] += factor * sum(abs(math.sqrt(v) - math.sqrt(var)) for _, _, v, _ in own)
    found = conditional_tid(moments, number, estimate)
    if len(groups) == 1:  # no condition
        assert found is None
    else:
        assert found == pytest.approx(tuple(expected), rel=1e-9)


def test_where_it_is_not_told():
    batches = [torch.randn(9, 5, dtype=torch.double) for _ in range(4)]
    moments = moments_of(batches, [3, 4, 5, 6])
    assert conditional_tid(moments) is not None
    assert conditional_tid(moments_of(batches)) is None  # no lengths
    assert conditional_tid(picked(moments, [1])) is None  # no batch to be compared with
    assert conditional_tid(moments, estimate="running") is None
    with pytest.raises(ValueError, match="groups must be at least 1, but is 0"):
        conditional_tid(moments, 0)


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


def test_a_population_mean_of_zero_is_infinitely_far():
    base = torch.tensor([[-1.0], [1.0]], dtype=torch.double)
    mean, var = deviation(layer_moments([base - 1, base + 1]))
    assert mean == math.inf and var == 0


def test_distances_are_in_units_of_sigma():
    # ||sigma|| = 5; means are (6, 8) and (0, 0) apart, standard deviations (2, 3) and (0, 1).
    whole = torch.tensor([7.0, 10.0]), torch.tensor([9.0, 16.0])
    means = torch.tensor([[1.0, 2.0], [7.0, 10.0]])
    variances = torch.tensor([[1.0, 1.0], [9.0, 9.0]])
    of_mean, of_std = distances(means, variances, whole)
    assert of_mean.tolist() == pytest.approx([2, 0])
    assert of_std.tolist() == pytest.approx([math.sqrt(13) / 5, 0.2])
    assert torch.stack(distances(means[0], whole[1], whole)).tolist() == pytest.approx([2, 0])


def test_no_layer_has_no_average():
    with pytest.raises(ValueError, match="no layer"):
        average_tid({})
