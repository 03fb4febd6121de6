"""Training updates: per real token, on batches of each setting; the penalty; memory."""

import numpy as np
import pytest

from rbn_fairseq.bench import training_times
from rbn_fairseq.bench.trainers import product_dtype, set_up, training_dtype
from rbn_fairseq.bench.training_times import penalty_row, time_updates
from runs import TINY

COMMON = [
    *TINY, "--optimizer", "adam", "--max-tokens", "1000",
    "--criterion", "label_smoothed_cross_entropy_rbn",
]  # fmt: skip
SAME = {"bench": "train", "device": "cpu", "threads": 1, "dtype": "float32", "case": "made up"}


def test_the_penalty_is_what_rbn_takes_longer_than_batch():
    rounds = [  # of a token
        {"layer": 9.0, "batch": 10.0, "rbn": 12.0},
        {"layer": 9.0, "batch": 20.0, "rbn": 30.0},
        {"layer": 9.0, "batch": 40.0, "rbn": 44.0},
    ]
    row = penalty_row(rounds, {"layer": 5.0, "batch": 100.0, "rbn": 7.0}, **SAME)
    assert (row.bench, row.ms, row.n) == ("penalty", 4.0 * 100, 3)
    # 0.2, 0.5, 0.1
    assert row.share == pytest.approx(0.2) and row.spread == pytest.approx((0.15, 0.35))
    assert penalty_row([{"layer": 1.0, "rbn": 2.0}], {}, **SAME) is None


@pytest.mark.parametrize(
    "options, device, words, products",
    [
        ("", "cuda", "float32", "float32"),
        ("--bf16", "cuda", "bfloat16", "bfloat16"),
        ("--amp", "cuda", "float32 and float16", "float16"),
        ("--amp", "cpu", "float32", "float32"),  # fairseq casts on GPUs alone
    ],
)
def test_the_dtype_of_products_is_that_which_is_cast_to(data_bin, options, device, words, products):
    cfg, _ = set_up(str(data_bin), [*COMMON, *options.split()], device)
    assert (training_dtype(cfg), product_dtype(cfg)) == (words, products)


def count(batches):
    """Count real tokens, source and target, another way."""
    return sum(
        int(tokens.ne(1).sum())  # fairseq's padding
        for batch in batches
        for tokens in (batch["net_input"]["src_tokens"], batch["target"])
    )


def test_times_are_those_of_a_real_token(data_bin, monkeypatch):
    """Where every turn takes as long, setting and round decide by their tokens alone."""
    trained = []  # trainers and their batches, turn by turn
    monkeypatch.setattr(training_times, "train", lambda *turn: trained.append(turn))
    monkeypatch.setattr(training_times, "count_flops", lambda action: (action(), 1e12)[1])
    monkeypatch.setattr(training_times, "milliseconds", lambda action, device: (action(), 60.0)[1])
    monkeypatch.setattr(training_times, "peak_bytes", lambda action, device: 1)
    settings = {
        "dropout 0.1": ["--dropout", "0.1"],
        "dropout 0.2": ["--dropout", "0.2"],
        "dropout 0.3": ["--dropout", "0.3", "--length-mixing", "4"],
    }
    rows = {
        row.norm: row
        for row in time_updates(str(data_bin), settings, COMMON, rounds=3, updates=2)
        if row.bench == "train"
    }
    tokens = {name: [] for name in settings}
    for trainer, batches in trained[1:]:  # the first is for the floor
        tokens[f"dropout {trainer.cfg.model.dropout}"].append(count(batches))
    assert {len(counts) for counts in tokens.values()} == {1 + 3}
    reference = tokens["dropout 0.1"][1:]
    for name, (_, *counts) in tokens.items():
        ratios = [first / other for first, other in zip(reference, counts, strict=True)]
        assert rows[name].tokens == pytest.approx(np.mean(counts) / 2)
        assert rows[name].us_per_token == pytest.approx(1000 * np.median([60 / n for n in counts]))
        assert rows[name].ratio_to_layer == pytest.approx(np.median(ratios))
    assert rows["dropout 0.2"].ratio_to_layer == 1  # the same batches
    assert rows["dropout 0.3"].ratio_to_layer != 1
