"""What a kill or a power cut leaves in a save directory, and what a training makes of it."""

import logging
import os
import shutil
import struct

import pytest
import torch

from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint
from rbn_fairseq.checkpoints.mending import mend

# Names by updates; a save every 10 updates, every second one ends an epoch.
NAMES = {
    10: ["checkpoint_1_10.pt", "checkpoint_best.pt", "checkpoint_last.pt"],
    20: ["checkpoint1.pt", "checkpoint_best.pt", "checkpoint_last.pt"],
    30: ["checkpoint_2_30.pt", "checkpoint_best.pt", "checkpoint_last.pt"],
    40: ["checkpoint2.pt", "checkpoint_last.pt"],
}


def state(updates, starts=2):
    return {
        "model": {"weight": torch.full((500,), float(updates))},
        "optimizer_history": [{"num_updates": updates}] * starts,
    }


def save(directory, updates, names=None):
    """Save under names, a second after the save before."""
    for number, name in enumerate(NAMES[updates] if names is None else names):
        path = directory / name
        write_checkpoint(path, state(updates))
        os.utime(path, (1e9 + updates + number / 100,) * 2)


def cut(path):
    """Leave half of a file, as a copy or a power cut does; its time stays."""
    time = path.stat().st_mtime
    os.truncate(path, path.stat().st_size // 2)
    os.utime(path, (time, time))


def contents(directory):
    """Updates by name."""
    return {p.name: int(read_checkpoint(p)["model"]["weight"][0]) for p in directory.iterdir()}


@pytest.fixture
def saved(tmp_path):
    """A directory after three saves."""
    for updates in (10, 20, 30):
        save(tmp_path, updates)
    return tmp_path


def damaged(*names):
    def interrupt(saved):
        for name in names:
            cut(saved / name)

    return interrupt


def other_weights(saved):
    """Only checksums tell that the weights of the last save are not what was written."""
    for path in map(saved.joinpath, NAMES[30]):
        time, data = path.stat().st_mtime, path.read_bytes()
        path.write_bytes(data.replace(struct.pack("<f", 30.0), struct.pack("<f", 31.0)))
        os.utime(path, (time, time))


def before_the_last_copy(saved, best="whole"):
    """The save of update 30 has its first name; the last one is that of update 20."""
    save(saved, 20, ["checkpoint_best.pt", "checkpoint_last.pt"])
    if best == "cut":
        cut(saved / "checkpoint_best.pt")


def beside_another_training(saved):
    """An earlier training's checkpoint of more updates."""
    save(saved, 40, ["checkpoint2.pt"])
    os.utime(saved / "checkpoint2.pt", (1e9, 1e9))


def long_ago(saved):
    cut(saved / "checkpoint_1_10.pt")
    os.utime(saved / "checkpoint_1_10.pt", (9e8, 9e8))
    shutil.copy(saved / "checkpoint1.pt", saved / "checkpoint_last.pt")


def beside_other_files(saved):
    """An average is no training's state; nor is what fairseq would not call so."""
    write_checkpoint(saved / "checkpoint_average.pt", state(40))
    torch.save([1, 2], saved / "checkpoint_of_mine.pt")
    (saved / "checkpoint_gone.pt").symlink_to(saved / "nowhere")
    cut(saved / "checkpoint_last.pt")


def behind_a_reset(saved, last="whole"):
    """Updates are counted anew with the last start, whose first save is not the last one yet."""
    write_checkpoint(saved / "checkpoint3.pt", state(5, starts=3))
    if last == "cut":
        cut(saved / "checkpoint_last.pt")


INTERRUPTED = {  # and the update that a training resumes from
    "last": (damaged("checkpoint_last.pt"), 30),
    "best and last": (damaged("checkpoint_best.pt", "checkpoint_last.pt"), 30),
    "first and last": (damaged("checkpoint_2_30.pt", "checkpoint_last.pt"), 30),
    "the whole save": (damaged(*NAMES[30]), 20),
    "weights of the whole save": (other_weights, 20),
    "before the last copy": (before_the_last_copy, 30),
    "in the copy before": (lambda saved: before_the_last_copy(saved, "cut"), 30),
    "beside another training": (beside_another_training, 30),
    "long ago": (long_ago, 20),
    "beside other files": (beside_other_files, 30),
    "before the first copy behind a reset": (behind_a_reset, 5),
    "in the first copy behind a reset": (lambda saved: behind_a_reset(saved, "cut"), 5),
}


@pytest.mark.parametrize("interrupt, updates", INTERRUPTED.values(), ids=INTERRUPTED)
def test_a_training_resumes_from_the_newest_whole_checkpoint(saved, interrupt, updates, caplog):
    interrupt(saved)
    before = (saved / "checkpoint_last.pt").read_bytes()
    with caplog.at_level(logging.WARNING):
        mend(saved)
    assert read_checkpoint(saved / "checkpoint_last.pt")["model"]["weight"][0] == updates
    mended = (saved / "checkpoint_last.pt").read_bytes() != before
    assert (f"update {updates}" in caplog.text) == mended


def test_killed_behind_the_first_name_of_the_first_save(tmp_path):
    save(tmp_path, 10, NAMES[10][:1])
    mend(tmp_path)
    assert contents(tmp_path) == {"checkpoint_1_10.pt": 10, "checkpoint_last.pt": 10}


def test_without_a_cut_nothing_is_touched(saved):
    (saved / "checkpoint_best.pt").unlink()  # by someone; the last one is that of the newest save
    before = {path: (path.stat().st_mtime, path.read_bytes()) for path in saved.iterdir()}
    mend(saved)
    assert {path: (path.stat().st_mtime, path.read_bytes()) for path in saved.iterdir()} == before


def test_who_goes_back_on_purpose_stays_there(saved):
    save(saved, 40, ["checkpoint2.pt"])
    shutil.copy(saved / "checkpoint1.pt", saved / "checkpoint_last.pt")
    mend(saved)
    assert read_checkpoint(saved / "checkpoint_last.pt")["model"]["weight"][0] == 20
    # The training that goes on from there is killed: update 40 is of the one before.
    os.utime(saved / "checkpoint_2_30.pt", (4e9, 4e9))
    mend(saved)
    assert read_checkpoint(saved / "checkpoint_last.pt")["model"]["weight"][0] == 30


@pytest.mark.parametrize("name, mended", [("checkpoint1.pt", False), ("parent.pt", True)])
def test_who_begins_from_one_of_them_does(saved, name, mended):
    """But where the name is none that is saved under, so that the training had begun from it."""
    (saved / "checkpoint_last.pt").unlink()
    mend(saved, saved / name)
    assert (saved / "checkpoint_last.pt").exists() == mended
    mend(saved, saved.parent / "elsewhere" / name)
    assert (saved / "checkpoint_last.pt").exists()


def test_a_whole_file_that_is_not_understood_is_left(saved):
    """Of a type that is not read, say: the next step refuses it, and names the type."""
    torch.save({"model": {}, "mine": saved}, saved / "checkpoint_last.pt")
    before = (saved / "checkpoint_last.pt").read_bytes()
    mend(saved)
    assert (saved / "checkpoint_last.pt").read_bytes() == before


@pytest.mark.parametrize("name", ["checkpoint3.pt.tmp", "checkpoint_last.pt.tmp"])
def test_unfinished_files_go(saved, name):
    (saved / name).write_bytes(b"half")
    mend(saved)
    assert not (saved / name).exists() and len(list(saved.iterdir())) == 5


def test_nothing_whole(tmp_path):
    mend(tmp_path)  # nothing at all: training starts anew
    save(tmp_path, 10)
    for name in NAMES[10]:
        cut(tmp_path / name)
    with pytest.raises(ValueError, match="no whole checkpoint to resume from. Remove the file"):
        mend(tmp_path)
    (tmp_path / "checkpoint_last.pt").unlink()
    mend(tmp_path)  # as the message says
    assert not (tmp_path / "checkpoint_last.pt").exists()


def test_newest_whole_counts_updates_and_skips_damage(saved):
    save(saved, 40)
    os.utime(saved / "checkpoint1.pt", (2e9, 2e9))  # copied later: the time alone says nothing
    cut(saved / "checkpoint_last.pt")
    shutil.copy(saved / "checkpoint1.pt", saved / "checkpoint9.pt")  # not its own name
    mend(saved)
    last, newest = saved / "checkpoint_last.pt", saved / "checkpoint2.pt"
    assert last.read_bytes() == newest.read_bytes()
