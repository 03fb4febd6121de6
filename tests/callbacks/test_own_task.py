"""A task and a callback of a user's own: examples/own_task and the code of docs/callbacks.md."""

import json
import re
from argparse import Namespace
from pathlib import Path

import pytest
from fairseq.tasks import FairseqTask

import runs
from rbn_fairseq.callbacks import WithCallbacks
from rbn_fairseq.callbacks.length_mixing import LengthMixing
from rbn_fairseq.checkpoints.files import read_checkpoint
from rbn_fairseq.tasks.translation_rbn import TranslationRBNTask
from trainings import task

ROOT = Path(__file__).resolve().parent.parent.parent
TRAIN = (
    "--user-dir", ROOT / "examples" / "own_task", "--task", "language_modeling_watched",
    "--arch", "transformer_lm", "--decoder-layers", 1, "--decoder-embed-dim", 16,
    "--decoder-ffn-embed-dim", 16, "--decoder-attention-heads", 2, "--tokens-per-sample", 32,
    "--sample-break-mode", "none", "--max-tokens", 512, "--optimizer", "adam", "--lr", 0.01,
    "--dropout", 0.1, "--cpu", "--num-workers", 0, "--no-progress-bar",
)  # fmt: skip


def lines(directory):
    return [json.loads(line) for line in (directory / "embedding.jsonl").read_text().splitlines()]


def test_language_modelling_resumes_bit_for_bit(english, tmp_path):
    once, twice = tmp_path / "once", tmp_path / "twice"
    log = runs.call("train", english / "bin", *TRAIN, "--max-epoch", 3, "--save-dir", once)
    assert "valid on 'valid' subset" in log or "| valid |" in log
    runs.call("train", english / "bin", *TRAIN, "--max-epoch", 2, "--save-dir", twice)
    runs.call("train", english / "bin", *TRAIN, "--max-epoch", 3, "--save-dir", twice)
    one, other = (read_checkpoint(path / "checkpoint_last.pt")["model"] for path in (once, twice))
    assert all((value == other[name]).all() for name, value in one.items())
    assert lines(once) == lines(twice) and len(lines(once)) == 3
    first, second, _ = lines(once)
    assert first["growth"] is None and second["growth"] == second["norm"] / first["norm"]


def test_other_dictionaries_are_refused(english, tmp_path):
    runs.call("train", english / "bin", *TRAIN, "--max-update", 1, "--save-dir", tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    for path in (english / "bin").iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    words = (other / "dict.txt").read_text().splitlines()
    (other / "dict.txt").write_text("\n".join(reversed(words)) + "\n")
    with pytest.raises(ValueError, match="dictionaries"):
        runs.call("train", other, *TRAIN, "--max-update", 2, "--save-dir", tmp_path)


def test_a_directory_of_another_kind_is_refused(data_bin, tmp_path):
    with pytest.raises(ValueError, match=r"dict\.txt"):
        runs.call("train", data_bin, *TRAIN, "--max-update", 1, "--save-dir", tmp_path)


def test_the_page_adds_a_callback_to_translation(data_bin, tmp_path):
    (code,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/callbacks.md").read_text(), re.DOTALL
    )
    package = tmp_path / "counting_package"
    package.mkdir()
    (package / "__init__.py").write_text(code)
    log = runs.train(
        data_bin, tmp_path / "run", "--user-dir", package, "--task", "translation_counted",
        "--max-epoch", 1, "--disable-validation",
    )  # fmt: skip
    assert re.search(r"epoch 1: \d+ batches", log)


def test_updates_are_known_after_a_resume():
    before, after = task(LengthMixing), task(LengthMixing)
    before.training.updates = 7
    after.set_checkpoint_dict(before.get_checkpoint_dict()[type(before).__name__])
    assert after.training.updates == 7


def test_what_a_base_saves_is_kept():
    class Base(FairseqTask):
        restored = None

        def get_checkpoint_dict(self):
            return {"Task": {"own": 3}, "Other": 4}

        def set_checkpoint_dict(self, state):
            self.restored = state["own"]

    class Task(WithCallbacks, Base):
        pass

    before, after = (Task(Namespace()) for _ in range(2))
    state = before.get_checkpoint_dict()
    assert state["Other"] == 4 and state["Task"]["updates"] == 0
    after.set_checkpoint_dict(state["Task"])
    assert after.restored == 3


def test_a_task_says_whether_it_keeps_statistics():
    some, all_of_them = task(LengthMixing), task(*TranslationRBNTask.callbacks)
    assert all_of_them.keeps_statistics and not some.keeps_statistics
