"""`rbn doctor --checkpoint`: what it tells of any file, and that it runs none of it."""

import argparse
import os

import pytest
import torch

from command import rbn
from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint


def findings(path):
    """Exit status, and what is told of the file by kind: ok, note, problem."""
    result = rbn("doctor", "--checkpoint", path)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    told = result.output.partition("fairseq knows")[2].splitlines()[1:]
    return result.exit_code, [tuple(line.split(maxsplit=1)) for line in told]


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
    made = {"averaged": ["1", "2", "3"], "recalibrated": {"batches": 20}}
    path = changed(rbn_run / "checkpoint1.pt", tmp_path / "average.pt", rbn_fairseq=made)
    status, (*_, note) = findings(path)
    assert (status, note) == (0, ("note", "made by `rbn`: averaged, recalibrated"))


def test_diverged(rbn_run, tmp_path):
    model = read_checkpoint(rbn_run / "checkpoint1.pt")["model"]
    name = next(name for name in model if name.endswith("running_var"))
    model[name][0] = torch.nan
    status, told = findings(changed(rbn_run / "checkpoint1.pt", tmp_path / "nan.pt", model=model))
    assert status == 1 and told[1][0] == "problem"
    assert f"not finite: {name} (1 tensors)" in told[1][1]
    model[name][0] = 1.0
    model["decoder.embed_tokens._float_tensor"] = torch.tensor([torch.nan])  # fairseq sets no value
    status, _ = findings(changed(rbn_run / "checkpoint1.pt", tmp_path / "nan.pt", model=model))
    assert status == 0


@pytest.mark.parametrize("old", [False, True], ids=["cfg", "args"])
def test_made_by_fairseq_alone(plain_run, old, tmp_path):
    plain = plain_run / "checkpoint_last.pt"
    if old:  # fairseq before 0.10
        arguments = argparse.Namespace(arch="transformer", source_lang="de")
        plain = changed(plain, tmp_path / "old.pt", cfg=None, args=arguments)
    status, ((ok, first), _, (kind, note)) = findings(plain)
    assert (status, ok, kind) == (0, "ok", "note")
    assert first == f"checkpoint `{plain}`: transformer, 2 updates"
    assert "without this plugin: `rbn generate` translates with it" in note
    assert "--init-from FILE" in note


def test_what_is_no_checkpoint(tmp_path):
    path = tmp_path / "file.pt"

    class Gift:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "touched"),)

    torch.save({"model": Gift()}, path)
    status, ((kind, told),) = findings(path)
    assert (status, kind) == (1, "problem")
    assert "mkdir" in told and str(path) in told
    assert not (tmp_path / "touched").exists()


def test_names_do_not_command_the_terminal(tmp_path):
    path = tmp_path / "[red]a\x1b]0;title\x07[.pt"
    _, ((_, told),) = findings(path)
    assert "[red]a\N{REPLACEMENT CHARACTER}]0;title\N{REPLACEMENT CHARACTER}[.pt" in told
