"""The TID monitor: what it writes, when, on which batches, and what it refuses."""

import json
import re
import shutil
from types import SimpleNamespace
from unittest import mock

import pytest
from fairseq.data.iterators import EpochBatchIterator
from fairseq.logging import progress_bar
from fairseq.tasks.translation import TranslationTask
from torch.utils.data import Dataset

import runs
from command import completed
from rbn_fairseq.callbacks.tid_monitor import TIDMonitor
from rbn_fairseq.measuring.batches import draw_batches
from rbn_fairseq.report.runs import read_run
from trainings import training

BATCH = ("--norm-encoder", "batch")


def test_one_record_a_layer_and_epoch(rbn_run):
    rows = runs.tid_rows(rbn_run)
    places = [f"{n}.{site}" for n in (0, 1) for site in ("self_attn", "final")]
    keys = [(row["epoch"], row["layer"]) for row in rows]
    assert len(keys) == len(set(keys)) == 4 * len(places)
    assert sorted({row["epoch"] for row in rows}) == [0, 1, 2, 3]
    updates = {row["epoch"]: row["update"] for row in rows}
    assert updates[0] == 0 and updates[1] > 0
    assert [updates[epoch] for epoch in (2, 3)] == [2 * updates[1], 3 * updates[1]]


@pytest.mark.parametrize(("number", "measured"), [(0, 50), (40, 10), (1, 1)])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])  # not with --curriculum
def test_processes_measure_on_batches_put_together_as_in_training(
    grouped, shuffle, number, measured, monkeypatch
):
    options = {"tid_seed": 1, "tid_batches": number, "no_tid": False, "tid_dropout": False}
    monitor, parts = TIDMonitor(training(options)), []
    monitor.training.task = SimpleNamespace(adapter=SimpleNamespace(run_norms=None))
    iterator = EpochBatchIterator(
        Dataset(), None, [[place] for place in range(202)], grouped_shuffling=grouped, num_shards=4
    )
    iterator.shuffle, monitor.training.batches = shuffle, iterator
    for name, value in {
        "has_batch_norm": lambda model: True,
        "batch_norms": lambda model: {},
        "world_size": lambda sync: 4,
        "collate": lambda dataset, batches, model: parts.append(batches),
        "collect_moments": lambda *arguments: {},
    }.items():
        monkeypatch.setattr(f"rbn_fairseq.callbacks.tid_monitor.{name}", value)
    trained = []
    for rank in range(4):
        monkeypatch.setattr(
            "rbn_fairseq.callbacks.tid_monitor.process_rank", lambda rank=rank: rank
        )
        monitor.on_epoch_end(1, None)
        iterator.shard_id = rank
        trained.append(iterator.ordered_batches(1, False, shuffle))
    joint = [[place for (place,) in group] for group in zip(*parts, strict=True)]
    trained = [[place for (place,) in group] for group in zip(*trained, strict=True) if all(group)]
    assert len(joint) == measured == len({*sum(joint, [])}) / 4
    if grouped or not shuffle:
        assert all(group in trained for group in joint)
    elif number != 1:  # Batches are sorted by length. Four of 202 places are 122 apart on average.
        assert sum(max(group) - min(group) for group in joint) / len(joint) > 75


def test_rbn_tid_finds_the_same(rbn_run, tmp_path):
    output = tmp_path / "tid.jsonl"
    completed("tid", rbn_run, "--json", output)
    found = [json.loads(line) for line in output.read_text().splitlines()]
    logged = [row for row in runs.tid_rows(rbn_run) if row["epoch"] > 0]
    assert len(found) == len(logged) > 0
    for one, other in zip(found, logged, strict=True):
        more = {"independent_mean_tid", "independent_var_tid", "checkpoint"}
        assert one.keys() - other.keys() == more
        for name, expected in other.items():
            value = one[name]
            if isinstance(value, float):
                expected = pytest.approx(expected, rel=1e-6)
            assert value == expected, name


def test_sample_is_uniform_seeded_and_in_order():
    batches = [[index] for index in range(20)]
    assert draw_batches(batches, 0, 1) == draw_batches(batches, 20, 1) == batches
    one = draw_batches(batches, 5, 1)
    assert one == draw_batches(batches, 5, 1) == sorted(one)
    assert len({batch[0] for batch in one}) == 5
    assert one != draw_batches(batches, 5, 2)
    draws = [batch[0] for seed in range(400) for batch in draw_batches(batches, 5, seed)]
    # 100 expected each, standard deviation 8.7: five of them.
    assert all(abs(draws.count(index) - 100) < 45 for index in range(20))


def test_weights_and_biases_get_it_from_fairseq(data_bin, tmp_path, monkeypatch):
    logged = {}
    service = SimpleNamespace(
        init=lambda **options: None, config={}, log=lambda values, step: logged.update(values)
    )
    monkeypatch.setattr(progress_bar, "wandb", service)
    log = runs.train(
        data_bin, tmp_path, *BATCH, "--wandb-project", "p", "--tid-batches", 4,
        "--max-epoch", 1, "--no-save",
    )  # fmt: skip
    rows = [row for row in runs.tid_rows(tmp_path) if row["epoch"] == 1]
    assert logged["train/tid_mean_last"] == pytest.approx(rows[-1]["mean_tid"], abs=1e-5)
    average = sum(row["var_tid"] for row in rows) / len(rows)
    assert logged["train/tid_var_average"] == pytest.approx(average, abs=1e-5)
    given_length = [row["mean_conditional_tid"] for row in rows]
    average = sum(given_length) / len(rows)
    assert logged["train/conditional_tid_mean_average"] == pytest.approx(average, abs=1e-5)
    last = rows[-1]["var_conditional_tid"]
    assert logged["train/conditional_tid_var_last"] == pytest.approx(last, abs=1e-5)
    (line,) = re.findall(r"TID given the length \| epoch 1 \|.*", log)
    assert f"last layer: mean {100 * given_length[-1]:.2f} %, variance {100 * last:.2f} %" in line
    assert f"average of {len(rows)} layers: mean {100 * average:.2f} %" in line


