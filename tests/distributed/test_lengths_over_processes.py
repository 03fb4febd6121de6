"""Lengths and statistics by bins of batches that two processes share, against the joined batch."""

import numpy as np
import pytest
import torch

import oracles
from processes import WORLD, on_processes
from rbn_fairseq.diagnostics import collect_moments, conditional_tid
from rbn_fairseq.norms import BatchNorm, BatchNormOptions, LengthBins, ValidTokens

LENGTHS = [[[3, 5], [1, 2]], [[2], [6]], [[4, 1], [0, 0]], [[6], [5]]]  # by batch, then by rank


def data(batch, rank):
    valid = oracles.real_tokens(6, LENGTHS[batch][rank])
    generator = torch.Generator().manual_seed(10 * batch + rank)
    x = torch.randn(*valid.shape, 3, dtype=torch.double, generator=generator)
    return x.masked_fill(~valid.unsqueeze(2), torch.nan), valid


def joined(batch):
    parts = zip(*(data(batch, rank) for rank in range(WORLD)), strict=True)
    return tuple(torch.cat(part, 1) for part in parts)


def measured(batches, sync):
    norm = BatchNorm(3, BatchNormOptions(length_bins=2), sync).double()
    norm.population.set_bins(LengthBins(np.array([1.0, 4.0, 6.0]), np.array([2.0, 5.0])))
    forward = lambda model, batch: model(batch[0], ValidTokens(batch[1]))  # noqa: E731
    found = collect_moments(norm, batches, forward)[""]
    value = torch.tensor(conditional_tid(found, 2), dtype=torch.double)
    return [found.length, value, *found.bins.estimate("pooled")]


def on_rank(rank):
    return measured([data(batch, rank) for batch in range(len(LENGTHS))], True)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return on_processes(on_rank, tmp_path_factory.mktemp("ranks"))


def test_two_processes_are_one(ranks):
    expected = measured([joined(batch) for batch in range(len(LENGTHS))], False)
    assert expected[0].tolist() == pytest.approx([39 / 11, 40 / 8, 17 / 5, 61 / 11])
    for own in ranks:
        for one, other in zip(own, expected, strict=True):
            torch.testing.assert_close(one, other)  # fp64 rounding
