"""The conditioning monitor: which lines a training leaves, and that it leaves no other trace."""

import math
import re
from types import SimpleNamespace

import pytest
import torch

import runs
from rbn_fairseq.callbacks.conditioning_monitor import ConditioningMonitor, parse_layers
from rbn_fairseq.diagnostics.conditioning import conditioning
from rbn_fairseq.measuring.records import read_records
from saved import assert_same_weights, last, load
from trainings import training

FAST = ("--no-tid", "--disable-validation")
EVERY_FIVE = ("--conditioning-interval", 5, *FAST)
RBN = ("--norm-encoder", "batch", "--rbn-mean-weight", 0.1)
PRE = ("--encoder-normalize-before", "--decoder-normalize-before")
KEYS = "epoch update layer place tokens channels c_50 c_80 c_max".split()


def rows(save_dir):
    return read_records(save_dir / "conditioning.jsonl")


UPDATES = (0, 5, 10, 15)


@pytest.fixture(scope="module")
def whole(data_bin, tmp_path_factory):
    """17 updates of a Pre-Norm RBN model of two layers, into its second epoch."""
    directory = tmp_path_factory.mktemp("whole")
    log = runs.train(data_bin, directory, *RBN, *PRE, *EVERY_FIVE, "--max-update", 17)
    (directory / "train.log").write_text(log)
    return directory


def test_lines_of_a_run(whole):
    found = rows(whole)
    assert [(row["update"], row["layer"], row["place"]) for row in found] == [
        (update, layer, place)
        for update in UPDATES
        for layer in (1, 2)
        for place in ("stream", "normalised")
    ]
    log = (whole / "train.log").read_text()
    first_epoch = int(re.search(r"end of epoch 1 .*?num_updates (\d+)", log, re.DOTALL)[1])
    assert 10 < first_epoch < 17
    for row in found:
        assert list(row) == KEYS
        assert row["epoch"] == (1 if row["update"] < first_epoch else 2)
        assert row["channels"] == 64 < row["tokens"] <= 1000  # of --max-tokens
        assert 1 < row["c_50"] < row["c_80"] < math.inf
        if row["update"] == 0 and row["place"] == "normalised":
            # A batch norm's squares have mean 1 in each of 64 channels, before it has learnt.
            assert 0.999 * row["tokens"] < row["c_max"] ** 2 < 64.001 * row["tokens"]
    for update in UPDATES:
        assert len({row["tokens"] for row in found if row["update"] == update}) == 1


def test_post_norm_has_one_place_and_layer_norms_will_do(data_bin, tmp_path):
    runs.train(
        data_bin, tmp_path, *EVERY_FIVE, "--max-update", 6, "--conditioning-layers", "2",
        "--update-freq", 2,
    )  # fmt: skip
    found = [(row["update"], row["layer"], row["place"]) for row in rows(tmp_path)]
    assert found == [(0, 2, "stream"), (5, 2, "stream")]


def test_training_is_the_same_without(data_bin, tmp_path, whole):
    off = (*RBN, *PRE, "--conditioning-interval", 0, *FAST)
    runs.train(data_bin, tmp_path, *off, "--max-update", 17)
    assert_same_weights(last(tmp_path)["model"], last(whole)["model"])
    assert not (tmp_path / "conditioning.jsonl").exists()


# In the middle of an epoch, and between two, where a measurement is due right after.
@pytest.mark.parametrize("stop", [("--max-update", 8), ("--max-epoch", 1)])
def test_resumed_run_has_the_same_lines(data_bin, tmp_path, whole, stop):
    options = (*RBN, *PRE, *EVERY_FIVE)
    runs.train(data_bin, tmp_path, *options, *stop)
    # As if it had gone on after its last checkpoint, and been killed.
    (tmp_path / "conditioning.jsonl").write_text((whole / "conditioning.jsonl").read_text())
    runs.train(data_bin, tmp_path, *options, "--max-update", 17)
    assert rows(tmp_path) == rows(whole)
    assert_same_weights(last(tmp_path)["model"], last(whole)["model"])


