"""Bins of sentence lengths, against counts written out; tests/fuzz has any lengths at all."""

import numpy as np
import pytest
import torch

from rbn_fairseq.norms import cut_lengths
from rbn_fairseq.norms.lengths import neighbours


def test_quantiles_hold_as_many_sentences():
    edges, centres = cut_lengths([*range(1, 65)] * 3, 16)
    assert edges.tolist() == [1, *(4 * g + 0.5 for g in range(1, 16)), 64]
    # Of tokens: a sentence of 4 has 4 times as many as one of 1.
    assert centres[0] == (1 + 4 + 9 + 16) / (1 + 2 + 3 + 4)


def test_as_many_bins_as_lengths_are_one_each():
    edges, centres = cut_lengths([9, 3, 3, 7, 3, 9], 3)
    assert edges.tolist() == [3, 5, 8, 9] and centres.tolist() == [3, 7, 9]


def test_one_bin_holds_all():
    edges, centres = cut_lengths([2, 4, 4], 1)
    assert edges.tolist() == [2, 4] and centres.tolist() == [(4 + 16 + 16) / 10]


def test_a_frequent_length_is_not_cut_and_leaves_the_others_their_bins():
    edges, _ = cut_lengths([6] * 100 + [5, 7, 8], 3)
    assert edges.tolist() == [5, 5.5, 6.5, 8]


def test_refuses_more_bins_than_lengths():
    with pytest.raises(ValueError, match=r"2 different lengths.*3 bins.*at most 2"):
        cut_lengths([5, 5, 5, 8], 3)


@pytest.mark.parametrize("centres", [[4.0], [2.5, 3, 10, 11.5]])
def test_between_centres_all_is_linear_and_beyond_them_constant(centres):
    lengths = torch.arange(15)
    values = torch.rand(len(centres), dtype=torch.double)
    lower, upper, share = neighbours(lengths, torch.tensor(centres, dtype=torch.double))
    actual = values[lower].lerp(values[upper], share.squeeze(1))
    np.testing.assert_allclose(actual, np.interp(lengths, centres, values), rtol=1e-15)
