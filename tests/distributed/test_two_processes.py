"""fairseq-train itself on two processes: it stops, resumes and ends as without a stop."""

import torch

from launching import launch
from rbn_fairseq.checkpoints.files import read_checkpoint


def test_stop_and_resume(forked, data_bin, tmp_path):
    launch(forked, data_bin, tmp_path / "whole", "--norm-sync", "--max-epoch", 2)
    # The whole run's state after epoch 1 is where another run would have stopped.
    start = tmp_path / "whole" / "checkpoint1.pt"
    launch(
        forked, data_bin, tmp_path / "resumed", "--norm-sync", "--max-epoch", 2,
        "--restore-file", start,
    )  # fmt: skip
    one, other = (
        read_checkpoint(tmp_path / name / "checkpoint_last.pt")["model"]
        for name in ("whole", "resumed")
    )
    first = read_checkpoint(start)["model"]
    assert one.keys() == other.keys() and any("running_var" in name for name in one)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["encoder.layers.0.fc1.weight"], first["encoder.layers.0.fc1.weight"])
