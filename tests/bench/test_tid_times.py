"""What measuring costs: shares of an epoch, from milliseconds per batch."""

import pytest

from rbn_fairseq.bench.tid_times import time_measuring, total_costs
from runs import TINY

SAME = {"norm": "batch", "device": "cpu", "threads": 1, "dtype": "float32"}
OPTIONS = [*TINY, "--optimizer", "adam", "--max-tokens", "1000"]


def times(update, conditioned, one, two):
    return {
        "update": update,
        "update with conditioning": conditioned,
        "one pass": one,
        "two passes": two,
        "floor": 0.1,
    }


def test_shares_are_taken_round_by_round():
    # Of 1,000 updates; rounds of different speed, whose shares are what counts.
    rounds = [times(1.0, 3.0, 0.2, 0.5), times(2.0, 4.0, 0.8, 1.6), times(4.0, 8.0, 1.2, 2.0)]
    training, monitor, one, two, conditioning, ratio = total_costs(rounds, 1000, **SAME)
    assert (training.case, training.ms, training.share) == ("training, 1000 updates", 2000.0, 1.0)
    # One pass: 0.2, 0.4 and 0.3 of an update; 2, 8 and 12 times the floor.
    assert one.share == pytest.approx(0.3) and one.ms == pytest.approx(800)
    assert one.spread == pytest.approx((0.25, 0.35)) and one.n == 3
    assert one.floor_ratio == monitor.floor_ratio == pytest.approx(8)
    assert monitor.share == pytest.approx(0.3 * 200 / 1000)
    assert monitor.ms == pytest.approx(160)
    assert two.share == pytest.approx(0.5)  # 0.5, 0.8, 0.5
    # One measurement takes 2, 1 and 1 updates, once in 500.
    assert conditioning.share == pytest.approx(1 / 500)
    assert ratio.share == pytest.approx(0.5)  # 0.4, 0.5, 0.6


def test_a_model_without_batch_norm_is_refused(data_bin):
    with pytest.raises(ValueError, match="--norm-encoder"):
        time_measuring(str(data_bin), OPTIONS)
