"""Training updates: the same batches for every setting; what the penalty takes; memory."""

import json

import pytest
import torch

from command import rbn
from rbn_fairseq.bench import updates
from rbn_fairseq.bench.updates import SETTINGS, penalty_row, time_updates
from runs import TINY

COMMON = [
    *TINY, "--optimizer", "adam", "--max-tokens", "1000",
    "--criterion", "label_smoothed_cross_entropy_rbn",
]  # fmt: skip
SAME = {"bench": "train", "device": "cpu", "threads": 1, "dtype": "float32", "case": "made up"}


def test_the_penalty_is_what_rbn_takes_longer_than_batch():
    rounds = [
        {"layer": 9.0, "batch": 10.0, "rbn": 12.0},
        {"layer": 9.0, "batch": 20.0, "rbn": 30.0},
        {"layer": 9.0, "batch": 40.0, "rbn": 44.0},
    ]
    row = penalty_row(rounds, **SAME)
    assert (row.bench, row.ms, row.n) == ("penalty", 4.0, 3)
    # 0.2, 0.5, 0.1
    assert row.share == pytest.approx(0.2) and row.spread == pytest.approx((0.15, 0.35))
    assert penalty_row([{"layer": 1.0, "rbn": 2.0}], **SAME) is None


def test_settings_really_train(data_bin, monkeypatch):
    made, build = {}, updates.make_trainer

    def remember(data, arguments, device):
        trainer = build(data, arguments, device)
        made.setdefault(tuple(arguments), []).append(trainer)
        return trainer

    monkeypatch.setattr(updates, "make_trainer", remember)
    trained, train = [], updates.train
    monkeypatch.setattr(
        updates,
        "train",
        lambda trainer, batches: (trained.append(batches), train(trainer, batches)),
    )
    settings = {"layer": "", "rbn": SETTINGS["rbn"]}
    given = [word for name in settings for word in ("--setting", f"{name}: {settings[name]}")]
    result = rbn(
        "bench", "train", data_bin, *given, "--rounds", 1, "--updates", 1, "--json", "-", "--",
        *COMMON,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)
    # Those that were timed are made first.
    timed = [made[(*COMMON, *own.split())][0] for own in settings.values()]
    assert [trainer.get_num_updates() for trainer in timed] == [2] * 2
    layer, penalised = (trainer.model.state_dict() for trainer in timed)
    assert any(not torch.equal(value, penalised[name]) for name, value in layer.items())
    # The very same batches: for memory, to count the floor's products, and in both rounds.
    assert len(trained) == 2 + 1 + 2 * 2 and len({id(batches) for batches in trained}) == 1
    first = "encoder.layers.0.self_attn_layer_norm.population.running_mean"
    assert penalised[first].abs().max() > 0 and first not in layer

    time = {row["norm"]: row for row in rows if row["bench"] == "train"}
    assert list(time) == [*settings, "floor"] and time["layer"]["ratio_to_layer"] == 1
    assert {row["case"] for row in rows} == {"rbn_transformer_tiny/1000"}
    assert "GFLOP" in result.stderr and "MiB" in result.stderr
    memory = {row["norm"]: row["bytes"] for row in rows if row["bench"] == "memory"}
    assert list(memory) == list(settings)
    # Weights, their gradients and two moments of Adam, at least.
    assert memory["layer"] > 4 * sum(4 * weight.numel() for weight in timed[0].model.parameters())


def test_the_floor_counts_the_products_of_an_update(data_bin, monkeypatch):
    # A product takes a second: an update's floor is then its operations over the product's.
    monkeypatch.setattr("rbn_fairseq.bench.machine.milliseconds", lambda action, device: 1e3)
    rows = time_updates(str(data_bin), {"layer": ()}, COMMON, rounds=1, updates=1)
    floor = next(row for row in rows if row.norm == "floor")
    trainer = updates.make_trainer(str(data_bin), COMMON, "cpu")
    (batch,) = updates.draw(trainer, 1)
    inputs = batch["net_input"]
    source, target = inputs["src_tokens"].numel(), inputs["prev_output_tokens"].numel()
    size, length = inputs["src_tokens"].shape
    out = inputs["prev_output_tokens"].shape[1]
    width, hidden, layers = 64, 128, 2
    square, feed_forward = width * width, 2 * width * hidden
    linear = target * width * len(trainer.task.target_dictionary) + layers * (
        source * (4 * square + feed_forward)  # the encoder's
        + target * (4 * square + 2 * square + feed_forward) + source * 2 * square  # the decoder's
    )  # fmt: skip
    own, across = (layers * size * width * pairs for pairs in (length**2 + out**2, out * length))
    # The backward takes two products for each, and computes self-attention's scores again.
    products = 3 * (linear + 2 * across) + (2 + 5) * own
    assert floor.ms == pytest.approx(1e3 * 2 * products / (2 * 1024**3), rel=1e-6)
