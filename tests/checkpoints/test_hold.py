"""One training at a time writes to a directory."""

import subprocess
import sys

import pytest

import runs
from command import rbn
from rbn_fairseq.checkpoints.hold import hold, let_go

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
    let_go()
    for process in started:
        process.kill()
        process.communicate()


def test_another_process_holds_it(other, tmp_path):
    first = other(tmp_path)
    assert first.stdout.readline() == "holds\n"
    (tmp_path / "link").symlink_to(tmp_path)
    for directory in (tmp_path, tmp_path / "link"):
        with pytest.raises(ValueError, match=f"{tmp_path}.*another process.*--save-dir"):
            hold(directory)
    (tmp_path / "other").mkdir()
    hold(tmp_path / "other")
    first.kill()
    first.wait()
    hold(tmp_path)


def test_a_process_holds_one_directory_until_it_trains_in_another(other, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
    for _ in range(2):
        hold(first)
    refused = other(first)
    assert refused.wait(60) != 0 and "another process trains there" in refused.stderr.read()
    hold(second)
    assert other(first).stdout.readline() == "holds\n"
    with pytest.raises(ValueError, match="another process"):
        hold(first)
    assert other(second).stdout.readline() == "holds\n"


def test_what_it_forked_does_not_hold_it(other, tmp_path):
    """Such as a loader of data, which may live on for seconds after a kill."""
    forking = HOLDING.replace("sys.stdin.read()", "import os, time; os.fork() or time.sleep(30)")
    done = subprocess.run([sys.executable, "-c", forking, str(tmp_path)], stdout=subprocess.DEVNULL)
    assert done.returncode == 0
    assert other(tmp_path).stdout.readline() == "holds\n"


def test_a_second_training_changes_nothing(other, data_bin, tmp_path):
    saving = tmp_path / "checkpoint1.pt.tmp"  # which a start removes, as left by a cut save
    saving.touch()
    first = other(tmp_path)
    assert first.stdout.readline() == "holds\n"
    with pytest.raises(ValueError, match="another process trains"):
        runs.train(data_bin, tmp_path, "--max-update", 1)
    assert [*tmp_path.iterdir()] == [saving]
    options = runs.train_arguments(data_bin, tmp_path)
    assert rbn("train", *options, "--check").exit_code == 0
    first.kill()
    first.wait()
    runs.train(data_bin, tmp_path, "--max-update", 1)
    assert not saving.exists() and (tmp_path / "checkpoint_last.pt").exists()
