"""The examples run, and say what is so."""

import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
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


def test_resnet_measures_what_two_passes_of_torch_measure(capsys):
    example = load("resnet18")
    torch.manual_seed(3)
    images, _ = example.digits()
    images = example.Images(images.pixels[:640], images.classes[:640])
    model = example.build(1, (5, 7), blocks=1)
    example.train(model, images, epochs=1)
    batches = list(images.pixels.split(64))
    ours = measure_tid(model, batches)
    second = ("4.norm1", "4.shortcut.1", "4.norm2")  # as they run
    assert list(ours) == ["1", "3.norm1", "3.norm2", *second]
    for name, value in two_passes(model, batches).items():
        # torch keeps unbiased variances: 1,024 positions at least, half of 1/1024 in the root.
        assert ours[name] == pytest.approx(value, rel=2e-3), name
        assert min(value) > 1e-3
    example.tell(model, images)
    shown = capsys.readouterr().out
    assert all(name in shown for name in ours)
    assert isinstance(model[1], nn.BatchNorm2d)


def test_resnet18_is_of_its_size():
    example = load("resnet18")
    model = example.build(3, example.RESNET18)
    convolutions = [part for part in model.modules() if isinstance(part, nn.Conv2d)]
    plain = [part for part in convolutions if part.kernel_size == (3, 3)]
    assert len(plain) + 1 == 18  # and the last layer
    assert sum(weight.numel() for weight in model.parameters()) == 11_173_962  # with CIFAR's stem
    assert model[:-3](torch.zeros(1, 3, 32, 32)).shape == (1, 512, 4, 4)


def test_digits_are_learnt(capsys):
    load("resnet18").main(epochs=2)
    shown = capsys.readouterr().out
    assert "after 2 epochs" in shown
    assert float(shown.split("epochs, ")[1].split(" %")[0]) > 50  # one in ten by chance


def write_archive(path, images=8, size=3073, without=""):
    """CIFAR-10's binary archive, of few images: pixel by pixel the number of the image."""
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    with tarfile.open(path, "w:gz") as tar:
        for part, name in enumerate(name for name in names if name != without):
            rows = [
                bytes([row % 10]) + bytes([8 * part + row]) * (size - 1) for row in range(images)
            ]
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = images * size
            tar.addfile(member, io.BytesIO(b"".join(rows)))


def test_cifar10s_archive_is_read(tmp_path):
    example = load("resnet18")
    write_archive(tmp_path / "cifar.tar.gz")
    train, test = example.cifar10(tmp_path / "cifar.tar.gz")
    assert train.pixels.shape == (40, 3, 32, 32) and test.pixels.shape == (8, 3, 32, 32)
    assert train.classes.tolist() == 5 * list(range(8)) and test.classes.tolist() == list(range(8))
    numbers = torch.arange(48.0)
    expected = (numbers - numbers[:40].mean()) / numbers[:40].std(correction=0)
    seen = torch.cat([train.pixels, test.pixels])[:, 2, 31, 0]
    torch.testing.assert_close(seen, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("wrong", [{"size": 3072}, {"without": "test_batch.bin"}])
def test_another_archive_is_refused(tmp_path, wrong):
    write_archive(tmp_path / "cifar.tar.gz", **wrong)
    with pytest.raises(ValueError, match="cifar-10-binary"):
        load("resnet18").cifar10(tmp_path / "cifar.tar.gz")


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
