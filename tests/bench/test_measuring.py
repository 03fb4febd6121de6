"""What measuring costs: shares of an epoch, from milliseconds per batch."""

import contextlib
import json

import pytest

from command import rbn
from rbn_fairseq.bench import tid
from rbn_fairseq.bench.tid import time_measuring, total_costs
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


def test_small_data_are_measured_whole():
    monitor = total_costs([times(1.0, 1.5, 0.3, 0.6)], 50, **SAME)[1]
    assert monitor.case.startswith("TID of 50 batches")
    assert monitor.share == pytest.approx(0.3)


def test_everything_really_runs(data_bin, tmp_path, monkeypatch):
    monkeypatch.setattr(tid, "TemporaryDirectory", lambda: contextlib.nullcontext(str(tmp_path)))
    result = rbn(
        "bench", "tid", data_bin, "--rounds", 2, "--batches", 3, "--json", "-", "--", *OPTIONS,
        "--norm-encoder", "batch",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)
    assert [(row["norm"], row["n"]) for row in rows] == [("batch", 2)] * 6
    training, _, one, two, *_ = rows
    assert min(training["ms"], one["ms"], two["ms"], one["floor_ratio"]) > 0
    assert "one pass / two" in result.stderr and "100.00 %" in result.stderr
    lines = (tmp_path / "conditioning.jsonl").read_text().splitlines()
    # A warm-up and two rounds of three updates; two layers, Post-Norm: one place each.
    assert [json.loads(line)["update"] for line in lines] == [u for u in range(9) for _ in "ab"]


def test_a_model_without_batch_norm_is_refused(data_bin):
    with pytest.raises(ValueError, match="no batch norm to measure. Add --norm-encoder batch"):
        time_measuring(str(data_bin), OPTIONS)
