"""Train, stop, resume equals training without a stop, bit for bit (invariant 4)."""

import pytest
from fairseq.logging import metrics

import runs
from rbn_fairseq.checkpoints.files import epoch_checkpoints
from saved import assert_same_state


@pytest.fixture(scope="module")
def whole(data_bin, tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    runs.train(data_bin, directory, *runs.RBN, "--max-epoch", 3)
    return directory


# In the middle of epoch 2 (20 updates an epoch), and between epochs, where fairseq alone would
# go on with other batches.
@pytest.mark.parametrize("stop", [("--max-update", 27), ("--max-epoch", 2)])
def test_resume(data_bin, tmp_path, whole, stop):
    runs.train(data_bin, tmp_path, *runs.RBN, *stop)
    runs.train(data_bin, tmp_path, *runs.RBN, "--max-epoch", 3)
    assert_same_state(tmp_path, whole)
    assert runs.tid_rows(tmp_path) == runs.tid_rows(whole)
    assert metrics.get_meter("default", "wall").elapsed_time > 0  # of the log, which reports add up


@pytest.mark.parametrize(
    "option, value, frequency, parts",
    [("--length-mixing", 3, 2, 1), ("--length-mixing", "random", 1, 2), ("--curriculum", 1, 1, 1)],
)
def test_resume_with_other_batches(data_bin, tmp_path, option, value, frequency, parts):
    mixing = (
        *("--norm-encoder", "batch", option, value, "--no-tid"),
        *("--train-subset", "valid", "--max-tokens", 80),  # 7 batches an epoch
        *("--disable-validation", "--update-freq", frequency),
    )
    data = ":".join([str(data_bin)] * parts)
    runs.train(data, tmp_path / "whole", *mixing, "--max-epoch", 2)
    for end in (("--max-update", 10 // frequency), ("--max-epoch", 2)):
        runs.train(data, tmp_path / "stopped", *mixing, *end)
    assert_same_state(tmp_path / "stopped", tmp_path / "whole")


def test_patience_is_counted_on(data_bin, tmp_path):
    # The loss falls, so that only the first epoch is a best one if the largest is wanted.
    options = (
        *("--patience", 2, "--maximize-best-checkpoint-metric", "--no-tid"),
        *("--train-subset", "valid", "--valid-subset", "test"),
    )
    runs.train(data_bin, tmp_path, *options, "--max-epoch", 2)
    log = runs.train(data_bin, tmp_path, *options, "--max-epoch", 5)
    assert "hasn't improved for last 2 runs" in log
    assert max(epoch_checkpoints(tmp_path)) == 3
    runs.train(data_bin, tmp_path, *options, "--max-epoch", 5, "--reset-meters")
    assert max(epoch_checkpoints(tmp_path)) == 5  # the best is forgotten


def test_training_is_the_same_without_the_monitor(data_bin, tmp_path, whole):
    runs.train(data_bin, tmp_path, *runs.RBN, "--max-epoch", 3, "--no-tid")
    assert_same_state(tmp_path, whole)
    assert not (tmp_path / "tid.jsonl").exists()
