"""Training updates: the same batches for every setting; what the penalty takes; memory."""

import json

import pytest
import torch

from command import rbn
from rbn_fairseq.bench import updates
from rbn_fairseq.bench.training import check_batches, product_dtype, set_up, training_dtype
from rbn_fairseq.bench.updates import SETTINGS, penalty_row
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
    # 4 GFLOP for two updates.
    monkeypatch.setattr(updates, "count_flops", lambda action: (action(), 4e9)[1])
    # The first update of all is none whose memory is measured: it may cost more.
    peak = updates.peak_bytes
    monkeypatch.setattr(
        updates,
        "peak_bytes",
        lambda action, device: (before.append(len(trained)), peak(action, device))[1],
    )
    before = []
    settings = {"layer": "", "rbn": SETTINGS["rbn"]}
    given = [word for name in settings for word in ("--setting", f"{name}: {settings[name]}")]
    result = rbn(
        "bench", "train", data_bin, *given, "--rounds", 1, "--updates", 2, "--json", "-", "--",
        *COMMON,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)
    # Those that were timed are made first.
    timed = [made[(*COMMON, *own.split())][0] for own in settings.values()]
    assert [trainer.get_num_updates() for trainer in timed] == [4] * 2
    layer, penalised = (trainer.model.state_dict() for trainer in timed)
    assert any(not torch.equal(value, penalised[name]) for name, value in layer.items())
    # The very same batches: to count the floor's products, for memory, and in both rounds.
    assert before == [1, 2]
    assert len(trained) == 2 + 1 + 2 * 2 and len({id(batches) for batches in trained}) == 1
    first = "encoder.layers.0.self_attn_layer_norm.population.running_mean"
    assert penalised[first].abs().max() > 0 and first not in layer

    time = {row["norm"]: row for row in rows if row["bench"] == "train"}
    assert list(time) == [*settings, "floor"] and time["layer"]["ratio_to_layer"] == 1
    assert {row["case"] for row in rows} == {"rbn_transformer_tiny/1000"}
    assert {row.get("floor") for row in rows} == {"2 GFLOP of matrix products", None}
    assert "2 GFLOP" in result.stderr and "MiB" in result.stderr
    memory = {row["norm"]: row["bytes"] for row in rows if row["bench"] == "memory"}
    assert list(memory) == list(settings)
    # Weights, their gradients and two moments of Adam, at least.
    assert memory["layer"] > 4 * sum(4 * weight.numel() for weight in timed[0].model.parameters())


def test_settings_have_one_precision(data_bin):
    options = [*TINY, "--optimizer", "adam", "--max-tokens", "600"]
    configs = {
        name: set_up(str(data_bin), [*options, *own], "cpu")[0]
        for name, own in (("plain", []), ("half", ["--fp16"]))
    }
    with pytest.raises(ValueError, match="`half`: .* precision"):
        check_batches(configs)
    check_batches({"a": configs["half"], "b": configs["half"]})
