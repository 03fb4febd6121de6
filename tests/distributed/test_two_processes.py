"""fairseq-train itself on two processes: it stops, resumes and ends as without a stop."""

import pytest
import torch

import runs
from processes import launch
from rbn_fairseq.checkpoints.files import read_checkpoint


@pytest.mark.parametrize(
    "setting",
    [
        ("--norm-sync",),
        pytest.param(("--norm-batch-length-bins", 3), marks=pytest.mark.nightly),
        pytest.param(("--length-mixing", "random", "--update-freq", 2), marks=pytest.mark.nightly),
    ],
    ids=["sync", "own batches, by length", "random batches"],
)
def test_stop_and_resume(forked, data_bin, tmp_path, setting):
    options = (
        *setting, "--max-tokens", 1000, "--tid-batches", 2, "--save-interval-updates", 7,
        "--max-update", 8,
    )  # fmt: skip
    launch(forked, data_bin, tmp_path / "whole", *options)
    measured = runs.tid_rows(tmp_path / "whole")
    before, after = ([row["layer"] for row in measured if row["epoch"] == n] for n in (0, 1))
    assert before == after != []  # by the names of the model that is not wrapped
    # The whole run's state after seven updates is where another run would have stopped.
    (start,) = (tmp_path / "whole").glob("checkpoint_*_7.pt")
    launch(forked, data_bin, tmp_path / "resumed", *options, "--restore-file", start)
    one, other = (
        read_checkpoint(tmp_path / name / "checkpoint_last.pt")["model"]
        for name in ("whole", "resumed")
    )
    first = read_checkpoint(start)["model"]
    assert one.keys() == other.keys() and any("running_var" in name for name in one)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not any(torch.equal(one[name], first[name]) for name in one if "running_" in name)
    for edges in (value for name, value in one.items() if name.endswith(".edges")):
        assert edges.tolist() == [4, 6, 10, 12]
    assert not torch.equal(one["encoder.layers.0.fc1.weight"], first["encoder.layers.0.fc1.weight"])


def test_every_process_estimates_the_statistics_that_init_from_lacks(
    forked, data_bin, plain_run, tmp_path
):
    # Nothing moves: what is saved is the mean over the processes of what they began with.
    start = (
        "--init-from", plain_run / "checkpoint_last.pt", "--lr", runs.NOTHING,
        "--norm-batch-momentum", 1e-30, "--max-update", 1, "--max-tokens", 4000, "--no-tid",
    )  # fmt: skip
    launch(forked, data_bin, tmp_path / "two", *start)
    runs.train(data_bin, tmp_path / "one", "--norm-encoder", "batch", *start)
    two, one = (
        read_checkpoint(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("two", "one")
    )
    assert sum("running_" in name for name in one) == 8
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-5, atol=1e-6)  # fp32, other orders
