"""The paper's numbers: against relations that its text states, and the benchmark's table."""

import math

import pytest

from rbn_fairseq.report.figures.scatter import paper_points
from rbn_fairseq.report.paper import BENCHMARKS
from rbn_fairseq.report.published import published
from rbn_fairseq.report.published_table import published_section

PAPER = published()
# BN - LN as Table 1 prints it (language models: LN - BN, so positive = BN better).
PRINTED = {
    "Post-Norm": [-1.5, -2.3, 7.3, 3.7, -0.3, -0.4, -0.1, -0.3, 0, 0],
    "Pre-Norm": [-0.7, -2.1, 8.6, 6.8, -0.8, -1.1, -0.1, -0.2, 0, 0],
}
# Tables 1 to 4, typed from the paper apart from published.json; in the order of its data sets.
TABLES = """
Post-LN                   35.5 27.3  53.2 20.9 94.8 91.3 84.1 94.6 97.5 93.3
Post-BN                   34.0 25.0  45.9 17.2 94.5 90.9 84.0 94.3 97.5 93.3
Post-RBN                  35.5 26.5  44.6 17.1 94.8 91.4 84.5 94.7 97.6 93.6
Post-PN-only               0.0  0.0 254.6  inf 94.4 67.1 84.2 90.6 97.1 89.6
Post-PN+LS                35.6  0.0  49.8 21.0 94.3 90.9 84.0 94.6 97.4 93.2
Post-BRN                  35.3 25.8  45.1 17.3 93.6 89.9 83.6 94.5 97.5 93.3
Post-MABN                  0.0  0.0  47.4 33.6 94.4 90.8 84.1 94.5 97.5 93.5
Post-BN, better than LN by -1.5 -2.3 +7.3 +3.7 -0.3 -0.4 -0.1 -0.3 +0.0 +0.0
Post-BN, mean TID, %       1.5  4.2  0.9  1.8  1.7  4.2  1.8  1.8  2.2  3.1
Post-BN, variance TID, %  10.6 17.9  1.1  2.0  3.7  9.5  3.9  4.3  3.5  4.0
Post-RBN, mean TID, %      0.8  2.3  0.9  1.8  1.4  1.9  0.2  0.2  0.3  0.2
Post-RBN, variance TID, %  6.7  7.7  1.1  1.7  3.0  5.0  1.2  0.2  0.3  0.1
Pre-LN                    35.5 27.3  54.5 24.6 94.0 91.0 84.1 94.5 97.5 93.3
Pre-BN                    34.8 25.2  45.9 17.8 93.2 89.9 84.0 94.3 97.5 93.3
Pre-RBN                   35.6 26.2  43.2 17.1 94.0 90.6 84.4 94.7 97.5 93.5
Pre-PN-only               34.5 26.0  48.6  inf  5.0 11.1 84.2 94.4 97.4 93.3
Pre-PN+LS                 35.6 27.2  59.8 20.9 93.3 54.1 83.3 94.4 97.3 93.4
Pre-BRN                   35.2 25.3  45.7 17.5 94.1 91.1 84.3 94.5 97.4 93.4
Pre-MABN                  35.0 26.8  48.7  inf 94.8 90.9 84.4 94.6 97.5 93.3
Pre-BN, better than LN by -0.7 -2.1 +8.6 +6.8 -0.8 -1.1 -0.1 -0.2 +0.0 +0.0
Pre-BN, mean TID, %        3.4  7.9  1.6  2.4  9.6 10.0  2.9  7.5  3.9 12.1
Pre-BN, variance TID, %    4.6 30.1  1.7  2.5  6.5  6.4  6.2  7.1  3.3  8.6
Pre-RBN, mean TID, %       3.2  1.3  1.6  2.4  4.5  4.0  0.7  1.0  1.1  1.0
Pre-RBN, variance TID, %   1.5 12.1  1.7  2.4  6.3  5.6  4.7  0.4  0.5  0.5
"""


def test_every_cell_of_tables_1_to_4():
    (table,) = published_section().blocks
    found = [[row[0].text, *(cell.text for cell in row[2:])] for row in table.rows]
    lines = (line.rsplit(maxsplit=10) for line in TABLES.strip().splitlines())
    assert found == list(lines)
    datasets = ("IWSLT14", "WMT16", "PTB", "WT103", "Resume", "CoNLL", "IMDB", "Sogou", "DBPedia")
    assert PAPER.datasets == (*datasets, "Yelp")
    assert all(cell.paper for row in table.rows for cell in row)


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
    assert len(points) == 20
    assert {it.metric for it in points} == {"BLEU", "PPL", "F1", "accuracy"}


def test_benchmarks_have_the_same_numbers():
    for name, dataset in (("iwslt14", "IWSLT14"), ("wmt16", "WMT16")):
        bleu = BENCHMARKS[name].bleu
        assert bleu["pre", "rbn_official"] == PAPER.performance("Pre-Norm", "RBN", dataset)
        assert bleu["post", "pn_ls"] == PAPER.performance("Post-Norm", "PN+LS", dataset)
        assert len(bleu) == 2 * 8
    assert PAPER.average_tid["ResNet18"] == (0.8, 0.9)
    assert PAPER.deviation == {"Transformer": (11, 13), "ResNet18": (4, 4)}
