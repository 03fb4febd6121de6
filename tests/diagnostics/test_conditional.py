"""TID given the length, against known distributions and groups written out by hand."""

import math

import pytest
import torch

import oracles
from rbn_fairseq.diagnostics import LayerMoments, conditional_tid, tid

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
    mean_tid, var_tid = conditional_tid(moments, bins=lengths)
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
@pytest.mark.parametrize("lengths, bins, groups", CASES.values(), ids=CASES)
def test_groups(lengths, bins, groups, estimate):
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
    assert conditional_tid(moments, bins, estimate) == pytest.approx(tuple(expected), rel=1e-9)


@pytest.mark.parametrize("estimate", ["mean-of-batches", "pooled"])
def test_the_order_of_batches_does_not_matter(estimate):
    lengths = [4, 4, 4, 4, 9, 9, 11, 12.5, 13, 13, 13]
    moments = moments_of([torch.randn(9, 5, dtype=torch.double) for _ in lengths], lengths)
    value = conditional_tid(moments, 3, estimate)
    for _ in range(5):
        shuffled = picked(moments, torch.randperm(len(lengths)))
        assert conditional_tid(shuffled, 3, estimate) == pytest.approx(value, rel=1e-12)


def test_of_one_length_it_is_tid_but_for_the_groups_own_size():
    moments = moments_of([torch.randn(9, 5, dtype=torch.double) for _ in range(6)], [4] * 6)
    expected = [value * math.sqrt(6 / 5) for value in tid(moments)]
    assert conditional_tid(moments) == pytest.approx(expected)


def test_where_it_is_not_told():
    batches = [torch.randn(9, 5, dtype=torch.double) for _ in range(4)]
    moments = moments_of(batches, [3, 4, 5, 6])
    assert conditional_tid(moments) is not None
    assert conditional_tid(moments_of(batches)) is None  # no lengths
    assert conditional_tid(picked(moments, [1])) is None  # no batch to be compared with
    for estimate in ("ema", "running"):
        assert conditional_tid(moments, estimate=estimate) is None
