"""The examples run, and say what is so."""

import importlib.util
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
