"""Checkpoint files: whole or not, safe or not, found in order, written without half-files."""

import os
import zipfile
from functools import partial
from unittest import mock

import pytest
import torch

from command import user_error
from rbn_fairseq.checkpoints.files import (
    epoch_checkpoints,
    is_whole,
    read_checkpoint,
    write_checkpoint,
)
from rbn_fairseq.checkpoints.mending import mend


def checkpoint(path, updates=5):
    state = {
        "model": {"weight": torch.arange(1000.0)},
        "optimizer_history": [{"num_updates": updates}],
    }
    write_checkpoint(path, state)
    return path


def truncated(path):
    content = checkpoint(path).read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flipped(path):
    content = bytearray(checkpoint(path).read_bytes())
    place = content.find(torch.arange(1000.0).numpy().tobytes()[400:480])
    assert place > 0
    content[place] ^= 1
    path.write_bytes(content)


def half_a_directory(path):
    content = checkpoint(path).read_bytes()
    path.write_bytes(content[:-30])


def tried_again(path):
    """As fairseq leaves it where the first attempt to write failed and the second did not."""
    content = checkpoint(path).read_bytes()
    path.write_bytes(content[:1000] + content)


def a_directory(path):
    """With a tensor that torch takes for a directory, of which it reads nothing."""
    content = bytearray(checkpoint(path).read_bytes())
    name = b"/data/0"
    entry = content.rindex(name) - content[: content.rindex(name)][::-1].index(b"\x02\x01KP") - 4
    content[entry + 38] |= 0x10
    path.write_bytes(content)


def text(path):
    path.write_text("not a checkpoint at all\n" * 9)


def empty(path):
    path.touch()


def other_archive(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")


def no_model(path):
    torch.save({"weights": torch.ones(3)}, path)


def a_model_that_is_no_state(path):
    torch.save({"model": 3}, path)


def a_list(path):
    torch.save([1, 2], path)


def missing(path):
    pass


@pytest.mark.parametrize(
    "damage", [truncated, flipped, half_a_directory, a_directory, tried_again, text, empty, missing]
)
def test_is_whole_finds_damage(tmp_path, damage):
    damage(tmp_path / "checkpoint1.pt")
    assert not is_whole(tmp_path / "checkpoint1.pt")


@pytest.mark.parametrize(
    "damage, words",
    [
        (truncated, "is no checkpoint, or a truncated or damaged one"),
        (half_a_directory, "is no checkpoint, or"),
        (text, "is no checkpoint, or"),
        (empty, "is no checkpoint, or"),
        (missing, "There is no checkpoint file"),
        (other_archive, "checkpoint"),
        (no_model, "no fairseq checkpoint: it has no `model`"),
        (a_model_that_is_no_state, "no fairseq checkpoint"),
        (a_list, "no fairseq checkpoint"),
    ],
)
@pytest.mark.parametrize("mmap", [False, True])
def test_unreadable_files_are_named(tmp_path, damage, words, mmap):
    path = tmp_path / "checkpoint1.pt"
    damage(path)
    with pytest.raises(ValueError) as error:
        read_checkpoint(path, mmap)
    assert str(path) in str(error.value) and words in str(error.value)


@pytest.mark.parametrize("way", [mend, read_checkpoint, partial(read_checkpoint, mmap=True)])
def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path, way):
    """Nobody shall remove it."""
    path = tmp_path / "checkpoint_last.pt"
    write_checkpoint(path, {"model": {}})
    with (
        mock.patch("pathlib.Path.open", side_effect=PermissionError(13, "Permission denied")),
        pytest.raises(ValueError, match="`.*checkpoint_last.pt` may not be read"),
    ):
        way(tmp_path if way is mend else path)


def test_reads_what_was_written(tmp_path):
    for updates in (1, 7):  # the second in the place of the first
        path = checkpoint(tmp_path / "new" / "checkpoint1.pt", updates)
    assert is_whole(path) and os.listdir(path.parent) == ["checkpoint1.pt"]
    for mmap in (False, True):
        state = read_checkpoint(path, mmap)
        assert state["optimizer_history"] == [{"num_updates": 7}]
        assert torch.equal(state["model"]["weight"], torch.arange(1000.0))


def test_flipped_bytes_are_not_translated_with(rbn_run, data_bin, tmp_path, capsys):
    path = tmp_path / "checkpoint1.pt"
    content = bytearray((rbn_run / "checkpoint1.pt").read_bytes())
    weights = read_checkpoint(rbn_run / "checkpoint1.pt")["model"]["encoder.layers.0.fc1.weight"]
    content[content.index(weights.numpy().tobytes()[:64])] ^= 1
    path.write_bytes(content)
    assert str(path) in user_error(capsys, "generate", data_bin, "--path", path, "--cpu")


def test_epoch_checkpoints_are_in_the_order_of_numbers(tmp_path):
    names = ["10", "2", "1", "_last", "_best", "_1_100", "3.pt", ".best_bleu_3"]
    for name in names:
        (tmp_path / f"checkpoint{name}.pt").touch()
    found = epoch_checkpoints(tmp_path)
    assert list(found.items()) == [(n, tmp_path / f"checkpoint{n}.pt") for n in (1, 2, 10)]


def test_epoch_checkpoints_of_no_directory(tmp_path):
    with pytest.raises(ValueError, match="nowhere"):
        epoch_checkpoints(tmp_path / "nowhere")
