"""Statistics of rounds made by hand; the order of the turns."""

from collections import Counter
from functools import partial
from itertools import pairwise

import pytest

from rounds import summarise, take_turns


def test_ratios_are_taken_round_by_round():
    rounds = [
        {"layer": 1.0, "batch": 2.0},
        {"layer": 10.0, "batch": 10.0},
        {"layer": 4.0, "batch": 12.0},
    ]
    layer, batch = summarise(rounds, case="made up")
    assert (layer["ms"], layer["ratio_to_layer"], layer["spread"]) == (4.0, 1.0, [1.0, 1.0])
    # Ratios 2, 1, 3: that of the medians would be 2.5.
    assert (batch["norm"], batch["ms"], batch["ratio_to_layer"]) == ("batch", 10.0, 2.0)
    assert (batch["spread"], batch["n"], batch["case"]) == ([1.5, 2.5], 3, "made up")


def test_times_per_token_become_those_of_an_update():
    rounds = [{"layer": 0.01, "batch": 0.02}, {"layer": 0.03, "batch": 0.03}]
    layer, batch = summarise(rounds, tokens={"layer": 1000.0, "batch": 500.0})
    assert (layer["ms"], batch["ms"]) == pytest.approx((20.0, 12.5))
    assert batch["ratio_to_layer"] == 1.5  # of tokens: 2 and 1
    assert batch["tokens"] == 500


def test_all_take_turns_in_each_round_and_the_first_does_not_count():
    order = []
    actions = {name: partial(lambda name: order.append(name) or len(order), name) for name in "abc"}
    rounds = take_turns(actions, 40, "")
    turns = [order[first : first + 3] for first in range(0, len(order), 3)]
    assert [sorted(turn) for turn in turns] == [list("abc")] * 41
    for number, (times, turn) in enumerate(zip(rounds, turns[1:], strict=True), 1):
        assert times == {name: 3 * number + place for place, name in enumerate(turn, 1)}
    followed = Counter(pair for turn in turns for pair in pairwise(turn))
    assert len(followed) == 3 * 2 and max(followed.values()) < len(turns) / 2
