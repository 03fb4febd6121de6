"""The runs under results/ are read without problems, and drawn all at once; scripts import."""

import ast
import re
import runpy
import sys
from importlib import import_module
from pathlib import Path

import pytest

from rbn_fairseq.report.blocks import Figure
from rbn_fairseq.report.content import sections
from rbn_fairseq.report.runs import name_runs, read_runs
from rbn_fairseq.report.setups import describe

RESULTS = Path(__file__).parents[2] / "results"
SCRIPTS = sorted(RESULTS.rglob("*.py"))
NO_ARGUMENTS = ("claims.py", "__init__.py")
RUNS = sorted(path.parent for path in RESULTS.glob("*/*/*/run.json"))


@pytest.fixture(scope="module")
def runs():
    return read_runs(name_runs(list(map(str, RUNS))))


def test_they_are_read_without_problems(runs):
    assert len(runs) >= 47 and {run.name: run.problems for run in runs if run.problems} == {}
    assert all(describe(run).sizes and len(run.valid) for run in runs)
    assert all(path.with_name("run.json").exists() for path in RESULTS.glob("*/runs/*/train.log"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(RESULTS)))
def test_what_a_script_takes_of_the_package_is_there(script):
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("rbn_fairseq"):
            module = import_module(node.module)
            assert {it.name for it in node.names} <= set(dir(module)), node.module


@pytest.mark.parametrize("script", [path for path in SCRIPTS if path.name not in NO_ARGUMENTS])
def test_a_script_tells_what_it_takes(script, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(RESULTS))
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(script), run_name="__main__")
    assert "usage:" in capsys.readouterr().out


def test_nothing_in_them_names_a_machine():
    for path in (*RESULTS.rglob("*.json*"), *RESULTS.rglob("*.log")):
        absolute = re.findall(r"['\"](/\w[^'\"]*)", path.read_text())
        assert set(absolute) <= {"/tmp/plasma"}, path  # a default of fairseq's


def test_the_figures_beside_them_are_those_of_the_report(runs):
    names = {it.name for part in sections(runs) for it in part.blocks if isinstance(it, Figure)}
    by_scripts = ("sampler/nll.png", "paper_size/nll.png", "tasks/gap.png")  # compare.py's
    of_scripts = {*RESULTS.glob("*/cost_by_epoch.png"), *(RESULTS / name for name in by_scripts)}
    committed = {path.stem for path in set(RESULTS.glob("*/*.png")) - of_scripts}
    assert committed <= names
