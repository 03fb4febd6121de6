"""What the penalty weighs in an update depends neither on --update-freq nor on processes.

All batches are equal here, so that one, several micro-batches of it and several processes with it
make the same update if, and only if, the penalty weighs the same beside the loss.
"""

import pytest
import torch

import runs
from processes import launch
from rbn_fairseq.checkpoints.files import read_checkpoint

OPTIONS = (
    "--norm-encoder", "batch", "--norm-batch-momentum", 1e-30, "--batch-size", 8, "--dropout", 0,
    "--adam-eps", 1, "--lr", 2, "--warmup-updates", 1, "--warmup-init-lr", 2, "--max-update", 1,
    "--no-tid", "--disable-validation", "--conditioning-interval", 0,
)  # fmt: skip
PENALTIES = {
    "none": ("--rbn-mean-weight", 0, "--rbn-std-weight", 0),
    "sum": ("--rbn-mean-weight", 2, "--rbn-std-weight", 1),
    "token": ("--rbn-mean-weight", 0.02, "--rbn-std-weight", 0.01, "--rbn-reduction", "token"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    text = tmp_path_factory.mktemp("text")
    for split in ("train", "valid", "test"):
        for language, line in (("de", "eins im mai und zwei im juni"), ("en", "one in may")):
            (text / f"{split}.{language}").write_text(f"{line}\n" * 32)
    directory = tmp_path_factory.mktemp("data-bin")
    runs.preprocess(text, directory)
    return directory


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """Function that returns the weights after an update in one process."""

    def train(penalty, *options):
        directory = tmp_path_factory.mktemp("run")
        runs.train(data, directory, *OPTIONS, *PENALTIES[penalty], *options)
        return weights(directory)

    return train


def weights(directory):
    model = read_checkpoint(directory / "checkpoint_last.pt")["model"]
    return torch.cat([v.flatten() for name, v in model.items() if "running" not in name])


@pytest.mark.parametrize("penalty", ["sum", "token"])
def test_update_freq(trained, penalty):
    one, four = trained(penalty), trained(penalty, "--update-freq", 4)
    assert (one - trained("none")).norm() > 0.01  # the penalty is a part of the update
    torch.testing.assert_close(one, four, rtol=1e-5, atol=1e-6)


def test_batch_size(trained):
    """Only `token` does not depend on it; `sum` weighs half as much in batches twice as large."""
    none, *others = (trained(p) for p in PENALTIES)
    ratios = []
    for one, penalty in zip(others, ("sum", "token"), strict=True):
        twice = trained(penalty, "--batch-size", 16)
        ratios.append(float((twice - none).norm() / (one - none).norm()))
    assert ratios == pytest.approx([0.5, 1], abs=0.02)  # clipping of gradients, rounding


@pytest.mark.parametrize(
    "penalty, options",
    [pytest.param("sum", (), marks=pytest.mark.nightly), ("token", ("--norm-sync",))],
)
def test_processes(forked, data, trained, tmp_path, penalty, options):
    launch(forked, data, tmp_path, *OPTIONS, *PENALTIES[penalty], *options)
    torch.testing.assert_close(weights(tmp_path), trained(penalty), rtol=1e-5, atol=1e-6)
