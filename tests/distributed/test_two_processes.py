"""fairseq-train itself on two processes: it stops, resumes and ends as without a stop."""

import subprocess

import torch

import runs
from processes import WORLD, free_port
from rbn_fairseq.checkpoints.files import read_checkpoint


def launch(forked, data, save_dir, *options):
    """Train on two gloo processes."""
    argv = runs.train_arguments(
        data, save_dir, "--norm-encoder", "batch", "--rbn-mean-weight", 0.1,
        "--rbn-std-weight", 0.1, "--max-tokens", 4000, "--ddp-backend", "legacy_ddp",
        "--distributed-backend", "gloo", "--distributed-world-size", WORLD,
        "--distributed-init-method", f"tcp://127.0.0.1:{free_port()}", "--distributed-no-spawn",
        *options,
    )  # fmt: skip
    processes = [
        subprocess.Popen(
            [forked / "fairseq-train", *argv, "--distributed-rank", str(rank)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(WORLD)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-3000:]
    return "".join(outputs)


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


def test_without_sync(forked, data_bin, tmp_path):
    launch(forked, data_bin, tmp_path, "--max-update", 3)
    model = read_checkpoint(tmp_path / "checkpoint_last.pt")["model"]
    stats = [value for name, value in model.items() if "running_" in name]
    assert len(stats) == 8 and all(value.isfinite().all() for value in stats)


def test_every_process_estimates_the_statistics_that_init_from_lacks(
    forked, data_bin, plain_run, tmp_path
):
    # Nothing moves: what is saved is the mean over the processes of what they began with.
    still = ("--lr", 0, "--norm-batch-momentum", 1e-30, "--max-update", 1, "--max-tokens", 4000)
    start = ("--init-from", plain_run / "checkpoint_last.pt", *still, "--no-tid")
    launch(forked, data_bin, tmp_path / "two", *start)
    runs.train(data_bin, tmp_path / "one", "--norm-encoder", "batch", *start)
    two, one = (
        read_checkpoint(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("two", "one")
    )
    assert sum("running_" in name for name in one) == 8
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-5, atol=1e-6)  # fp32, other orders
