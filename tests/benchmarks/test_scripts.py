"""Each script once on small data; what they refuse; committed rows as tables."""

import json
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from typer.testing import CliRunner

import generation
import monitor
import norms
import updates
from runs import TINY

ROOT = Path(__file__).resolve().parents[2]
CRITERION = "label_smoothed_cross_entropy_rbn"
SMALL = ("--", *TINY, "--optimizer", "adam", "--max-tokens", "600")


def run(script, *arguments):
    """Run a script in this process; return its rows and the tables that it printed."""
    given = map(str, ("--json", "-", "--rounds", 1, *arguments))
    with mock.patch("script.keep_freed_memory"):  # of the process, for good
        result = CliRunner().invoke(script.app, list(given), catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout), result.stderr


def test_norms(data_bin):
    rows, table = run(norms, data_bin, "--norm", "rms", "--norm", "torch-batch", "--channels", 8)
    names = ["layer", "rms", "torch-batch"]
    assert [(row["case"], row["norm"]) for row in rows] == [
        (side, name) for side in ("source", "target") for name in names
    ]
    assert all(row["ms"] > 0 for row in rows)
    assert rows[0]["machine"] and rows[0]["versions"] and "torch-batch" in table


def test_updates_with_fairseqs_own_model_and_mixed_batches(data_bin):
    rows, table = run(
        updates, data_bin, "--setting", "fairseq", "--setting", "rbn", "--setting",
        "mixed: --norm-encoder batch --length-mixing 4", "--updates", 1, *SMALL,
        "--criterion", CRITERION,
    )  # fmt: skip
    times, memory = rows[:3], rows[3:]
    assert [row["norm"] for row in times] == ["fairseq", "rbn", "mixed"]
    assert all(row["bench"] == "train" and row["tokens"] > 0 and row["ms"] > 0 for row in times)
    assert [row["norm"] for row in memory] == ["fairseq", "rbn", "mixed"]
    sizes = [row["bytes"] for row in memory if row["bench"] == "memory"]
    assert [row["ratio_to_layer"] for row in memory] == [size / sizes[0] for size in sizes]
    assert len(set(sizes)) > 1
    assert "us per real token" in table and "MiB" in table


def six_milliseconds(action, device):
    """Run what is timed, and say that it took as long."""
    action()
    return 6.0


def test_generation(data_bin, monkeypatch):
    monkeypatch.setattr(generation, "milliseconds", six_milliseconds)
    rows, _ = run(generation, data_bin, "--batches", 2, "--beam", 2, "--steps", 2, *SMALL)
    assert {row["ms"] for row in rows} == {3.0}  # of a batch
    names = ["fairseq", "layer", "batch", "folded", "none"]
    assert [row["norm"] for row in rows] == names * 4
    assert (rows[0]["case"], rows[-1]["case"]) == ("post-norm, encoder", "pre-norm, beam 2")


def test_monitor(data_bin, monkeypatch):
    monkeypatch.setattr(monitor, "milliseconds", six_milliseconds)  # for 20 batches
    rows, _ = run(monitor, data_bin, *SMALL, "--norm-encoder", "batch")
    epoch = int(rows[0]["norm"].removesuffix(" updates"))
    assert epoch < 200  # of which the monitor would take a sample
    assert [row["norm"] for row in rows[1:]] == [f"TID of {epoch} batches", "TID of all batches"]
    assert [row["ms"] for row in rows] == pytest.approx([0.3 * epoch] * 3)


@pytest.mark.parametrize(
    "script, arguments, named",
    [
        (norms, ("--norm", "bacth"), "--norm"),
        (norms, ("--json", "nowhere/rows.json"), "--json"),
        (updates, ("--setting", "--norm-encoder batch"), "--setting"),
        (updates, ("--setting", "x: --norm-encoder nonsense", *SMALL), "`x`: --norm-encoder"),
        (updates, (*SMALL, "--norm-encoder", "batch"), "`fairseq`: .*--norm-encoder"),
    ],
)
def test_what_is_refused(data_bin, script, arguments, named):
    with pytest.raises(ValueError, match=named):
        run(script, data_bin, *arguments)


def test_committed_rows_are_read():
    """By a process of its own, as all scripts run."""
    files = list(ROOT.glob("results/performance/cpu/*.json"))
    command = [sys.executable, ROOT / "benchmarks/table.py", *files]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line.split("|")[1:3] for line in printed.splitlines() if line.startswith("|")]
    cells = {(case.strip(), norm.strip()) for case, norm in lines}
    rows = [row for path in files for row in json.loads(path.read_text())]
    assert rows and {(row["case"], row["norm"]) for row in rows} <= cells
