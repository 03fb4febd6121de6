"""Bins of sentence lengths for any lengths; norms that have them, for any batch."""

import itertools

import numpy as np
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import oracles
from agreement import randomise
from batches import DTYPES, batches, tolerance
from rbn_fairseq.norms import (
    BatchNorm,
    BatchNormOptions,
    LengthBins,
    PopulationByLength,
    ValidTokens,
    cut_lengths,
)

LENGTHS = st.lists(st.integers(1, 12) | st.integers(1, 300), min_size=1, max_size=40)


@given(LENGTHS, st.integers(1, 5))
def test_cut_lengths(lengths, bins):
    different = sorted(set(lengths))
    assume(bins <= len(different) <= 12)
    edges, centres = cut_lengths(lengths, bins)
    assert edges[0] == min(lengths) and edges[-1] == max(lengths)
    assert (np.diff(edges) > 0).all() or len(different) == 1
    assert (np.diff(centres) > 0).all()
    assert not set(edges[1:-1]) & set(lengths)
    assert all(edges[:-1] <= centres) and all(centres <= edges[1:])
    index = [sum(edge <= n for edge in edges[1:-1]) for n in different]
    assert sorted(set(index)) == list(range(bins))
    # As near to equal parts as the best of all cuts, but for the weight of one length.
    shares = np.array([lengths.count(n) for n in different])
    ideal = shares.sum() / bins

    def worst(begins):
        return max(abs(part.sum() - ideal) for part in np.split(shares, begins))

    best = min(map(worst, itertools.combinations(range(1, len(different)), bins - 1)))
    assert worst([index.index(g) for g in range(1, bins)]) <= best + shares.max() + 1e-9


@given(batches(dtypes=DTYPES[:3]), st.lists(st.integers(1, 7), max_size=3, unique=True))
def test_length_batch_norm(batch, inner):
    """A first batch: what trains is batch norm; what bins keep is what their tokens say."""
    edges = np.array([0.5, *sorted(inner), 7.5])
    x, channels = batch.x, batch.x.shape[-1]
    dtype = torch.promote_types(x.dtype, torch.float32)
    plain = randomise(BatchNorm(channels)).to(dtype)
    options = BatchNormOptions(length_bins=len(inner) + 1)
    population = PopulationByLength(channels, options.momentum, options.length_bins)
    norm = BatchNorm(channels, options, population=population).to(dtype)
    norm.load_state_dict(plain.state_dict(), strict=False)
    norm.population.set_bins(LengthBins(edges, (edges[1:] + edges[:-1]) / 2))
    valid = torch.ones(x.shape[:2], dtype=torch.bool) if batch.valid is None else batch.valid
    # With a mask both take rows in one order, that of sentences.
    assert torch.equal(norm(x, batch.tokens), plain(x, ValidTokens(valid)))
    assert all(map(torch.equal, norm.population.get(), plain.population.get()))

    bins = sum((valid.sum(0) >= edge).long() for edge in inner) + torch.zeros(x.shape[1])  # (B,)
    means, variances = norm.population.by_bin()
    for g in range(len(edges) - 1):
        real = x[valid & (bins == g)].double()
        part = 0.05 * len(real) / max(1, int(valid.sum()))
        torch.testing.assert_close(norm.population.bin_weight[g].item(), part, rtol=1e-6, atol=0)
        mean, var = oracles.moments(real) if len(real) else plain.population.get()
        torch.testing.assert_close(means[g], mean.to(dtype), **tolerance(dtype))
        # Of sums around the mean of all: the squares that cancel are of the size of the data's.
        scale = 1 + x[valid].double().square().max().item() if len(real) else 1
        torch.testing.assert_close(variances[g] / scale, var.to(dtype) / scale, **tolerance(dtype))
    norm.eval()(x, batch.tokens)
