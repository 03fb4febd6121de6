"""Schedules of norms that end after the training."""

import re
import shutil

import pytest

import runs


def longer(log):
    return re.findall(r"(--norm\S+) (\d+) is longer than this training, which has (\d+) upd", log)


def test_schedules_longer_than_the_training_are_told(data_bin, tmp_path):
    options = ("--norm-encoder", "power", "--norm-power-warmup", 1000, "--no-tid")
    log = runs.train(data_bin, tmp_path, *options, "--max-epoch", 2, "--update-freq", "3,2")
    trained = re.findall(r"valid on .*num_updates (\d+)", log)[-1]
    assert longer(log) == [("--norm-power-warmup", "1000", trained)]


def test_schedules_that_end_in_time_are_not(data_bin, tmp_path):
    options = ("--norm-renorm-start", 1, "--norm-renorm-r-end", 2, "--norm-renorm-d-end", 3)
    log = runs.train(
        data_bin, tmp_path, "--norm-encoder", "renorm", *options, "--max-update", 2,
        "--max-epoch", 9, "--no-tid",
    )  # fmt: skip
    assert longer(log) == [("--norm-renorm-d-end", "3", "2")]


def test_a_schedule_that_evaluation_waits_for_is_refused_beyond_the_training(data_bin, tmp_path):
    options = ("--norm-encoder", "repbn", "--no-tid", "--max-update", 2, "--norm-repbn-layer-end")
    with pytest.raises(ValueError) as error:
        runs.train(data_bin, tmp_path / "long", *options, 3)
    for words in ("--norm-repbn-layer-end 3", "which has 2 updates", "`repbn`", "2 or less"):
        assert words in str(error.value)
    assert not list(tmp_path.glob("long/*.pt"))
    assert not longer(runs.train(data_bin, tmp_path / "enough", *options, 2))


@pytest.mark.parametrize("reset, updates", [("optimizer", 15), ("dataloader", 30)])
def test_a_schedule_counts_the_updates_behind_a_reset(data_bin, tmp_path, reset, updates):
    """Of two epochs of 15 updates, the second after a reset of updates, or of epochs."""
    options = ("--norm-encoder", "repbn", "--no-tid", "--norm-repbn-layer-end")
    runs.train(data_bin, tmp_path, *options, 15, "--max-epoch", 1)
    again = (f"--reset-{reset}", "--max-epoch", 2 if reset == "optimizer" else 1)
    with pytest.raises(ValueError, match=f"which has {updates} updates"):
        runs.train(data_bin, tmp_path, *options, updates + 1, *again)
    assert not longer(runs.train(data_bin, tmp_path, *options, updates, *again))


def test_a_schedule_counts_updates_of_other_sizes_behind_a_resume(data_bin, tmp_path):
    options = ("--norm-encoder", "repbn", "--no-tid", "--norm-repbn-layer-end")
    runs.train(data_bin, tmp_path, *options, 15, "--max-epoch", 1)
    again = ("--max-epoch", 2, "--update-freq", 5)
    with pytest.raises(ValueError, match="which has 18 updates"):
        runs.train(data_bin, tmp_path, *options, 19, *again)
    assert "num_updates 18" in runs.train(data_bin, tmp_path, *options, 18, *again)
    tuned = ("--finetune-from-model", tmp_path / "checkpoint_last.pt", "--max-epoch", 1)
    with pytest.raises(ValueError, match="which has 15 updates"):
        runs.train(data_bin, tmp_path / "tuned", *options, 16, *tuned)


def test_a_schedule_counts_no_update_that_is_skipped(data_bin, tmp_path):
    options = ("--norm-encoder", "repbn", "--no-tid", "--max-epoch", 2, "--update-freq", 4)
    options += ("--skip-remainder-batch", "--norm-repbn-layer-end")
    with pytest.raises(ValueError, match="which has 6 updates"):
        runs.train(data_bin, tmp_path, *options, 7)
    log = runs.train(data_bin, tmp_path, *options, 6)
    assert re.findall(r"num_updates (\d+)", log)[-1] == "6"


def test_a_schedule_is_not_judged_where_updates_are_not_known(data_bin, tmp_path):
    """Of batches within an epoch that make no whole updates, fairseq may repeat the epoch."""
    options = ("--norm-encoder", "repbn", "--no-tid", "--norm-repbn-layer-end", 30)
    runs.train(data_bin, tmp_path, *options, "--max-epoch", 2, "--save-interval-updates", 4)
    start = ("--restore-file", tmp_path / "checkpoint_1_4.pt", "--max-epoch", 1)
    with pytest.raises(ValueError, match="which has 10 updates"):  # 4, and the other 11 in pairs
        runs.train(data_bin, tmp_path / "pairs", *options, *start, "--update-freq", 2)
    log = runs.train(data_bin, tmp_path / "again", *options, *start, "--update-freq", 3)
    assert not longer(log)


def test_a_schedule_with_data_in_several_parts_is_told(data_bin, tmp_path):
    """Another part may make more updates."""
    data = f"{data_bin}:{shutil.copytree(data_bin, tmp_path / 'other')}"
    options = ("--norm-encoder", "repbn", "--no-tid", "--update-freq", 8, "--max-epoch", 2)
    log = runs.train(data, tmp_path / "save", *options, "--norm-repbn-layer-end", 5)
    assert "--norm-repbn-layer-end 5 is longer than this training, which has about 4 upd" in log
