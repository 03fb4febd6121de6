"""Bins of sentence lengths for any lengths."""

import itertools

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from rbn_fairseq.norms import cut_lengths

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
