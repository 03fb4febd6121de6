"""The command `rbn`: what it prints, what it refuses and how."""

import dataclasses
import itertools
import re
import shutil
from pathlib import Path

import pytest
import torch

import runs
from command import completed, rbn, user_error
from rbn_fairseq.checkpoints.files import read_checkpoint
from rbn_fairseq.cli import doctor
from rbn_fairseq.cli.app import app
from rbn_fairseq.norms import NORMS
from rbn_fairseq.version import installed

COMMANDS = Path(__file__).parents[2] / "docs" / "commands.md"


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def test_user_dir():
    assert rbn("user-dir").output.strip() == str(runs.USER_DIR)


def test_norms_lists_names_and_options_their_parameters():
    out, parameters = rbn("norms").output, rbn("options").output
    for name, entry in NORMS.items():
        assert name in out
        for option in dataclasses.fields(entry.options_type):
            assert f"--norm-{name}-{option.name.replace('_', '-')}" in parameters


def test_norms_fit_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    lines = re.sub(r"\x1b\[[\d;]*m", "", rbn("norms").output).splitlines()
    assert max(map(len, lines)) == 80  # and, as the last test has it, nothing is cut
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize("verb", ["cost", "prepare iwslt14"])
def test_help_fills_the_terminal(monkeypatch, verb):
    """A line ends where the next word would not fit, or a paragraph."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(app, "rich_markup_mode", "markdown")  # as on a terminal
    text = re.split("Usage.*\n|╭", rbn(*verb.split(), "--help").output)[1].strip()
    lines = [line.strip() for line in text.splitlines()]
    for line, following in itertools.pairwise(lines):
        if line and following:
            assert len(f"{line} {following.split()[0]}") > 58, line  # a space on both sides
    assert len(lines) > 5


def test_help_that_goes_to_a_file_is_whole():
    text = " ".join(rbn("--help").output.split())
    assert (
        " List the recipes of `rbn train --recipe`, and what --norm and --preset choose in" in text
    )


def test_options_are_those_of_the_plugin():
    text = rbn("options").stdout
    told = set(re.findall(r"^  (--[\w-]+)", text, re.MULTILINE))
    rows = COMMANDS.read_text().split("## Options of the plugin")[1]
    first_columns = " ".join(re.findall(r"^\| ([^|]*) \|", rows, re.MULTILINE))
    in_page = set(re.findall(r"--[a-z][\w-]+", first_columns))
    assert len(in_page) > 20 and in_page <= told
    assert not {"--dropout", "--label-smoothing", "--left-pad-source", "--save-dir"} & told
    # Of all others the page says where to look: parameters of norms.
    for name in told - in_page:
        assert re.match("--norm-[a-z]+-[a-z]", name), name


def test_doctor_misses_what_is_required(monkeypatch):
    versions = {"torch": "2.10.0", "seqeval": ""}
    monkeypatch.setattr(doctor, "installed", lambda name: versions.get(name, installed(name)))
    found = rbn("doctor")
    assert found.exit_code == 1 and "seqeval is missing: install 'seqeval==" in found.output
    assert "torch 2.10.0: install 'torch>=2.11'" in found.output and "sacrebleu " in found.output


def test_doctor_tells_of_a_gpu_that_torch_does_not_see(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text("")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "NVIDIA driver" not in rbn("doctor").output
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "NVIDIA driver, but torch" in completed("doctor").output


def test_doctor(rbn_run, data_bin, tmp_path):
    last = rbn_run / "checkpoint_last.pt"
    good = completed("doctor", "--data", data_bin, "--checkpoint", last)
    assert "data and checkpoint fit each other" in good.output

    broken = truncate(shutil.copy(last, tmp_path / "broken.pt"))
    bad = rbn("doctor", "--checkpoint", broken)
    assert bad.exit_code == 1 and "broken.pt" in bad.output

    other = shutil.copytree(data_bin, tmp_path / "data")
    for path in other.glob("dict.*.txt"):
        first, second, *rest = path.read_text().splitlines(keepends=True)
        path.write_text("".join([second, first, *rest]))
    bad = rbn("doctor", "--data", other, "--checkpoint", last)
    assert bad.exit_code == 1 and "dictionaries are not those" in bad.output

    bad = rbn("doctor", "--data", f"{data_bin}:{tmp_path / 'missing'}", "--checkpoint", last)
    assert bad.exit_code == 1 and "There is no data directory" in bad.output
    assert "data and checkpoint" not in bad.output.partition("missing")[2]


@pytest.mark.parametrize("verb", ["tid", "recalibrate"])
def test_checkpoint_of_plain_fairseq(capsys, plain_run, data_bin, tmp_path, verb):
    path = plain_run / "checkpoint_last.pt"
    rest = () if verb == "tid" else ("--data", data_bin, "--output", tmp_path / "out.pt")
    assert "made without this plugin" in user_error(capsys, verb, path, *rest)


def test_norms_that_tid_is_not_defined_for(capsys, data_bin, tmp_path):
    runs.train(data_bin, tmp_path, "--norm-encoder", "mabn", "--max-update", 2)
    capsys.readouterr()
    path = tmp_path / "checkpoint_last.pt"
    assert "has only MovingAverageBatchNorm" in user_error(capsys, "tid", path)
    completed("recalibrate", path, "--data", data_bin, "--output", tmp_path / "new.pt")
    old, new = (read_checkpoint(p)["model"] for p in (path, tmp_path / "new.pt"))
    changed = {name for name, value in old.items() if not torch.equal(value, new[name])}
    assert changed == {name for name in old if name.endswith("running_square")} != set()
