"""The examples run, and say what is so."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from rbn_fairseq.diagnostics import batch_norms, measure_tid

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def two_passes(model, batches):
    """Measure as the paper does: torch's norms average the statistics, then are compared."""
    for norm in batch_norms(model).values():
        norm.momentum = None  # torch: the plain mean over batches
        norm.reset_running_stats()
    model.train()
    seen = {name: [] for name in batch_norms(model)}
    with torch.no_grad():
        for batch in batches:
            model(batch)
        population = {
            name: (norm.running_mean.clone(), norm.running_var.clone())
            for name, norm in batch_norms(model).items()
        }
        for batch in batches:
            for norm in batch_norms(model).values():
                norm.reset_running_stats()
            model(batch)
            for name, norm in batch_norms(model).items():
                (mean, var), scale = population[name], population[name][1].sqrt().norm()
                row = (norm.running_mean - mean).norm() / scale
                seen[name].append((row, (norm.running_var.sqrt() - var.sqrt()).norm() / scale))
    return {name: torch.tensor(rows).mean(0).tolist() for name, rows in seen.items()}


def test_digits_measures_what_two_passes_of_torch_measure(capsys):
    digits = load("digits")
    torch.manual_seed(3)
    images, classes = digits.load()
    model = digits.build(channels=5, blocks=1)
    digits.train(model, images[:640], classes[:640], epochs=1)
    batches = list(images[:640].split(64))
    ours = measure_tid(model, batches)
    assert list(ours) == ["1", "3.norm1", "3.norm2"]
    for name, value in two_passes(model, batches).items():
        # torch keeps unbiased variances: 4,096 positions, half of 1/4096 in the root.
        assert ours[name] == pytest.approx(value, rel=1e-3), name
        assert min(value) > 1e-3
    digits.tell(model, images[:640])
    shown = capsys.readouterr().out
    assert all(name in shown for name in ours)
    assert isinstance(model[1], nn.BatchNorm2d)


def test_digits_learns(capsys):
    load("digits").main(2)
    shown = capsys.readouterr().out
    assert "after 2 epochs" in shown
    assert float(shown.split("epochs, ")[1].split(" %")[0]) > 50  # one in ten by chance


_NOTEBOOK = """
import json, sys
sys.modules["fairseq"] = None  # importing it now raises ModuleNotFoundError
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]))
print()
print(json.dumps([tid_of, conditional, losses]))
"""


@pytest.mark.nightly
def test_notebook_shows_what_it_says():
    notebook = str(EXAMPLES / "tid_of_any_model.ipynb")
    done = subprocess.run(
        [sys.executable, "-c", _NOTEBOOK, notebook],
        env=os.environ | {"MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    tid, given_length, losses = json.loads(done.stdout.splitlines()[-1])
    for name, (mean, _) in tid["bucketed"].items():
        assert mean > 2 * tid["mixed"][name][0], name
        assert mean > 2 * given_length["bucketed"][name][0], name
    bucketed, mixed = losses["bucketed"], losses["mixed"]
    own, by_length = bucketed["each batch's own"], bucketed["recalibrated, by length"]
    assert bucketed["running"] > bucketed["recalibrated"] > own + 0.05
    assert by_length < own + 0.05
    assert mixed["running"] < mixed["each batch's own"] + 0.05
