"""Files that are there whole or not at all, also after a power cut."""

import os
from pathlib import Path

import pytest
import torch

from rbn_fairseq.checkpoints.files import write_checkpoint
from rbn_fairseq.writing import check_output, write_whole


def write_state(path, size):
    write_checkpoint(path, {"model": {"w": torch.ones(size)}})


def write_text(path, size):
    write_whole(path, "x" * size)


@pytest.mark.parametrize("write", [write_text, write_state])
def test_reaches_the_disk_before_it_has_its_name(tmp_path, monkeypatch, write):
    path, done = tmp_path / "file", []
    write(path, 1)
    old = path.stat().st_ino

    def fsync(number):
        what = Path(os.readlink(f"/proc/self/fd/{number}")).name
        done.append((what, os.fstat(number).st_size > 500, path.stat().st_ino == old))

    monkeypatch.setattr(os, "fsync", fsync)
    write(path, 1000)
    assert done == [("file.unfinished", True, True)]  # written, and not yet in its place


def test_an_error_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_whole(path, "old")

    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_a_directory_of_somebody_elses(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)  # root may write anywhere
    with pytest.raises(ValueError, match="--output: .* not yours to write to"):
        check_output("--output", tmp_path / "new")


def test_what_may_be_written(tmp_path):
    """A file that is not there, or one that the user lets go; never what is read."""
    there, link = tmp_path / "there", tmp_path / "link"
    there.touch()
    link.symlink_to(there)
    check_output("--output", tmp_path / "new")
    check_output("--output", there, overwrite=True)
    for path, inputs, overwrite, words in (
        (there, [], False, "--output `.*there` exists.*--overwrite"),
        (there, [there], True, "is what is read"),
        (link, [there], True, "is what is read"),
        (tmp_path, [], True, "is a directory"),
        (tmp_path / "no" / "new", [], True, "`.*no` does not exist"),
        (there / "new", [], True, "`.*there` does not exist"),
    ):
        with pytest.raises(ValueError, match=words):
            check_output("--output", path, inputs, overwrite)