@pytest.mark.parametrize("options", [("--disable-validation",), ("--tid-batches", -1)])
def test_refused(data_bin, tmp_path, options):
    with pytest.raises(ValueError, match=options[0]):
        runs.train(data_bin, tmp_path, *BATCH, *options, "--max-update", 1)


@pytest.mark.parametrize("options", [(*BATCH, "--no-tid"), ()], ids=["no-tid", "layer norms"])
def test_disabled_validation_without_the_monitor(data_bin, tmp_path, options):
    runs.train(data_bin, tmp_path, *options, "--disable-validation", "--max-update", 1)
    assert not (tmp_path / "tid.jsonl").exists()


def test_epochs_without_validation_have_no_tid_and_are_named_once(data_bin, tmp_path):
    log = runs.train(
        data_bin, tmp_path, *BATCH, "--validate-interval", 2, "--validate-after-updates", 40,
        "--max-epoch", 5, "--tid-batches", 2, "--no-save",
    )  # fmt: skip
    # 15 updates an epoch: the second ends before update 40, the fourth at 60.
    assert {row["epoch"] for row in runs.tid_rows(tmp_path)} == {0, 4}
    assert log.count("so not at epochs that 2 does not divide (--validate-interval)") == 1
    assert "nor at epochs that end before update 40 (--validate-after-updates)" in log


def test_within_an_epoch_only_the_end_of_the_training_adds_a_record(data_bin, tmp_path):
    log = runs.train(
        data_bin, tmp_path, *BATCH, "--validate-interval-updates", 5, "--max-update", 12,
        "--tid-batches", 3, "--no-epoch-checkpoints",
    )  # fmt: skip
    assert "TID is measured where" not in log  # nothing to warn of
    # After 5, 10 and 12 updates, of 15 an epoch.
    assert log.count("begin validation on") == 3
    measured = {(row["epoch"], row["update"]) for row in runs.tid_rows(tmp_path)}
    assert measured == {(0, 0), (1, 12)}
    log = runs.train(data_bin, tmp_path, *BATCH, "--max-epoch", 1, "--tid-batches", 3)
    assert {row["update"] for row in runs.tid_rows(tmp_path)} == {0, 15}
    logged = re.findall(r"tid_mean_last ([0-9.]+)", log.replace("conditional_tid", ""))
    assert float(logged[-1]) == pytest.approx(runs.tid_rows(tmp_path)[-1]["mean_tid"], abs=1e-5)


@pytest.mark.parametrize("option", ["--reset-dataloader", "--reset-optimizer"])
def test_a_trained_model_is_not_that_before_training(data_bin, rbn_run, tmp_path, option):
    shutil.copy(rbn_run / "tid.jsonl", tmp_path)
    before = (rbn_run / "tid.jsonl").read_text()
    updates = {row["epoch"]: row["update"] for row in runs.tid_rows(rbn_run)}
    more = {"--reset-dataloader": updates[3] + 2, "--reset-optimizer": 2}[option]
    for _ in range(2):  # the second as after an interruption before the first's save
        shutil.copy(rbn_run / "checkpoint_last.pt", tmp_path)
        log = runs.train(
            data_bin, tmp_path, *runs.RBN, "--max-update", more, "--tid-batches", 2, option
        )
    earlier = "".join(
        f"2026 | INFO | {kind} | epoch 00{epoch} | loss 9 | nll_loss 9 | num_updates {update}\n"
        for epoch, update in updates.items() for kind in ("train", "valid") if epoch
    )  # fmt: skip
    (tmp_path / "train.log").write_text(earlier + log)
    run = read_run("x", tmp_path)  # of what the log has, none from before the reset
    assert list(run.valid["update"]) == list(run.train["update"]) == [more]
    assert any("before a reset" in problem for problem in run.problems)
    after = {(row["epoch"], row["update"]) for row in runs.tid_rows(tmp_path)}
    assert after == {(1 if option == "--reset-dataloader" else 4, more)}
    kept = tmp_path / f"tid-before-reset-1-at-{updates[3]}.jsonl"
    assert kept.read_text() == before


def test_without_an_update_after_a_resume(data_bin, rbn_run, tmp_path):
    """An epoch whose batches are all too big for the memory: updates as the checkpoint has them."""
    shutil.copy(rbn_run / "checkpoint2.pt", tmp_path / "checkpoint_last.pt")
    memory = RuntimeError("out of memory")
    with mock.patch.object(TranslationTask, "train_step", side_effect=memory):
        runs.train(data_bin, tmp_path, *runs.RBN, "--max-epoch", 3, "--tid-batches", 2)
    made = {row["update"] for row in runs.tid_rows(rbn_run) if row["epoch"] == 2}
    assert {row["update"] for row in runs.tid_rows(tmp_path) if row["epoch"] == 3} == made