def test_the_first_forward_of_an_update_is_measured(rbn_run, data_bin, tmp_path):
    model, cfg, task = load(rbn_run / "checkpoint_last.pt", data_bin)
    cfg.checkpoint.save_dir = str(tmp_path)
    task.training.options.conditioning_interval = 2
    monitor = task._running["ConditioningMonitor"]
    monitor._stack, monitor._layers = model.encoder.layers, [2]
    monitor.training.batches = SimpleNamespace(epoch=3)
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    first, second = (
        dataset.collater([dataset[index] for index in part]) for part in (range(8), range(8, 30))
    )
    criterion = task.build_criterion(cfg.criterion)
    optimizer = SimpleNamespace(backward=lambda loss: loss.backward())

    def step(sample, update, **options):
        task.train_step(sample, model, criterion, optimizer, update, **options)

    def tokens(sample):
        return int(sample["net_input"]["src_tokens"].ne(task.source_dictionary.pad()).sum())

    assert tokens(first) != tokens(second)
    step(first, 3)  # no multiple of the interval
    step(first, 4, ignore_grad=True)  # a dummy batch
    assert not rows(tmp_path)
    for sample in (first, second, second):  # of one update, the last as after an overflow
        step(sample, 4)
    assert [(row["update"], row["epoch"], row["tokens"]) for row in rows(tmp_path)] == [
        (4, 3, tokens(first))
    ]

    # What it writes is the conditioning of what enters the layer.
    caught = []
    hook = model.encoder.layers[1].register_forward_pre_hook(lambda _, args: caught.append(args[0]))
    step(second, 6)
    hook.remove()
    expected = conditioning(caught[0])
    row = rows(tmp_path)[-1]
    assert row["update"] == 6 and row["tokens"] == tokens(second) == len(caught[0])
    assert (row["c_max"], row["c_50"], row["c_80"]) == (
        pytest.approx(expected.c_max), pytest.approx(expected.c_p[50]),
        pytest.approx(expected.c_p[80]),
    )  # fmt: skip


@pytest.mark.parametrize(
    "text, depth, layers",
    [(None, 0, []), (None, 1, [1]), (None, 2, [1, 2]), (None, 5, [2, 4, 5]),
     (None, 12, [4, 8, 12]), ("6:2:2", 6, [2, 6])],
)  # fmt: skip
def test_layers(text, depth, layers):
    assert parse_layers(text, depth) == layers


@pytest.mark.parametrize("text", ["", "2,4", "2::4", "two", "-1", "²"])
def test_bad_syntax(text):
    with pytest.raises(ValueError, match="--conditioning-layers.*2:4:6") as error:
        parse_layers(text, 6)
    assert f"`{text}`" in str(error.value)


# 7446: what YAML makes of 2:4:6 without quotes.
@pytest.mark.parametrize("layer", [0, 7, 7446])
def test_layers_that_are_not_there(layer):
    with pytest.raises(ValueError, match=f"--conditioning-layers.*1 and 6.*{layer}"):
        parse_layers(f"2:{layer}", 6)


def test_options_are_checked_before_training(data_bin, tmp_path):
    for options, message in (
        (("--conditioning-interval", -1), "--conditioning-interval must be >= 0.*, but is -1"),
        (("--conditioning-layers", "1:3"), "--conditioning-layers .*between 1 and 2"),
    ):
        with pytest.raises(ValueError, match=message):
            runs.train(data_bin, tmp_path, *options, "--max-update", 1)
    assert not list(tmp_path.iterdir())


def test_eigenvalues_that_do_not_converge_end_no_training(tmp_path, monkeypatch, caplog):
    def fail(x):
        raise torch.linalg.LinAlgError("failed to converge")

    monkeypatch.setattr("rbn_fairseq.callbacks.conditioning_monitor.conditioning", fail)
    monitor = ConditioningMonitor(training(checkpoint={"save_dir": str(tmp_path)}))
    monitor.training.batches = SimpleNamespace(epoch=1)
    with caplog.at_level("WARNING", logger="rbn_fairseq.callbacks.conditioning_monitor"):
        monitor._write(500, {(2, "stream"): torch.ones(3, 4)})
    (row,) = rows(tmp_path)
    assert all(math.isnan(row[key]) for key in ("c_50", "c_80", "c_max"))
    assert "layer 2, update 500: failed to converge" in caplog.text
