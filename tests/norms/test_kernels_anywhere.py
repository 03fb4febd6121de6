"""Kernels of batch norm: what can be said without running them."""

import itertools
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rbn_fairseq.norms import kernels
from rbn_fairseq.norms.kernels import tiles

KERNELS = {
    "_moments_of_parts", "_join_parts", "_finish", "_map", "_sums_of_parts", "_join_sums", "_dx",
    "_multiply_add",
}  # fmt: skip


def test_every_kernel_compiles_for_gpus(tmp_path):
    """For compute capability 8.0 (A100) one fp32 channel; for 9.0 (H100) 64 of bf16."""
    pytest.importorskip("triton")
    if not sys.platform.startswith("linux"):
        pytest.skip("Triton's assembler is Linux's")
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    path = str(Path(__file__).parents[1] / "compiled_kernels.py")
    program = (  # without fairseq, which takes seconds
        "import runpy, sys; sys.modules['fairseq'] = None; "
        f"runpy.run_path({path!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    compiled = {tuple(line.split()) for line in done.stdout.splitlines()}
    assert compiled == set(itertools.product(KERNELS, ("80", "90")))


@pytest.mark.parametrize("channels", [1, 3, 64, 256, 512, 513, 1024, 8192])
def test_tiles_cover_everything_once(channels):
    for tokens in (1, 2, 31, 33, 1000, 4096, 65536, 1 << 20):
        cut = tiles.tiling(tokens, channels)
        assert cut.rows * (cut.row_tiles - 1) < tokens <= cut.rows * cut.row_tiles
        assert cut.length * (cut.parts - 1) < cut.row_tiles <= cut.length * cut.parts
        assert cut.channels * (cut.blocks - 1) < channels <= cut.channels * cut.blocks
        assert cut.joined * (cut.joiners - 1) < channels <= cut.joined * cut.joiners
        assert cut.parts * cut.blocks <= tiles.PROGRAMS
        powers = (cut.rows, cut.channels, cut.joined)
        assert all(size & (size - 1) == 0 for size in powers)


@pytest.mark.parametrize(("tokens", "channels"), [(4096, 512), (65536, 256), (65536, 1024)])
def test_programs_are_enough_for_a_gpu(tokens, channels):
    cut = tiles.tiling(tokens, channels)
    assert cut.parts * cut.blocks >= 3 * 132  # multiprocessors of an H100


def stand_in(**attributes):
    """What the question looks at of a tensor on a GPU."""
    usual = {
        "is_cuda": True, "numel": lambda: 1, "device": SimpleNamespace(index=0),
        "dtype": torch.float32,
    }  # fmt: skip
    return SimpleNamespace(**{**usual, **attributes})


@pytest.fixture
def first_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    kernels._have_triton.cache_clear()
    yield
    kernels._have_triton.cache_clear()


UNSUITABLE = {
    "on the CPU": {"is_cuda": False},
    "empty": {"numel": lambda: 0},
    "another GPU": {"device": SimpleNamespace(index=1)},
    "fp64": {"dtype": torch.float64},
}


@pytest.mark.parametrize("attributes", UNSUITABLE.values(), ids=UNSUITABLE)
def test_kernels_serve_what_they_can(attributes, first_gpu, monkeypatch):
    monkeypatch.setattr(kernels, "find_spec", lambda name: object())
    assert kernels.serve(stand_in(), stand_in(dtype=torch.bfloat16))
    assert not kernels.serve(stand_in(**attributes), stand_in())


def test_fp64_parameters_are_not_served(first_gpu, monkeypatch):
    monkeypatch.setattr(kernels, "find_spec", lambda name: object())
    assert not kernels.serve(stand_in(), stand_in(), stand_in(dtype=torch.float64))


def test_missing_triton_is_said_once(first_gpu, monkeypatch, caplog):
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    with caplog.at_level(logging.WARNING):
        assert not kernels.serve(stand_in()) and not kernels.serve(stand_in())
    assert [record.message for record in caplog.records] == [
        "Triton is not installed: batch norm runs without its kernels, slower"
    ]
