"""A training that is stopped by force and started again ends as if it had not been."""

import random
import shutil

import pytest

from interruption import Moment, Trials, differences, train
from rbn_fairseq.checkpoints.files import is_whole


@pytest.fixture(scope="module")
def trials(data_bin, tmp_path_factory):
    return Trials(data_bin, tmp_path_factory.mktemp("trials"), random.Random(1))


# Of the 29 writes of a training the 15th is a copy to checkpoint_best.pt, and the 25th is that of
# conditioning.jsonl.
@pytest.mark.parametrize(
    "kind, moment",
    [
        ("SIGTERM", Moment(0.05, write=7)),
        ("SIGKILL", Moment(0.001, write=15)),
        ("SIGKILL", Moment(0, write=25)),
        ("power cut", Moment(0.05, write=11)),
    ],
)
def test_interruption(trials, kind, moment):
    before = trials.interruptions[kind]
    found, directory = trials.run(kind, "updates", [moment])
    assert not found, directory
    assert trials.interruptions[kind] == before + 1


def test_full_disk(trials, tmp_path):
    whole, _ = trials.whole("updates")
    save_dir, logs = tmp_path / "save", [tmp_path / "full.log", tmp_path / "again.log"]
    shutil.copytree(whole, save_dir)
    for name in ("2", "3", "_2_12", "_3_18"):  # back to the end of epoch 1
        (save_dir / f"checkpoint{name}.pt").unlink()
    for name in ("best", "last"):
        shutil.copy(save_dir / "checkpoint1.pt", save_dir / f"checkpoint_{name}.pt")
    before = {path.name for path in save_dir.iterdir()}
    arguments = trials.arguments("updates", save_dir)

    size = (whole / "checkpoint_2_12.pt").stat().st_size
    assert train(arguments, logs[0], limit=size // 2) == 2
    (message,) = [line for line in logs[0].read_text().splitlines() if "rbn: error:" in line]
    assert str(save_dir) in message and "ulimit -f" in message and "resumes" in message
    assert {path.name for path in save_dir.iterdir()} == before
    assert all(is_whole(path) for path in save_dir.glob("*.pt"))

    assert train(arguments, logs[1]) == 0
    assert not differences(save_dir, whole)
