"""Correlations: against scipy, numbers by hand, and an exact interval."""

import math

import numpy as np
import pytest

from rbn_fairseq.report.correlation import pearson, spearman

stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize("number", [4, 5, 17, 60])
@pytest.mark.parametrize("ties", [False, True])
def test_against_scipy(number, ties):
    generator = np.random.default_rng(number)
    x = generator.normal(size=number)
    y = x + generator.normal(size=number)
    if ties:
        x, y = np.round(x), np.round(y, 1)
    ours, theirs = pearson(x, y), stats.pearsonr(x, y)
    assert ours.value == pytest.approx(theirs.statistic, abs=1e-12)
    interval = theirs.confidence_interval(0.95)  # scipy's is Fisher's too
    assert ours.interval == pytest.approx((interval.low, interval.high), abs=1e-9)
    assert spearman(x, y).value == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    assert ours.number == number


def test_by_hand():
    # Ranks 1 2 3 4 and 2 1 4 3: 1 - 6 * 4 / (4 * 15) = 0.6.
    found = spearman([10, 20, 30, 40], [0.2, 0.1, 9, 5])
    assert found.value == pytest.approx(0.6)
    # artanh 0.6 = ln 2; standard error sqrt(1 + 0.18).
    half = 1.959964 * math.sqrt(1.18)
    expected = (math.tanh(math.log(2) - half), math.tanh(math.log(2) + half))
    assert found.interval == pytest.approx(expected, abs=1e-6)


def test_monotone_is_one_for_ranks_only():
    x = [1, 2, 3, 4, 5]
    y = [value**3 for value in x]
    assert spearman(x, y).value == 1 and spearman(x, y).interval is None
    assert pearson(x, y).value < 1 and pearson(x, y).interval is not None
    assert spearman(x, [-value for value in y]).value == -1


@pytest.mark.parametrize("correlate", [pearson, spearman])
def test_too_few(correlate):
    assert correlate([1, 2, 3], [1, 3, 2]).interval is None
    assert correlate([1, 2, 3], [1, 3, 2]).value == pytest.approx(0.5)
    assert correlate([1], [1]).value is None and correlate([], []).value is None
    assert correlate([1, 2, 3, 4], [7, 7, 7, 7]).value is None


@pytest.mark.parametrize("correlate", [pearson, spearman])
def test_pairs_that_are_not_finite_are_left_out(correlate):
    x, y = [1, 2, math.nan, 3, 4, 5], [2, 1, 3, math.inf, 4, 3]
    found, alone = correlate(x, y), correlate([1, 2, 4, 5], [2, 1, 4, 3])
    assert (found.value, found.interval, found.number) == (alone.value, alone.interval, 4)
    assert (found.left_out, alone.left_out) == (2, 0)
