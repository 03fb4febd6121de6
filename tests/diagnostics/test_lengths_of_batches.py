"""What is collected of lengths: a batch's own, and statistics by bins, against raw tokens."""

import numpy as np
import pytest
import torch
from torch import nn

import oracles
from rbn_fairseq.diagnostics import LayerMoments, collect_moments, recalibrate
from rbn_fairseq.norms import (
    BatchNorm,
    BatchNormOptions,
    LengthBatchNorm,
    LengthBins,
    PowerNorm,
    ValidTokens,
    lay_out,
)

SENTENCES = [[3, 5, 1], [2, 2], [7], [0, 4]]  # lengths by batch; padding of one sentence only
EDGES, CENTRES = [1.0, 3.0, 5.0, 7.0], [2.0, 4.0, 6.0]
OPTIONS = BatchNormOptions(length_bins=3)


def make_batches(lengths=SENTENCES):
    found = []
    for own in lengths:
        valid = oracles.real_tokens(max(own) + 1, own)  # a row of padding
        x = 2 + (1 + len(found)) * torch.randn(*valid.shape, 3, dtype=torch.double)
        found.append((x.masked_fill(~valid.unsqueeze(2), torch.nan), valid))
    return found


def forward(norm, batch):
    return norm(batch[0], ValidTokens(batch[1]))


@pytest.mark.parametrize("kind", [BatchNorm, PowerNorm])
def test_mean_length_of_a_tokens_sentence(kind):
    norm = kind(3).double()
    batches = make_batches([*SENTENCES[:2], [0, 0], *SENTENCES[2:]])  # one without any token
    found = collect_moments(norm, batches, forward, norms={"": norm})[""]
    # (3 * 3 + 5 * 5 + 1 * 1) / 9 and so on
    assert found.length.tolist() == pytest.approx([35 / 9, 2, 7, 4])
    assert found.count.tolist() == [9, 4, 7, 4]


def of_rows(norm, batch):
    x, valid = batch
    (layout,) = lay_out(valid, time_first=True)
    return norm(layout.pack(x), layout)


@pytest.mark.parametrize("length_bins", [1, 3])
def test_rows_with_a_layout_are_measured_as_padded_tensors(norm, length_bins):
    norm = norm if length_bins > 1 else BatchNorm(3).double()
    batches = make_batches()
    padded, rows = (collect_moments(norm, batches, way)[""] for way in (forward, of_rows))
    for name in ("mean", "var", "count", "length"):
        assert torch.equal(getattr(padded, name), getattr(rows, name))
    if length_bins > 1:
        both = (moments.bins.estimate("pooled") for moments in (padded, rows))
        assert all(map(torch.equal, *both))


def test_without_a_mask_lengths_are_known_to_norms_that_ask():
    batches = [torch.randn(length, 2, 3, dtype=torch.double) for length in (4, 1, 6)]
    for kind in (BatchNorm, LengthBatchNorm):
        found = collect_moments(kind(3, OPTIONS).double(), batches, lambda model, x: model(x))[""]
        lengths = None if found.length is None else found.length.tolist()
        assert lengths == (None if kind is BatchNorm else [4, 1, 6])


@pytest.mark.parametrize(
    "norm, shape", [(BatchNorm(3), (9, 3)), (nn.BatchNorm1d(3), (9, 3)),
                    (nn.BatchNorm1d(3), (2, 3, 9)), (nn.BatchNorm2d(3), (2, 3, 4, 5))],
)  # fmt: skip
def test_what_has_no_sentences_has_no_lengths(norm, shape):
    found = collect_moments(norm, [torch.randn(shape) for _ in range(3)], lambda model, x: model(x))
    assert isinstance(found[""], LayerMoments) and found[""].length is None


def tokens_by_bin(batch):
    """The real tokens of each bin."""
    x, valid = batch
    groups = [[], [], []]
    for sentence, mask in zip(x.unbind(1), valid.unbind(1), strict=True):
        length = int(mask.sum())
        if length:  # the last bin holds its upper edge, too
            groups[sum(length >= edge for edge in EDGES[1:-1])].append(sentence[mask])
    return [torch.cat(group) if group else torch.empty(0, 3).double() for group in groups]


def statistics_by_hand(batches, estimate):
    """Each bin's mean, variance and number of tokens, over batches."""
    found = []
    for parts in zip(*map(tokens_by_bin, batches), strict=True):
        parts = [part for part in parts if len(part)]
        if not parts:
            found.append((torch.zeros(3).double(), torch.zeros(3).double(), 0))
            continue
        number = sum(map(len, parts))
        moments = [oracles.moments(part) for part in parts]
        mean, var = (
            sum(len(part) * own[at] for part, own in zip(parts, moments, strict=True)) / number
            for at in (0, 1)
        )
        if estimate == "pooled":
            mean, var = oracles.moments(torch.cat(parts))
        found.append((mean, var, number))
    return found


@pytest.fixture
def norm():
    norm = LengthBatchNorm(3, OPTIONS).double()
    norm.population.set_bins(LengthBins(np.array(EDGES), np.array(CENTRES)))
    return norm


@pytest.mark.parametrize("lengths", [SENTENCES, [[1, 2], [2], [6, 6, 2]]], ids=["all", "one empty"])
@pytest.mark.parametrize("estimate", ["mean-of-batches", "pooled"])
def test_statistics_by_bin(norm, estimate, lengths):
    batches = make_batches(lengths)
    before = [buffer.clone() for buffer in norm.buffers()]
    found = collect_moments(norm, batches, forward)[""].bins.estimate(estimate)
    for at, (mean, var, number) in enumerate(statistics_by_hand(batches, estimate)):
        assert found.n[at] == number
        torch.testing.assert_close(found.mean[at], mean)  # fp64 rounding
        torch.testing.assert_close(found.var[at], var)
    assert all(map(torch.equal, norm.buffers(), before))


@pytest.mark.parametrize("estimate", ["mean-of-batches", "pooled"])
def test_recalibrated_bins(norm, estimate):
    batches = make_batches([*SENTENCES, [1], [1, 2, 2]])
    for _ in range(2):  # it starts from nothing that was there before
        assert recalibrate(norm, batches, forward, estimate) == 6
    mean, var = norm.population.look_up(torch.tensor(CENTRES))
    expected = statistics_by_hand(batches, estimate)
    torch.testing.assert_close(mean, torch.stack([own for own, _, _ in expected]))
    torch.testing.assert_close(var, torch.stack([own for _, own, _ in expected]))


def test_ordinary_norms_have_no_bins():
    assert collect_moments(BatchNorm(3).double(), make_batches(), forward)[""].bins is None
