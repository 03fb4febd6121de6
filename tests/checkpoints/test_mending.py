"""What a kill or a power cut leaves in a save directory, and what a training makes of it."""

import logging
import os
import shutil

import pytest
import torch

import runs
from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint
from rbn_fairseq.checkpoints.mending import mend, newest_whole

# Scores of the saves by updates; a save every 10 updates, every second one ends an epoch.
SCORES = {10: 7.0, 20: 6.0, 30: 5.0, 40: 5.5}
NAMES = {
    10: ["checkpoint_1_10.pt", "checkpoint_best.pt", "checkpoint_last.pt"],
    20: ["checkpoint1.pt", "checkpoint_best.pt", "checkpoint_last.pt"],
    30: ["checkpoint_2_30.pt", "checkpoint_best.pt", "checkpoint_last.pt"],
    40: ["checkpoint2.pt", "checkpoint_last.pt"],
}
OPTIONS = {
    "no_last_checkpoints": False, "keep_best_checkpoints": 0, "best_checkpoint_metric": "loss",
    "maximize_best_checkpoint_metric": False,
}  # fmt: skip


def state(updates, **options):
    epochs, rest = divmod(updates, 20)
    return {
        "model": {"weight": torch.full((500,), float(updates))},
        "optimizer_history": [{"num_updates": 0}, {"num_updates": updates}],
        "cfg": {"checkpoint": {**OPTIONS, **options}},
        "extra_state": {
            "train_iterator": {"epoch": epochs + 1, "iterations_in_epoch": rest},
            "val_loss": SCORES[updates],
            "best": min(SCORES[n] for n in SCORES if n <= updates),
        },
    }


def save(directory, updates, names=None, **options):
    """Save under names, a second after the save before."""
    for number, name in enumerate(NAMES[updates] if names is None else names):
        path = directory / name
        write_checkpoint(path, state(updates, **options))
        os.utime(path, (1e9 + updates + number / 100,) * 2)


