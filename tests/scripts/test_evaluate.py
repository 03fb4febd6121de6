"""What evaluate.sh does anew and what not, with a stand-in for `rbn` and sacreBLEU."""

import os

import pytest

from shell import refusal, script, succeed

# Writes what the real command leaves behind. `FAIL` names a verb that fails in the middle.
RBN = """#!/usr/bin/env bash
echo "$1" >>"$LOG"
[[ $1 != generate ]] || echo "D-0"
[[ $1 != "$FAIL" ]] || exit 3
verb=$1
while (($#)); do [[ $1 == --output || $1 == --json ]] && echo "$verb" >"$2"; shift; done
"""
WITH_BATCH_NORM = ["average", "recalibrate", "generate", "score", "generate", "score"]


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A directory for PATH; every call's verb is in ``log``."""
    directory = tmp_path / "tools"
    directory.mkdir()
    for name, text in (("rbn", RBN), ("sacrebleu", '#!/bin/sh\necho sacrebleu >>"$LOG"\nexit 1\n')):
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setenv("FAIL", "")
    return directory


@pytest.fixture
def run(tmp_path):
    """A trained run; long ago, so that what is made now is newer."""
    directory = tmp_path / "runs" / "post-bn-seed1"
    (directory / ".hydra").mkdir(parents=True)
    (directory / ".hydra" / "config.yaml").write_text("model:\n  norm_encoder: batch@0:layer\n")
    (directory / "checkpoint_last.pt").write_text("")
    os.utime(directory / "checkpoint_last.pt", (1, 1))
    (tmp_path / "data" / "bin").mkdir(parents=True)
    (tmp_path / "data" / "bin" / "about.json").write_text("{}")
    return directory


def places(run, benchmark="iwslt14"):
    root = run.parent.parent
    return (
        f"{benchmark}/evaluate.sh",
        "bn",
        "post",
        1,
        "--data",
        root / "data",
        "--runs",
        root / "runs",
    )


@pytest.fixture
def evaluate(run, tools, tmp_path):
    def call(*options):
        (tmp_path / "log").write_text("")
        done = script(*places(run), *options, path=tools)
        return done, (tmp_path / "log").read_text().split()

    return call


def age(run):
    """Make every file of the evaluation older than now, in its order."""
    for number, path in enumerate(sorted(run.glob("*"), key=lambda path: path.stat().st_mtime_ns)):
        os.utime(path, (number + 1, number + 1))


def test_all_steps_once(evaluate, run):
    assert evaluate()[1] == WITH_BATCH_NORM
    assert evaluate()[1] == []


def test_more_training_is_evaluated_anew(evaluate, run):
    evaluate()
    age(run)
    (run / "checkpoint_last.pt").touch()
    assert evaluate()[1] == WITH_BATCH_NORM


def test_another_number_of_epochs_is_averaged_anew(evaluate, run):
    evaluate()
    age(run)
    assert evaluate("--last", 3)[1] == WITH_BATCH_NORM
    assert evaluate("--last", 3)[1] == []


@pytest.mark.parametrize("verb, left", [("recalibrate", 5), ("generate", 4), ("score", 3)])
def test_what_failed_is_done_again(evaluate, monkeypatch, verb, left):
    """And nothing after it; a translation that broke off is none."""
    monkeypatch.setenv("FAIL", verb)
    done, calls = evaluate()
    assert done.returncode == 3 and calls[-1] == verb and calls.count(verb) == 1
    monkeypatch.setenv("FAIL", "")
    assert evaluate()[1] == WITH_BATCH_NORM[-left:]


def test_a_run_without_its_settings(run, tools):
    (run / ".hydra" / "config.yaml").unlink()
    assert "config.yaml" in refusal(*places(run), path=tools)


def test_sacrebleu_is_asked_before_the_work(run, tools, tmp_path):
    assert "wmt14/full" in refusal(*places(run, "wmt16"), path=tools)
    assert (tmp_path / "log").read_text().split() == ["sacrebleu"]


def test_own_raw_references_of_wmt16(run, tools, tmp_path):
    raw = tmp_path / "data" / "raw" / "test.de"
    raw.parent.mkdir()
    raw.write_text("")
    (tools / "rbn").write_text(RBN.replace('echo "$1"', 'echo "$@"'))
    succeed(*places(run, "wmt16"), path=tools)
    calls = (tmp_path / "log").read_text()
    assert f"--raw-reference {raw}" in calls and "wmt14" not in calls
