"""`rbn doctor --checkpoint`: what it tells of any file, and that it runs none of it."""

import argparse
import os

import pytest
import torch

import runs
from command import rbn
from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint


def findings(path):
    """Exit status, and what is told of the file by kind: ok, note, problem."""
    result = rbn("doctor", "--checkpoint", path)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    told = result.output.partition("fairseq knows")[2].splitlines()[1:]
    return result.exit_code, [tuple(line.split(maxsplit=1)) for line in told]


@pytest.fixture(scope="module")
def plain(data_bin, tmp_path_factory):
    """A checkpoint of fairseq's own transformer."""
    directory = tmp_path_factory.mktemp("plain")
    runs.train(
        data_bin, directory, "--task", "translation", "--arch", "transformer_tiny",
        "--criterion", "label_smoothed_cross_entropy", "--max-update", 1,
    )  # fmt: skip
    return directory / "checkpoint_last.pt"


def test_own(rbn_run):
    path = rbn_run / "checkpoint2.pt"
    model = read_checkpoint(path)["model"]
    weights = {name: value for name, value in model.items() if "running" not in name}
    number = f"{sum(value.numel() for value in weights.values()):,}"
    updates = read_checkpoint(path)["optimizer_history"][-1]["num_updates"]
    assert findings(path) == (
        0,
        [
            (
                "ok",
                f"checkpoint `{path}`: rbn_transformer_tiny, --norm-encoder batch, "
                f"--norm-decoder layer, {updates} updates",
            ),
            (
                "ok",
                f"{number} parameters in {len(weights)} tensors of float32; running statistics "
                "of 4 norms; all finite",
            ),
        ],
    )


def changed(path, target, **changes):
    state = read_checkpoint(path)
    write_checkpoint(target, state | changes)
    return target


def test_averaged_and_recalibrated(rbn_run, tmp_path):
    path = tmp_path / "average.pt"
    average = {"averaged": ["1", "2", "3"]}
    status, (*_, (kind, told)) = findings(
        changed(rbn_run / "checkpoint1.pt", path, rbn_fairseq=average)
    )
    assert (status, kind) == (0, "note")
    assert told.startswith("averaged from 3 checkpoints; ") and "`rbn recalibrate`" in told
    both = average | {"recalibrated": {"batches": 20}}
    _, (*_, note) = findings(changed(rbn_run / "checkpoint1.pt", path, rbn_fairseq=both))
    assert note == (
        "note", "averaged from 3 checkpoints; running statistics estimated from 20 batches"
    )  # fmt: skip


def test_diverged(rbn_run, tmp_path):
    model = read_checkpoint(rbn_run / "checkpoint1.pt")["model"]
    name = next(name for name in model if name.endswith("running_var"))
    model[name][0] = torch.nan
    status, told = findings(changed(rbn_run / "checkpoint1.pt", tmp_path / "nan.pt", model=model))
    assert status == 1 and told[1][0] == "problem"
    assert f"not finite: {name} (1 tensors)" in told[1][1]


@pytest.mark.parametrize("old", [False, True], ids=["cfg", "args"])
def test_made_by_fairseq_alone(plain, old, tmp_path):
    if old:  # fairseq before 0.10
        arguments = argparse.Namespace(arch="transformer_tiny", source_lang="de")
        plain = changed(plain, tmp_path / "old.pt", cfg=None, args=arguments)
    status, ((ok, first), _, (kind, note)) = findings(plain)
    assert (status, ok, kind) == (0, "ok", "note")
    assert first == f"checkpoint `{plain}`: transformer_tiny, 1 updates"
    assert "without this plugin: `rbn generate` translates with it" in note
    assert "--init-from FILE" in note


def only_tensors(path):
    torch.save({"a": torch.ones(1)}, path)
    return "no fairseq checkpoint: it has no `model`"


def gift(path):
    class Gift:
        def __reduce__(self):
            return os.mkdir, (str(path.with_name("touched")),)

    torch.save({"model": Gift()}, path)
    return "mkdir"


def bytes_of_chance(path):
    path.write_bytes(bytes(range(256)) * 9)
    return "truncated or damaged"


def flipped(path):
    torch.save({"model": {"w": torch.full((99,), 5.0)}}, path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"\0\0\xa0\x40", b"\0\0\xa1\x40", 1))
    assert torch.load(path, weights_only=True)["model"]["w"].sum() > 5 * 99  # torch reads it
    return "truncated or damaged"


def missing(path):
    return "There is no checkpoint file"


FILES = [only_tensors, gift, bytes_of_chance, flipped, missing]


@pytest.mark.parametrize("make", FILES)
def test_what_is_no_checkpoint(make, tmp_path):
    words = make(tmp_path / "file.pt")
    status, ((kind, told),) = findings(tmp_path / "file.pt")
    assert (status, kind) == (1, "problem")
    assert words in told and str(tmp_path / "file.pt") in told
    assert not (tmp_path / "touched").exists()


def test_names_do_not_command_the_terminal(tmp_path):
    path = tmp_path / "[red]a\x1b]0;title\x07[.pt"
    _, ((_, told),) = findings(path)
    assert "[red]a\N{REPLACEMENT CHARACTER}]0;title\N{REPLACEMENT CHARACTER}[.pt" in told
