"""What measuring costs: shares of an epoch, from seconds per batch."""

import json

import pytest

from rbn_fairseq.bench.tid import Cost, time_measuring, total_costs
from rbn_fairseq.bench.training import DEFAULTS


def times(update, conditioned, one, two):
    return {
        "update": update,
        "update with conditioning": conditioned,
        "one pass": one,
        "two passes": two,
    }


def test_shares_are_taken_round_by_round():
    # Of 1,000 updates; rounds of different speed, whose shares are what counts.
    rounds = [times(1.0, 3.0, 0.2, 0.5), times(2.0, 4.0, 0.8, 1.6), times(4.0, 8.0, 1.2, 2.0)]
    training, monitor, one, two, conditioning, ratio = total_costs(rounds, 1000)
    assert training == Cost("training, 1000 updates", 2000.0, 1.0, (1.0, 1.0))
    # One pass: 0.2, 0.4 and 0.3 of an update.
    assert one.share == pytest.approx(0.3) and one.seconds == pytest.approx(800)
    assert one.quartiles == pytest.approx((0.25, 0.35))
    assert monitor.share == pytest.approx(0.3 * 200 / 1000)
    assert monitor.seconds == pytest.approx(160)
    assert two.share == pytest.approx(0.5)  # 0.5, 0.8, 0.5
    # One measurement takes 2, 1 and 1 updates, once in 500.
    assert conditioning.share == pytest.approx(1 / 500)
    assert ratio.share == pytest.approx(0.5)  # 0.4, 0.5, 0.6


def test_small_data_are_measured_whole():
    monitor = total_costs([times(1.0, 1.5, 0.3, 0.6)], 50)[1]
    assert monitor.name.startswith("TID of 50 batches")
    assert monitor.share == pytest.approx(0.3)


def test_everything_really_runs(data_bin, tmp_path):
    options = [*DEFAULTS.split(), "--norm-encoder", "batch"]
    epoch, turns = time_measuring(str(data_bin), str(tmp_path), options, rounds=2, batches=3)
    rounds = list(turns)
    assert epoch > 3 and len(rounds) == 2
    for turn in rounds:
        assert turn["two passes"] > turn["one pass"] > 0 and turn["update"] > 0
    lines = (tmp_path / "conditioning.jsonl").read_text().splitlines()
    # A warm-up and two rounds of three updates; two layers, Post-Norm: one place each.
    assert [json.loads(line)["update"] for line in lines] == [u for u in range(9) for _ in "ab"]


def test_a_model_without_batch_norm_is_refused(data_bin, tmp_path):
    with pytest.raises(ValueError, match="no batch norm to measure. Add --norm-encoder batch"):
        time_measuring(str(data_bin), str(tmp_path), DEFAULTS.split())
