"""One training at a time writes to a directory."""

import gc
import subprocess
import sys

import pytest

import runs
from rbn_fairseq.checkpoints.hold import hold

HOLDING = """
import sys
from pathlib import Path
from rbn_fairseq.checkpoints.hold import hold
held = hold(Path(sys.argv[1]))
print("holds", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other():
    """Function that starts a process that holds a directory."""
    started = []

    def start(directory):
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", HOLDING, str(directory)]
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_another_process_holds_it(other, tmp_path):
    first = other(tmp_path)
    assert first.stdout.readline() == "holds\n"
    (tmp_path / "link").symlink_to(tmp_path)
    for directory in (tmp_path, tmp_path / "link"):
        with pytest.raises(ValueError, match=f"{tmp_path}.*another training.*--save-dir"):
            hold(directory)
    (tmp_path / "other").mkdir()
    hold(tmp_path / "other")
    first.kill()
    first.wait()
    hold(tmp_path)


def test_this_process_holds_it_as_long_as_it_needs(other, tmp_path):
    held = hold(tmp_path)
    assert hold(tmp_path) is held  # a training after another
    second = other(tmp_path)
    assert second.wait() != 0 and "another training is running" in second.stderr.read()
    del held
    gc.collect()
    assert other(tmp_path).stdout.readline() == "holds\n"


def test_a_second_training_changes_nothing(other, data_bin, tmp_path):
    saving = tmp_path / "checkpoint1.pt.tmp"  # which a start removes, as left by a cut save
    saving.touch()
    first = other(tmp_path)
    assert first.stdout.readline() == "holds\n"
    with pytest.raises(ValueError, match="another training is running"):
        runs.train(data_bin, tmp_path, "--max-update", 1)
    assert [*tmp_path.iterdir()] == [saving]
    first.kill()
    first.wait()
    runs.train(data_bin, tmp_path, "--max-update", 1)
    assert not saving.exists() and (tmp_path / "checkpoint_last.pt").exists()
