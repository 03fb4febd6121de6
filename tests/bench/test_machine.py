"""Floors: the operations of an update, the rate of a matrix product."""

from functools import partial

import pytest
import torch

from rbn_fairseq.bench import machine
from rbn_fairseq.bench.machine import MatrixProduct, count_flops, describe
from rbn_fairseq.bench.training import draw, make_trainer, train
from rbn_fairseq.models import attention
from rbn_fairseq.version import __version__
from runs import TINY


@pytest.mark.parametrize("criterion", ["cross_entropy", "label_smoothed_cross_entropy_rbn"])
def test_all_products_of_an_update_are_counted(data_bin, monkeypatch, criterion):
    # Attention in groups of equal lengths: no position in it is padding.
    monkeypatch.setattr(attention, "_FEW_ROWS", 0)
    monkeypatch.setattr(attention, "_LONGER", 1)
    options = [*TINY, "--optimizer", "adam", "--max-tokens", "1000", "--criterion", criterion]
    trainer = make_trainer(str(data_bin), options, "cpu")
    ((batch,),) = draw(trainer, 1, 1)
    sides = (batch["net_input"][name] for name in ("src_tokens", "prev_output_tokens"))
    pad = trainer.task.source_dictionary.pad()
    length, out = (side.ne(pad).sum(1) for side in sides)  # of each sentence
    source, target = int(length.sum()), int(out.sum())
    width, hidden, layers = 64, 128, 2
    square, feed_forward = width * width, 2 * width * hidden
    linear = target * width * len(trainer.task.target_dictionary) + layers * (
        source * (4 * square + feed_forward)  # the encoder's
        + target * (4 * square + 2 * square + feed_forward) + source * 2 * square  # the decoder's
    )  # fmt: skip
    pairs = layers * width * int((length**2 + out**2 + out * length).sum())
    # The backward takes two products for each, and computes attention's scores again.
    products = 3 * linear + (2 + 5) * pairs
    assert count_flops(partial(train, trainer, [batch])) == 2 * products


def test_a_floor_is_at_the_rate_of_a_product_of_large_matrices(monkeypatch):
    timed = []
    monkeypatch.setattr(machine, "milliseconds", lambda action, device: timed.append(action) or 8.0)
    # A product of matrices of side 1024 takes 2 * 1024^3 operations.
    assert MatrixProduct("cpu", torch.float32).milliseconds(1024**3) == pytest.approx(4.0)
    assert count_flops(timed[0]) == 2 * 1024**3


def test_machine_and_versions_are_told():
    about = describe("cpu")
    assert about["machine"]
    words = about["versions"]
    assert f"torch {torch.__version__}" in words and f"rbn_fairseq {__version__}" in words
    assert "fairseq 0.12.3" in words
    assert "Triton" not in words and "driver" not in words  # of GPUs


def test_what_makes_and_runs_kernels_is_told_of_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(machine, "_version", lambda package: {"triton": "3.2.0"}.get(package, ""))
    said = {"git": "", "nvidia-smi": "570.1\n570.1"}
    monkeypatch.setattr(machine, "_said", lambda program, *_: said[program])
    about = describe("cuda")
    assert about["machine"] == "a GPU"
    assert about["versions"].endswith("Triton 3.2.0, driver 570.1")
