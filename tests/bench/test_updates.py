"""Training updates: per real token, on batches of each setting; the penalty; memory."""

import json

import numpy as np
import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.models.transformer import TransformerModel
from fairseq.tasks.translation import TranslationTask

from command import rbn
from rbn_fairseq.bench import updates
from rbn_fairseq.bench.named_settings import read_settings
from rbn_fairseq.bench.training import product_dtype, set_up, training_dtype
from rbn_fairseq.bench.updates import penalty_row, time_updates
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


@pytest.fixture
def trained(monkeypatch):
    """What is trained from now on: trainers and their batches, turn by turn."""
    turns, train = [], updates.train

    def remember(trainer, batches):
        turns.append((trainer, batches))
        train(trainer, batches)

    monkeypatch.setattr(updates, "train", remember)
    return turns


def count(batches):
    """Count real tokens, source and target, another way."""
    return sum(
        int(tokens.ne(1).sum())  # fairseq's padding
        for batch in batches
        for tokens in (batch["net_input"]["src_tokens"], batch["target"])
    )


def test_settings_really_train(data_bin, monkeypatch, trained):
    # 4,000 GFLOP for two updates.
    monkeypatch.setattr(updates, "count_flops", lambda action: (action(), 4e12)[1])
    # The first update of all is none whose memory is measured: it may cost more.
    peak = updates.peak_bytes
    monkeypatch.setattr(
        updates,
        "peak_bytes",
        lambda action, device: (before.append(len(trained)), peak(action, device))[1],
    )
    before = []
    given = ("--setting", "layer", "--setting", "rbn")
    result = rbn(
        "bench", "train", data_bin, *given, "--rounds", 1, "--updates", 2, "--json", "-", "--",
        *COMMON,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)
    assert before == [1, 2]  # behind the count of the floor's products

    (_, counted), (layer, large), (penalised, same_large), *turns = trained
    # Settings with the same options of batches: the same batches, others in each round.
    batches = [[batch["id"].tolist() for batch in turn] for _, turn in turns]
    assert len(turns) == 2 * 2 and batches[0] == batches[1] != batches[2] == batches[3]
    assert [batch["id"].tolist() for batch in counted] == batches[0]
    assert [len(large), len(same_large)] == [4, 4]
    timed = {id(trainer): trainer for trainer, _ in turns}.values()
    assert [trainer.get_num_updates() for trainer in timed] == [4] * 2
    first = "encoder.layers.0.self_attn_layer_norm.population.running_mean"
    states = (trainer.model.state_dict() for trainer in timed)
    layer_state, rbn_state = sorted(states, key=lambda state: first in state)
    assert any(not torch.equal(value, rbn_state[name]) for name, value in layer_state.items())
    assert rbn_state[first].abs().max() > 0 and first not in layer_state

    time = {row["norm"]: row for row in rows if row["bench"] == "train"}
    assert list(time) == ["layer", "rbn", "floor"] and time["layer"]["ratio_to_layer"] == 1
    assert {row["case"] for row in rows} == {"rbn_transformer_tiny/1000"}
    share = count(turns[2][1]) / count(counted)  # of tokens; operations are counted once
    floor = f"{2000 * share:,.0f} GFLOP of matrix products"
    assert {row.get("floor") for row in rows} == {floor, None}
    assert "MiB" in result.stderr and "us/token" in result.stderr
    memory = {row["norm"]: row["bytes"] for row in rows if row["bench"] == "memory"}
    assert list(memory) == ["layer", "rbn"]
    # Weights, their gradients and two moments of Adam, at least.
    assert memory["layer"] > 4 * sum(4 * weight.numel() for weight in layer.model.parameters())


def test_times_are_those_of_a_real_token(data_bin, monkeypatch, trained):
    """Where every turn takes as long, setting and round decide by their tokens alone."""
    monkeypatch.setattr(updates, "milliseconds", lambda action, device: (action(), 60.0)[1])
    monkeypatch.setattr(updates, "peak_bytes", lambda action, device: 1)
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


def test_fairseqs_own_training_is_a_setting(data_bin, monkeypatch, trained):
    monkeypatch.setattr(updates, "peak_bytes", lambda action, device: (action(), 1)[1])
    settings = read_settings(["fairseq", "layer"], COMMON)
    rows = time_updates(str(data_bin), settings, COMMON, rounds=1, updates=1)
    assert [row.norm for row in rows if row.bench == "train"] == ["fairseq", "layer", "floor"]
    assert [row.norm for row in rows if row.bench == "memory"] == ["fairseq", "layer"]
    trainers = {id(trainer): trainer for trainer, _ in trained}.values()
    kinds = [
        (type(trainer.model), type(trainer.criterion), type(trainer.task)) for trainer in trainers
    ]
    own = (TransformerModel, LabelSmoothedCrossEntropyCriterion, TranslationTask)
    assert kinds.count(own) == 3  # for the floor, for memory, for time
    assert len(kinds) == 5 and all(kind == own or not set(kind) & set(own) for kind in kinds)
