"""How the time of norms grows: what the sweeps vary."""

import pytest

from rbn_fairseq.bench import growth
from rbn_fairseq.bench.growth import time_growth
from rbn_fairseq.bench.norm_times import Conditions
from rbn_fairseq.bench.rounds import Row


def row(norm, ms, case="made up"):
    same = {"device": "cpu", "threads": 1, "dtype": "float32", "bench": "norm", "n": 1}
    return Row(norm=norm, ms=ms, case=case, **same)


@pytest.mark.parametrize(
    "what, values, sizes, ms",
    [  # sentences, channels, norms one after another
        ("tokens", (128, 256), [(4, 16, 3), (8, 16, 3)], [5, 5]),
        ("channels", (4, 8), [(64, 4, 3), (64, 8, 3)], [5, 5]),
        ("layers", (4, 8), [(64, 16, 8), (64, 16, 16)], [40, 80]),  # of all norms, two a layer
    ],
)
def test_one_thing_grows(monkeypatch, what, values, sizes, ms):
    seen = []

    def time(case, how, label):
        (lengths,) = case.batches
        seen.append((len(lengths), how.channels, how.depth))
        return [row("layer", 5.0, case.name)]

    monkeypatch.setattr(growth, "time_norms", time)
    grown = time_growth(what, values, 2048, Conditions(["layer"], channels=16, depth=3))
    assert seen == sizes
    assert list(grown) == list(values)
    assert [rows[0].ms for rows in grown.values()] == ms
    first = grown[values[0]][0]
    tokens, channels, _ = sizes[0]
    assert first.bench == "scaling"
    assert first.case == f"{what}-{values[0]}/{32 * tokens}x{channels}"
