"""The paper's numbers: against relations that its text states, and the benchmark's table."""

import math

import pytest

from rbn_fairseq.report.correlation import spearman
from rbn_fairseq.report.figures.scatter import paper_points
from rbn_fairseq.report.paper import BENCHMARKS
from rbn_fairseq.report.published import published

PAPER = published()
# BN - LN as Table 1 prints it (language models: LN - BN, so positive = BN better).
PRINTED = {
    "Post-Norm": [-1.5, -2.3, 7.3, 3.7, -0.3, -0.4, -0.1, -0.3, 0, 0],
    "Pre-Norm": [-0.7, -2.1, 8.6, 6.8, -0.8, -1.1, -0.1, -0.2, 0, 0],
}


@pytest.mark.parametrize("placement", PRINTED)
def test_gaps(placement):
    found = [-PAPER.gap(placement, "BN", dataset) for dataset in PAPER.datasets]
    assert found == pytest.approx(PRINTED[placement])


def test_total_tid_of_the_text():
    # Section 3.2: 38, 16, 9 and 5 % on WMT16, CoNLL, IMDB and WT103, Pre-Norm.
    totals = {it.dataset: it.tid for it in paper_points() if it.placement == "Pre-Norm"}
    found = [totals[name] for name in ("WMT16", "CoNLL", "IMDB", "WT103")]
    assert [round(value) for value in found] == [38, 16, 9, 5]


def test_rbn_beats_or_equals_ln_in_17_of_20():
    misses = [
        (placement, dataset)
        for placement in PRINTED
        for dataset in PAPER.datasets
        if PAPER.gap(placement, "RBN", dataset) > 1e-9
    ]
    expected = [("Post-Norm", "WMT16"), ("Pre-Norm", "WMT16"), ("Pre-Norm", "CoNLL")]
    assert misses == expected


def test_failures_stand_as_they_are():
    assert PAPER.performance("Post-Norm", "PN-only", "WT103") == math.inf
    assert PAPER.performance("Post-Norm", "MABN", "IWSLT14") == 0
    assert PAPER.performance("Post-Norm", "rms", "IWSLT14") is None
    assert PAPER.last_tid("Post-Norm", "mean", "LN", "IWSLT14") is None


def test_twenty_settings():
    points = paper_points()
    assert len(points) == 20 and spearman([it.tid for it in points], [it.gap for it in points])
    assert {it.metric for it in points} == {"BLEU", "PPL", "F1", "accuracy"}


def test_benchmarks_have_the_same_numbers():
    for name, dataset in (("iwslt14", "IWSLT14"), ("wmt16", "WMT16")):
        bleu = BENCHMARKS[name].bleu
        assert bleu["pre", "rbn_official"] == PAPER.performance("Pre-Norm", "RBN", dataset)
        assert len(bleu) == 8
    assert PAPER.average_tid["ResNet18"] == (0.8, 0.9)
    assert PAPER.deviation == {"Transformer": (11, 13), "ResNet18": (4, 4)}
