"""Statistics of rounds made by hand; the order of the turns."""

import json
from collections import Counter
from functools import partial
from itertools import pairwise

import pytest

from rbn_fairseq.bench.rounds import summarise, take_turns

SAME = {"bench": "norm", "device": "cpu", "threads": 1, "dtype": "float32", "case": "made up"}
# The fields that other programs read.
FIELDS = {
    "bench", "norm", "device", "threads", "dtype", "case", "ms", "ratio_to_layer", "floor_ratio",
    "n", "spread",
}  # fmt: skip


def test_ratios_are_taken_round_by_round():
    rounds = [
        {"layer": 1.0, "batch": 2.0, "floor": 0.5},
        {"layer": 10.0, "batch": 10.0, "floor": 2.0},
        {"layer": 4.0, "batch": 12.0, "floor": 2.0},
    ]
    layer, batch, floor = summarise(rounds, **SAME)
    assert (layer.ms, layer.ratio_to_layer, layer.floor_ratio) == (4.0, 1.0, 2.0)
    assert layer.spread == (1.0, 1.0)
    # Ratios 2, 1, 3 and 4, 5, 6: those of the medians would be 2.5 and 5.
    assert (batch.ms, batch.ratio_to_layer, batch.floor_ratio) == (10.0, 2.0, 5.0)
    assert (batch.spread, batch.n) == ((1.5, 2.5), 3)
    assert (floor.norm, floor.floor_ratio) == ("floor", 1.0)


def test_times_per_token_become_those_of_an_update():
    rounds = [{"layer": 0.01, "batch": 0.02}, {"layer": 0.03, "batch": 0.03}]
    layer, batch = summarise(rounds, tokens={"layer": 1000.0, "batch": 500.0}, **SAME)
    assert (layer.ms, layer.us_per_token) == pytest.approx((20.0, 20.0))
    assert (batch.ms, batch.us_per_token) == pytest.approx((12.5, 25.0))
    assert batch.ratio_to_layer == 1.5  # of tokens: 2 and 1
    assert batch.record()["tokens"] == 500
    assert summarise(rounds, **SAME)[0].us_per_token is None


def test_records_have_the_fields_that_others_read():
    (row,) = summarise([{"layer": 6.0}], **SAME)
    record = json.loads(json.dumps(row.record()))
    assert set(record) == FIELDS and record["floor_ratio"] is None
    told = summarise([{"layer": 6.0}], channels=512, floor="a copy", **SAME)[0].record()
    assert set(told) == FIELDS | {"channels", "floor"}


def test_all_actions_run_in_each_round_and_the_first_does_not_count():
    order = []
    actions = {name: partial(lambda name: order.append(name) or len(order), name) for name in "abc"}
    rounds = take_turns(actions, 4, "")
    turns = [order[first : first + 3] for first in range(0, len(order), 3)]
    assert [sorted(turn) for turn in turns] == [list("abc")] * 5
    for number, (times, turn) in enumerate(zip(rounds, turns[1:], strict=True), 1):
        assert list(times) == list("abc")
        assert times == {name: 3 * number + place for place, name in enumerate(turn, 1)}


def test_none_always_follows_the_same_other():
    order = []
    actions = {name: partial(lambda name: order.append(name) or 1.0, name) for name in "abcd"}
    take_turns(actions, 40, "")
    turns = [order[first : first + 4] for first in range(0, len(order), 4)]
    followed = Counter(pair for turn in turns for pair in pairwise(turn))
    assert len(followed) == 4 * 3 and max(followed.values()) < len(turns) / 2
