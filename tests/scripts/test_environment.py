"""How the scripts make their environment, with stand-ins for Python and pip."""

import shutil

import pytest

from shell import ROOT, refusal, succeed

# What `python -m venv` and the Python in it do, as far as the scripts can see.
PYTHON = """#!/usr/bin/env bash
case "$*" in
    *"import torch"*) grep -qs torch== "$LOG.all" ;;
    *"pip --version") [[ ! -f $LOG.nopip ]] ;;
    *ensurepip) [[ $(<"$LOG.nopip") ]] && rm "$LOG.nopip" ;;
    *print*) echo "VERSION" ;;
    *"import sys"*) ;;
    "-m venv "*) rm -rf .venv "$LOG.all" && mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    *"pip install"*)
        echo "${@: -1}" | tee -a "$LOG.all" >>"$LOG"
        ;;
esac
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A copy of the scripts, with a Python and nothing else of the environment of the tests."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "common.sh", tmp_path / "scripts")
    (tmp_path / "pyproject.toml").write_text("one")
    (tmp_path / "rbn_fairseq").mkdir()
    (tmp_path / "rbn_fairseq" / "version.py").write_text("")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("python3.11", "python3.12", "python3"):
        (tools / name).write_text(PYTHON.replace("VERSION", name.removeprefix("python")))
        (tools / name).chmod(0o755)
    monkeypatch.delenv("PYTHON", raising=False)
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    (tmp_path / "make.sh").write_text(
        f"set -euo pipefail\nsource {tmp_path}/scripts/common.sh\n"
        'make_venv "$1"\ncommand -v python\n'
    )
    return tmp_path


def make(project, extras=""):
    """Make the environment; return what pip was told to install, and where python is then."""
    (project / "log").write_text("")
    python = succeed(project / "make.sh", extras, path=project / "tools")
    return (project / "log").read_text().split(), python.strip()


def add_driver(project):
    (project / "tools" / "nvidia-smi").write_text("#!/bin/sh")
    (project / "tools" / "nvidia-smi").chmod(0o755)


def test_torch_first_and_by_exact_version(project):
    add_driver(project)
    python = str(project / ".venv" / "bin" / "python")
    assert make(project) == (["torch==2.13.0", "."], python)
    assert make(project) == ([], python)
    assert make(project, "test") == ([".[test]"], python)  # torch is there
    assert make(project) == ([], python)
    (project / "pyproject.toml").write_text("two")
    assert make(project)[0] == ["."]


def test_another_python(project, monkeypatch):
    add_driver(project)
    monkeypatch.setenv("PYTHON", "python3.12")
    assert make(project)[0] == ["torch==2.13.0", "."]
    assert 'echo "3.12"' in (project / ".venv" / "bin" / "python").read_text()
    assert make(project)[0] == []
    monkeypatch.setenv("PYTHON", "python3.11")  # the environment is made anew
    assert make(project)[0] == ["torch==2.13.0", "."]
    assert 'echo "3.11"' in (project / ".venv" / "bin" / "python").read_text()
    monkeypatch.delenv("PYTHON")
    assert make(project)[0] == []


def test_no_such_python(project, monkeypatch):
    monkeypatch.setenv("PYTHON", "python3.9")
    assert "PYTHON=python3.9" in refusal(project / "make.sh", "", path=project / "tools")


def test_an_environment_without_pip_is_not_made_anew(project):
    """As `uv venv` leaves it."""
    add_driver(project)
    make(project)
    (project / ".venv" / "mine").write_text("")
    (project / "pyproject.toml").write_text("two")
    (project / "log.nopip").write_text("")  # nor is there ensurepip
    assert "no pip in .venv" in refusal(project / "make.sh", "", path=project / "tools")
    (project / "log.nopip").write_text("can be had")
    assert make(project)[0] == ["."]
    assert (project / ".venv" / "mine").exists()