def cut(path):
    """Leave half of a file, as a copy or a power cut does; its time stays."""
    time = path.stat().st_mtime
    os.truncate(path, path.stat().st_size // 2)
    os.utime(path, (time, time))


def contents(directory):
    """Updates by name."""
    return {p.name: int(read_checkpoint(p)["model"]["weight"][0]) for p in directory.iterdir()}


WHOLE = {"checkpoint_1_10.pt": 10, "checkpoint1.pt": 20, "checkpoint_2_30.pt": 30}


@pytest.fixture
def saved(tmp_path):
    """A directory after three saves."""
    for updates in (10, 20, 30):
        save(tmp_path, updates)
    return tmp_path


@pytest.mark.parametrize(
    "damaged",
    [
        ["checkpoint_last.pt"],
        ["checkpoint_best.pt"],
        ["checkpoint_2_30.pt"],
        ["checkpoint_best.pt", "checkpoint_last.pt"],
        ["checkpoint_2_30.pt", "checkpoint_last.pt"],
        ["checkpoint_2_30.pt", "checkpoint_best.pt"],
    ],
)
def test_every_name_of_a_save_is_mended_from_another(saved, damaged):
    for name in damaged:
        cut(saved / name)
    mend(saved)
    assert contents(saved) == {**WHOLE, "checkpoint_best.pt": 30, "checkpoint_last.pt": 30}


def test_a_save_that_is_lost_goes_back_to_the_one_before(saved, caplog):
    for name in NAMES[30]:
        cut(saved / name)
    with caplog.at_level(logging.WARNING):
        mend(saved)
    assert "checkpoint_2_30.pt is damaged, and no other file" in caplog.text
    (saved / "checkpoint_2_30.pt").unlink()  # training writes it again
    assert contents(saved) == {
        "checkpoint_1_10.pt": 10, "checkpoint1.pt": 20,
        "checkpoint_best.pt": 20, "checkpoint_last.pt": 20,
    }  # fmt: skip


def test_a_save_that_is_no_best_keeps_the_best(saved):
    save(saved, 40)
    cut(saved / "checkpoint_last.pt")
    cut(saved / "checkpoint_best.pt")
    mend(saved)
    assert contents(saved) == {
        **WHOLE, "checkpoint2.pt": 40, "checkpoint_best.pt": 30, "checkpoint_last.pt": 40
    }  # fmt: skip


def test_another_best_does_not_take_its_place(saved):
    save(saved, 40)
    cut(saved / "checkpoint_best.pt")
    (saved / "checkpoint_2_30.pt").unlink()
    mend(saved)
    with pytest.raises(ValueError, match="damaged"):  # that of 20 updates would be a wrong one
        read_checkpoint(saved / "checkpoint_best.pt")


def test_killed_while_the_best_was_copied(saved):
    # The save of update 30 has its first name; the last one is that of update 20.
    save(saved, 20, ["checkpoint_last.pt"])
    cut(saved / "checkpoint_best.pt")
    mend(saved)
    assert contents(saved) == {**WHOLE, "checkpoint_best.pt": 30, "checkpoint_last.pt": 30}


def test_killed_while_the_best_was_copied_for_the_first_time(tmp_path):
    save(tmp_path, 10, NAMES[10][:2])
    cut(tmp_path / "checkpoint_best.pt")
    mend(tmp_path)
    assert contents(tmp_path) == dict.fromkeys(NAMES[10], 10)


def test_a_best_that_the_copy_did_not_reach(saved):
    save(saved, 20, ["checkpoint_best.pt"])
    cut(saved / "checkpoint_last.pt")
    mend(saved)
    assert contents(saved) == {**WHOLE, "checkpoint_best.pt": 30, "checkpoint_last.pt": 30}


def test_killed_behind_the_first_name_of_a_save(saved):
    save(saved, 20, ["checkpoint_best.pt", "checkpoint_last.pt"])
    mend(saved)
    assert contents(saved) == {**WHOLE, "checkpoint_best.pt": 30, "checkpoint_last.pt": 30}


def test_killed_behind_the_first_name_of_a_save_that_is_no_best(saved):
    save(saved, 40, NAMES[40][:1])
    mend(saved)
    assert contents(saved) == {
        **WHOLE, "checkpoint2.pt": 40, "checkpoint_best.pt": 30, "checkpoint_last.pt": 40
    }  # fmt: skip


def test_killed_behind_the_first_name_of_the_first_save(tmp_path):
    save(tmp_path, 10, NAMES[10][:1])
    mend(tmp_path)
    assert contents(tmp_path) == dict.fromkeys(NAMES[10], 10)


@pytest.mark.parametrize(
    "others, maximize, kept",
    [([5.2], False, 0), ([5.2, 5.6], False, 1), ([5.2, 5.6], True, 1), ([5.6], True, 0)],
)
def test_killed_before_the_copy_to_one_of_the_best(tmp_path, others, maximize, kept):
    """The score is 5.5: fairseq keeps it if it is no worse than the worst of the others."""
    options = {"keep_best_checkpoints": 1, "maximize_best_checkpoint_metric": maximize}
    save(tmp_path, 40, ["checkpoint2.pt"], **options)
    save(tmp_path, 20, [f"checkpoint.best_loss_{other:.3f}0.pt" for other in others], **options)
    mend(tmp_path)
    assert contents(tmp_path)["checkpoint_last.pt"] == 40
    assert contents(tmp_path).get("checkpoint.best_loss_5.5000.pt") == (40 if kept else None)


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


def test_a_file_of_someone_is_no_copy(saved):
    save(saved, 20, ["checkpoint_last.pt"])
    write_checkpoint(saved / "checkpoint_best.pt", state(40))  # later than all, and no best
    mend(saved)
    assert contents(saved) == {**WHOLE, "checkpoint_best.pt": 40, "checkpoint_last.pt": 30}


def test_a_whole_last_one_is_not_left_for_an_older_file(saved):
    """The directory holds an earlier training's checkpoint of more updates."""
    save(saved, 40, ["checkpoint2.pt"])
    os.utime(saved / "checkpoint2.pt", (1e9, 1e9))
    cut(saved / "checkpoint_2_30.pt")
    mend(saved)
    assert contents(saved)["checkpoint_last.pt"] == 30


def test_damage_from_long_ago_is_left_alone(saved):
    cut(saved / "checkpoint_1_10.pt")
    os.utime(saved / "checkpoint_1_10.pt", (9e8, 9e8))
    shutil.copy(saved / "checkpoint1.pt", saved / "checkpoint_last.pt")
    mend(saved)
    assert read_checkpoint(saved / "checkpoint_last.pt")["model"]["weight"][0] == 20


def test_averages_are_not_resumed_from(saved):
    write_checkpoint(saved / "checkpoint_average.pt", state(40))
    cut(saved / "checkpoint_last.pt")
    mend(saved)
    assert contents(saved)["checkpoint_last.pt"] == 30


@pytest.mark.parametrize("name", ["checkpoint3.pt.tmp", "checkpoint_last.pt.tmp"])
def test_unfinished_files_go(saved, name):
    (saved / name).write_bytes(b"half")
    mend(saved)
    assert not (saved / name).exists() and len(list(saved.iterdir())) == 5


def test_no_last_checkpoint_where_none_is_wanted(tmp_path):
    save(tmp_path, 10, NAMES[10][:2], no_last_checkpoints=True)
    cut(tmp_path / "checkpoint_best.pt")
    mend(tmp_path)
    assert contents(tmp_path) == dict.fromkeys(NAMES[10][:2], 10)
    (tmp_path / "checkpoint_best.pt").unlink()
    mend(tmp_path)
    assert contents(tmp_path) == dict.fromkeys(NAMES[10][:2], 10)


def test_one_of_the_best_ones(data_bin, tmp_path):
    """The last digit of its name is random; fairseq itself gives it here."""
    runs.train(
        data_bin, tmp_path, "--keep-best-checkpoints", 20, "--save-interval-updates", 2, "--no-tid",
        "--max-epoch", 3, "--max-tokens", 100, "--train-subset", "valid", "--valid-subset", "test",
    )  # fmt: skip
    found = sorted(tmp_path.glob("checkpoint.best_*"))
    before = [path.read_bytes() for path in found]
    for path in found:
        cut(path)
    mend(tmp_path)
    assert len(found) > 9  # in the middle and at the end of epochs
    assert [path.read_bytes() for path in found] == before


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


def test_foreign_files_do_not_matter(saved):
    torch.save([1, 2], saved / "checkpoint_of_mine.pt")
    (saved / "checkpoint_gone.pt").symlink_to(saved / "nowhere")
    cut(saved / "checkpoint_last.pt")
    mend(saved)
    assert read_checkpoint(saved / "checkpoint_last.pt")["model"]["weight"][0] == 30


def test_newest_whole_counts_updates_and_skips_damage(saved):
    assert newest_whole(saved / "empty") is None
    save(saved, 40)
    os.utime(saved / "checkpoint1.pt", (2e9, 2e9))  # copied later: the time alone says nothing
    cut(saved / "checkpoint_last.pt")
    shutil.copy(saved / "checkpoint1.pt", saved / "checkpoint9.pt")  # not its own name
    assert newest_whole(saved) == saved / "checkpoint2.pt"
