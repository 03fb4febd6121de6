"""`rbn table`: what it prints and writes, and what it refuses."""

import json

import pytest

from benchmark_runs import Runs
from command import rbn, user_error
from rbn_fairseq.checkpoints.files import read_checkpoint


@pytest.fixture
def made(rbn_run, tmp_path):
    return Runs(tmp_path, read_checkpoint(rbn_run / "checkpoint_last.pt")["cfg"])


def test_table(made, tmp_path):
    made.evaluate("post", "bn", 1, 31.5, 30.75)
    output = tmp_path / "rows.json"
    options = ("--runs", made.root, "--options", "--preset small", "--json", output)
    result = rbn("table", "iwslt14", *options)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert "| Post-BN             |           31.50 |                 30.75 |" in result.output
    train, evaluate = (
        f"bash scripts/iwslt14/{script}.sh rbn pre 1 2 3 --preset small"
        for script in ("train", "evaluate")
    )
    assert f"{train} && {evaluate}" in lines
    (row,) = json.loads(output.read_text())
    assert (row["placement"], row["norm"], row["seed"]) == ("post", "bn", 1)
    assert (row["tokenised"]["bleu"], row["tokenised"]["without_recalibration"]) == (31.5, 30.75)


def test_before_the_first_run(made):
    result = rbn("table", "wmt16", "--runs", made.root)
    assert result.exit_code == 0, result.output
    assert "compound-split BLEU4" in result.output and "no run is evaluated yet" in result.output
    assert "scripts/wmt16/train.sh rbn_official pre 1 2 3" in result.output


def test_refusals(capsys, made, tmp_path):
    line = user_error(capsys, "table", "wmt14", "--runs", made.root)
    assert "`wmt14`" in line and "iwslt14, wmt16" in line
    made.evaluate("post", "bn", 1, 30.0)
    made.evaluate("pre", "bn", 1, 30.0, epochs=[1])
    line = user_error(capsys, "table", "iwslt14", "--runs", made.root)
    assert "averaged epochs" in line and "post-bn-seed1" in line and "pre-bn-seed1" in line
    (made.root / "pre-bn-seed1").rename(tmp_path / "elsewhere")
    nowhere = tmp_path / "nowhere" / "rows.csv"
    line = user_error(capsys, "table", "iwslt14", "--runs", made.root, "--json", nowhere)
    assert str(nowhere.parent) in line
