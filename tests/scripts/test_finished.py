"""What train.sh trains again: fairseq would add an update to what has all its updates."""

import pytest

from rbn_fairseq.checkpoints.files import write_checkpoint
from shell import succeed


@pytest.fixture
def train(tmp_path):
    """Call wmt16/train.sh with a stand-in for `rbn`; return the seeds that it trains."""
    tools, data, log = tmp_path / "tools", tmp_path / "data", tmp_path / "log"
    tools.mkdir()
    (tools / "rbn").write_text(f'#!/bin/sh\necho "$@" >>"{log}"\n')
    (tools / "rbn").chmod(0o755)
    (data / "bin").mkdir(parents=True)
    (data / "bin" / "about.json").write_text("{}")

    def call(*options):
        log.write_text("")
        places = ("--data", data, "--runs", tmp_path / "runs")
        succeed("wmt16/train.sh", "rbn", "pre", 1, 2, 3, *places, *options, path=tools)
        words = [word for word in log.read_text().split() if word.startswith("common.seed=")]
        return [word.partition("=")[2] for word in words]

    return call


@pytest.fixture
def updates(tmp_path):
    def write(seed, number):
        path = tmp_path / "runs" / f"pre-rbn-seed{seed}" / "checkpoint_last.pt"
        write_checkpoint(path, {"optimizer_history": [{"num_updates": number}], "model": {}})

    return write


def test_what_has_all_its_updates_is_not_trained_again(train, updates):
    assert train() == ["1", "2", "3"]
    updates(1, 100_000)
    updates(2, 99_999)
    assert train() == ["2", "3"]
    assert train("--", "optimization.max_update=100001") == ["1", "2", "3"]
    assert train("--", "optimization.max_update=50000") == ["3"]


def test_nothing_is_left(train, updates):
    for seed in (1, 2, 3):
        updates(seed, 100_000)
    assert train() == []


def test_what_cannot_be_read_is_trained(train, updates, tmp_path):
    updates(1, 100_000)
    (tmp_path / "runs" / "pre-rbn-seed1" / "checkpoint_last.pt").write_bytes(b"x")
    assert train() == ["1", "2", "3"]
