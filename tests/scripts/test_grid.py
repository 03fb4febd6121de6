"""The box of time of scripts/iwslt14/grid.sh, with stand-ins for training and evaluation."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from shell import ROOT, script

# Each stand-in writes what the real command leaves behind. `slow` makes one cell endless, `fail`
# one fail.
TRAIN = """#!/usr/bin/env bash
for word; do
    case $word in
        hydra.run.dir=*) run=${word#*=} ;;
        criterion.rbn_mean_weight=*) mean=${word#*=} ;;
        criterion.rbn_std_weight=*) std=${word#*=} ;;
    esac
done
echo "mean$mean-std$std" >>"$LOG"
[[ $FAIL == "mean$mean-std$std" ]] && exit 3
mkdir -p "$run/.hydra"
echo "  norm_encoder: batch" >"$run/.hydra/config.yaml"
echo "$mean $std $CUDA_VISIBLE_DEVICES $*" >"$run/checkpoint_last.pt"
[[ $SLOW == "mean$mean-std$std" ]] && echo $$ >"$PIDS" && sleep 100
touch "$RUNNING/$$"
ls "$RUNNING" | wc -l >>"$AT_A_TIME"
sleep "${SECONDS_A_CELL:-0}"
rm "$RUNNING/$$"
"""
RBN = """#!/usr/bin/env bash
case $1 in
    hydra-train) source "${0%/*}/hydra-train" ;;
    generate) echo "D-0" ;;
    report) echo "$@" >"$REPORT" ;;
    *) while (($#)); do [[ $1 == --output || $1 == --json ]] && echo x >"$2"; shift; done ;;
esac
"""


@pytest.fixture
def grid(tmp_path, monkeypatch):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("hydra-train", TRAIN), ("rbn", RBN)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    data = tmp_path / "data"
    (data / "bin").mkdir(parents=True)
    (data / "bin" / "about.json").write_text("{}")
    log, report = tmp_path / "log", tmp_path / "report"
    monkeypatch.setenv("LOG", str(log))
    monkeypatch.setenv("REPORT", str(report))
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    monkeypatch.setenv("RUNNING", str(tmp_path / "running"))
    monkeypatch.setenv("AT_A_TIME", str(tmp_path / "at_a_time"))
    (tmp_path / "running").mkdir()

    def call(*options, minutes=1, **variables):
        log.write_text("")
        report.write_text("")
        with pytest.MonkeyPatch.context() as patch:
            for name in ("FAIL", "SLOW", "SECONDS_A_CELL"):
                patch.setenv(name, str(variables.get(name, "")))
            done = script(
                "iwslt14/grid.sh", "--minutes", minutes, "--data", data,
                "--runs", tmp_path / "runs",
                *options, path=tools,
            )  # fmt: skip
        cells = {word.partition("=")[0] for word in report.read_text().split() if "mean" in word}
        return done, log.read_text().split(), cells

    call.runs = tmp_path / "runs"
    return call


NAMES = [f"mean{mean}-std{std}" for mean in (0, 0.01, 0.1, 1) for std in (0, 0.01, 0.1, 1)]


def test_all_cells(grid, tmp_path):
    done, trained, reported = grid("--parallel", 4)
    assert done.returncode == 0, done.stderr
    assert sorted(trained) == sorted(NAMES) and reported == set(NAMES)
    # Of a Post-Norm model with seed 1, and all in one place.
    assert [path.name for path in grid.runs.iterdir()] == ["post-seed1"]
    assert f"--output {grid.runs / 'post-seed1' / 'report'} " in (tmp_path / "report").read_text()
    # Again: everything is there.
    done, trained, reported = grid("--parallel", 4)
    assert done.returncode == 0 and trained == [] and reported == set(NAMES)


def test_a_failed_cell_is_told_and_its_row_is_left_out(grid):
    done, _, reported = grid("--parallel", 4, FAIL="mean0.1-std0.01")
    assert done.returncode == 0
    assert "mean0.1-std0.01: failed, exit status 3" in done.stderr
    log = grid.runs / "post-seed1" / "mean0.1-std0.01" / "log"
    assert str(log) in done.stderr and "hydra-train" in log.read_text()
    assert "row lambda = 0.1: 3 of 4 cells" in done.stderr
    assert reported == {name for name in NAMES if not name.startswith("mean0.1-")}
    done, trained, reported = grid("--parallel", 4)
    assert trained == ["mean0.1-std0.01"] and reported == set(NAMES)


def test_cells_on_several_gpus(grid, tmp_path):
    grid("--parallel", 2, "--gpus", 2, SECONDS_A_CELL=0.1)
    assert set((tmp_path / "at_a_time").read_text().split()) == {"1", "2"}
    used = [path.read_text().split()[2] for path in grid.runs.glob("*/*/*/checkpoint_last.pt")]
    assert sorted(used) == ["0"] * 8 + ["1"] * 8


def test_cells_on_the_users_gpus(grid, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    grid("--parallel", 2, "--gpus", 2)
    used = [path.read_text().split()[2] for path in grid.runs.glob("*/*/*/checkpoint_last.pt")]
    assert sorted(used) == ["4"] * 8 + ["6"] * 8


def test_hidden_gpus_stay_hidden(grid, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    grid("--parallel", 2)
    used = [path.read_text().split(" ")[2] for path in grid.runs.glob("*/*/*/checkpoint_last.pt")]
    assert used == [""] * 16


def test_the_time_is_over(grid, tmp_path):
    """What runs is stopped, and what would not be finished in time is not begun."""
    begun = time.monotonic()
    done, trained, reported = grid(
        "--parallel", 1, minutes=0.2, SLOW="mean0.01-std0", SECONDS_A_CELL=1
    )
    assert 11 < time.monotonic() - begun < 19  # 0.2 minutes, and what bash itself takes
    assert "mean0.01-std0: stopped" in done.stderr
    assert "mean0.01-std0.01: not begun" in done.stderr
    assert trained == NAMES[:5] and reported == set(NAMES[:4])


def test_a_cell_that_would_not_be_finished_is_not_begun(grid):
    done, trained, _ = grid("--parallel", 1, minutes=0.1, SECONDS_A_CELL=3.5)
    assert trained == NAMES[:1] and "mean0-std0.01: not begun" in done.stderr


def test_no_row(grid):
    done, trained, _ = grid("--parallel", 1, minutes=0)
    assert done.returncode == 1 and trained == []
    assert "no row of the grid is whole yet" in done.stderr


def test_fewer_gpus_than_asked_for(grid, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    done, trained, _ = grid("--parallel", 2, "--gpus", 3)
    assert done.returncode == 1 and trained == []
    assert "--gpus 3" in done.stderr and "has 2" in done.stderr


def test_cells_of_other_settings_are_not_mixed(grid):
    assert grid("--parallel", 4, "--max-epoch", 1)[0].returncode == 0
    done, trained, _ = grid("--parallel", 4)
    assert done.returncode == 1 and trained == []
    assert "other settings" in done.stderr and "--max-epoch 1" in done.stderr


def test_overrides_reach_every_cell(grid):
    grid("--parallel", 4, "--", "common.fp16=true")
    assert all("fp16" in path.read_text() for path in grid.runs.glob("*/*/*/checkpoint_last.pt"))
    assert len(list(grid.runs.glob("*/*/*/checkpoint_last.pt"))) == 16


def test_interrupted(grid, tmp_path, monkeypatch):
    """Cells do not go on without the command that began them."""
    monkeypatch.setenv("SLOW", "mean0-std0")
    monkeypatch.setenv("FAIL", "")
    command = [
        "bash", ROOT / "scripts" / "iwslt14" / "grid.sh", "--minutes", "1", "--parallel", "1",
        "--data", tmp_path / "data", "--runs", tmp_path / "runs",
    ]  # fmt: skip
    path = f"{tmp_path / 'tools'}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(command, env={**os.environ, "PATH": path}, cwd=ROOT)
    pids = tmp_path / "pids"
    try:
        wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    finally:
        process.terminate()
    process.wait(timeout=10)
    cell = pids.read_text().strip()
    wait_until(lambda: not runs(cell))


def runs(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition):
    for _ in range(200):
        if condition():
            return
        time.sleep(0.05)
    raise TimeoutError
