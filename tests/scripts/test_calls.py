"""What the scripts hand on to `rbn`, from where they are called, and their downloads."""

import os
import subprocess

import pytest

from shell import ROOT, refusal, script, succeed

SCRIPTS = sorted(str(path.relative_to(ROOT / "scripts")) for path in ROOT.glob("scripts/*/*.sh"))
RBN = '#!/usr/bin/env bash\nprintf "%s\\n" "$PWD" "$@"\n'


@pytest.fixture
def stand_in(tmp_path):
    """A directory for PATH, in it an `rbn` that prints where it is called, and with what."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "rbn").write_text(RBN)
    (tools / "rbn").chmod(0o755)
    return tools


@pytest.mark.parametrize("name", SCRIPTS)
def test_help(name, tmp_path):
    """From anywhere, and without an environment."""
    text = succeed(name, "--help", cwd=tmp_path)
    assert text.startswith(f"Usage: bash scripts/{name}")
    assert "set -euo" not in text and "shellcheck" not in text


@pytest.mark.parametrize("benchmark", ["iwslt14", "wmt16"])
def test_a_run_a_seed(benchmark, stand_in, tmp_path):
    given = ["rbn", "post", "1", "22", "--clip-norm", "3", "x='y z'"]
    runs = [(seed, f"{ROOT}/runs/{benchmark}/post-rbn-seed{seed}") for seed in ("1", "22")]
    words = [str(ROOT / "data" / benchmark / "bin"), "--recipe", f"{benchmark}_post"]
    trained = [
        [*words, "--norm", "rbn", "--seed", seed, "--save-dir", run, *given[4:]]
        for seed, run in runs
    ]
    calls = {"train": trained, "evaluate": [[run, *given[4:]] for _, run in runs]}
    for verb, wanted in calls.items():
        out = succeed(f"{benchmark}/{verb}.sh", *given, cwd=tmp_path, path=stand_in)
        assert out.splitlines() == [
            word for call in wanted for word in (str(tmp_path), verb, *call)
        ]
        assert "SEED" in refusal(f"{benchmark}/{verb}.sh", *given[:2], path=stand_in)


def test_a_signal_ends_the_run_of_the_moment(stand_in):
    (stand_in / "rbn").write_text("#!/usr/bin/env bash\necho $$\nexec sleep 9\n")
    given = ("iwslt14/train.sh", "ln", "post", 1, 2)
    with script(*given, path=stand_in, call=subprocess.Popen) as process:
        run = int(process.stdout.readline())
        process.terminate()
        assert process.wait()
        with pytest.raises(ProcessLookupError):
            os.kill(run, 0)
        assert not process.stdout.read()  # of the other seed


def test_places_are_those_of_the_caller(stand_in, tmp_path, monkeypatch):
    for name in ("a", "b c"):
        (tmp_path / "my runs" / name).mkdir(parents=True)
    monkeypatch.setenv("RUNS", "my runs")
    monkeypatch.setenv("DATA", "d")
    here = {"cwd": tmp_path, "path": stand_in}
    out = succeed("wmt16/table.sh", **here)
    assert out.splitlines() == [str(tmp_path), "table", "my runs/a/", "my runs/b c/"]
    out = succeed("wmt16/evaluate.sh", "ln", "pre", 1, **here)
    assert out.splitlines() == [str(tmp_path), "evaluate", "my runs/pre-ln-seed1"]
    out = succeed("wmt16/train.sh", "ln", "pre", 1, **here).splitlines()
    assert out[:3] == [str(tmp_path), "train", "d"] and out[-1] == "my runs/pre-ln-seed1"


@pytest.mark.parametrize("benchmark", ["iwslt14", "wmt16"])
def test_prepare_hands_on_what_it_does_not_know(benchmark, stand_in, tmp_path):
    given = ("--archive", "none.tgz", "--merges", 7)
    out = succeed(f"{benchmark}/prepare.sh", *given, cwd=tmp_path, path=stand_in)
    output = ["--output", str(ROOT / "data" / benchmark)]
    assert out.splitlines() == [str(tmp_path), "prepare", benchmark, *output, *map(str, given)]


# Stands for curl: a bad line that sends half of a file and then the rest, or, with STATUS, a server
# that has nothing beyond what is there or sends no parts.
CURL = """#!/usr/bin/env bash
for word; do
    [[ $before == --output ]] && file=$word
    [[ $word == --continue-at ]] && resume=yes
    before=$word
done
if [[ $STATUS ]]; then
    [[ ! $resume ]] || exit "$STATUS"
    printf 'whole' >"$file"
elif [[ -s $file ]]; then
    [[ $resume ]] && printf 'second' >>"$file"
else
    printf 'first ' >"$file"
    exit 18
fi
"""


@pytest.fixture
def download(tmp_path):
    """A script that downloads to `file.tgz`, and the directory for its PATH."""
    (tmp_path / "curl").write_text(CURL)
    (tmp_path / "curl").chmod(0o755)
    call = f"source {ROOT}/scripts/common.sh\ndownload http://nowhere/x {tmp_path}/file.tgz\n"
    (tmp_path / "caller.sh").write_text(f"set -euo pipefail\n{call}")
    return tmp_path / "caller.sh"


def test_interrupted_download(download, tmp_path):
    """A part is never taken for the whole, and the next call goes on with it."""
    line = refusal(download, path=tmp_path)
    assert "http://nowhere/x" in line and not (tmp_path / "file.tgz").exists()
    succeed(download, path=tmp_path)
    assert (tmp_path / "file.tgz").read_text() == "first second"
    (tmp_path / "curl").write_text("#!/bin/sh\nexit 1\n")
    succeed(download, path=tmp_path)  # it is there: nothing is fetched


@pytest.mark.parametrize("status", [22, 33])  # curl's, for HTTP 416 and for no range at all
def test_download_killed_just_before_its_end(status, download, tmp_path, monkeypatch):
    monkeypatch.setenv("STATUS", str(status))
    (tmp_path / "file.tgz.unfinished").write_text("whole")
    assert script(download, path=tmp_path).returncode == 0
    assert (tmp_path / "file.tgz").read_text() == "whole"
