"""What the reproduction scripts say to a mistaken call."""

import re
import subprocess

import pytest

from shell import ROOT, refusal, script, succeed

SCRIPTS = sorted(
    str(path.relative_to(ROOT / "scripts")) for path in ROOT.glob("scripts/*/*.sh")
)  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_help(name, tmp_path):
    """From anywhere, and without an environment."""
    text = succeed(name, "--help", cwd=tmp_path)
    assert text.startswith(f"Usage: bash scripts/{name}")
    assert "set -euo" not in text and "shellcheck" not in text


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("ln", "post"), "NORM PLACEMENT SEED"),
        (("sln", "post", 1), "there is: bn bn_length brn"),
        (("ln", "middle", 1), "'middle'"),
        (("ln", "post", "one"), "'one'"),
        (("ln", "post", 1, "--max-epoch", "0"), "--max-epoch"),
        (("ln", "post", 1, "--max-epoch"), "--max-epoch needs a value"),
        (("ln", "post", 1, "--epochs", 3), "unknown option --epochs"),
        (("ln", "post", 1, "--preset", "tiny"), "there is: small"),
        (("ln", "post", 1, "--gpus", 3), "--gpus 3"),
        (("ln", "post", 1, "--gpus", 16), "--gpus 16"),
        (("ln", "post", 1, "--nodes", 2), "needs --launcher torchrun or slurm"),
        (("ln", "post", 1, "--nodes", 2, "--launcher", "torchrun"), "--master HOST:PORT"),
        (("ln", "post", 1, "--launcher", "ssh"), "local, torchrun or slurm"),
    ],
)
def test_options_of_train(arguments, said):
    assert said in refusal("wmt16/train.sh", "--dry-run", *arguments)


@pytest.mark.parametrize("name", SCRIPTS)
def test_options_of_other_scripts(name):
    if name.endswith("prepare.sh"):
        return  # hands on what it does not know
    line = refusal(name, "ln", "post", 1, "--no-such-option", 3)
    assert "unknown option --no-such-option" in line


def test_options_with_an_equals_sign():
    with_it, without = (
        succeed("iwslt14/train.sh", "ln", "post", 1, "--dry-run", *option)
        for option in (["--max-epoch=3"], ["--max-epoch", 3])
    )
    assert with_it == without and "max_epoch=3" in with_it


def test_called_from_the_scripts_directory():
    here = ROOT / "scripts" / "iwslt14"
    done = subprocess.run(
        ["bash", "train.sh", "ln", "post", "1", "--dry-run"],
        cwd=here,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "iwslt14_post" in done.stdout


@pytest.mark.parametrize("script_name", ["iwslt14/evaluate.sh", "wmt16/evaluate.sh"])
def test_overrides_are_for_training(script_name):
    assert "nothing may follow --" in refusal(script_name, "ln", "post", 1, "--", "x=1")


def test_nothing_prepared(tmp_path):
    line = refusal("iwslt14/train.sh", "ln", "post", 1, "--data", tmp_path)
    assert "scripts/iwslt14/prepare.sh" in line and str(tmp_path) in line


def test_nothing_trained(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "about.json").write_text("{}")
    options = ("--data", tmp_path, "--runs", tmp_path)
    line = refusal("iwslt14/evaluate.sh", "ln", "post", 7, *options)
    assert "scripts/iwslt14/train.sh ln post 7" in line


def test_table_takes_no_norm():
    assert "'rbn'" in refusal("iwslt14/table.sh", "rbn")


def test_grid_needs_its_box():
    assert "--minutes and --parallel" in refusal("iwslt14/grid.sh", "--minutes", 5)
    box = ("--minutes", 5, "--parallel", 2, "--dry-run")
    assert "one SEED" in refusal("iwslt14/grid.sh", *box, "post", 1, 2)
    assert "one SEED" in refusal("iwslt14/grid.sh", *box, "post")


@pytest.mark.parametrize("name", ["iwslt14/prepare.sh", "wmt16/prepare.sh"])
def test_prepare_hands_on_what_it_does_not_know(name, forked, tmp_path):
    options = ("--archive", tmp_path / "none.tgz", "--output", tmp_path / "out")
    done = script(name, *options, path=forked)
    assert done.returncode == 2
    assert re.search(r"rbn: error: .*none\.tgz", done.stderr)
    assert not (tmp_path / "out").exists()


CURL = """#!/usr/bin/env bash
# Stands for curl on a bad line: half of the file at the first call, the rest at the second.
for word; do
    [[ $before == --output || $before == --json ]] && file=$word
    [[ $word == --continue-at ]] && resume=yes
    before=$word
done
if [[ -s $file ]]; then
    [[ $resume ]] && printf 'second' >>"$file"
else
    printf 'first ' >"$file"
    exit 18
fi
"""


def test_interrupted_download(tmp_path):
    """A part is never taken for the whole, and the next call goes on with it."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "curl").write_text(CURL)
    (tools / "curl").chmod(0o755)
    common = ROOT / "scripts" / "common.sh"
    target = tmp_path / "data" / "file.tgz"
    caller = tmp_path / "caller.sh"
    caller.write_text(f"set -euo pipefail\nsource {common}\ndownload http://nowhere/x {target}\n")
    line = refusal(caller, path=tools)
    assert "http://nowhere/x failed" in line and "goes on" in line and not target.exists()
    succeed(caller, path=tools)
    assert target.read_text() == "first second"
    (tools / "curl").write_text("#!/bin/sh\nexit 1\n")
    succeed(caller, path=tools)  # it is there: nothing is fetched


REFUSES_TO_RESUME = """#!/usr/bin/env bash
# Stands for curl and a server that has nothing beyond what is there, or sends no parts.
for word; do
    [[ $before == --output || $before == --json ]] && file=$word
    [[ $word == --continue-at ]] && resume=yes
    before=$word
done
[[ ! $resume ]] || exit "$STATUS"
printf 'whole' >"$file"
"""


@pytest.mark.parametrize("status", [22, 33])  # curl's, for HTTP 416 and for no range at all
def test_download_killed_just_before_its_end(status, tmp_path, monkeypatch):
    monkeypatch.setenv("STATUS", str(status))
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "curl").write_text(REFUSES_TO_RESUME)
    (tools / "curl").chmod(0o755)
    target = tmp_path / "file.tgz"
    (tmp_path / "file.tgz.unfinished").write_text("whole")
    caller = tmp_path / "caller.sh"
    common = ROOT / "scripts" / "common.sh"
    caller.write_text(f"set -euo pipefail\nsource {common}\ndownload http://nowhere/x {target}\n")
    succeed(caller, path=tools)
    assert target.read_text() == "whole"
