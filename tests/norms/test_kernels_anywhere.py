"""Kernels of batch norm: what can be said without running them."""

import importlib
import itertools
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from rbn_fairseq.norms import Affine, kernels
from rbn_fairseq.norms.kernels import trial
from rbn_fairseq.norms.normalise import multiply_add

KERNELS = {
    "_moments_of_parts", "join_parts", "_finish", "_map", "_sums_of_parts", "_join_sums", "_dx",
    "_multiply_add",
}  # fmt: skip


@pytest.mark.nightly
def test_every_kernel_compiles_for_gpus(tmp_path):
    """For compute capability 8.0 (A100) one fp32 channel; for 9.0 (H100) 64 of bf16."""
    pytest.importorskip("triton")
    if not sys.platform.startswith("linux"):
        pytest.skip("Triton's assembler is Linux's")
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    path = str(Path(__file__).with_name("compiled_kernels.py"))
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


@pytest.fixture
def tiles():
    pytest.importorskip("triton")
    return importlib.import_module("rbn_fairseq.norms.kernels.parts")


@pytest.mark.parametrize("channels", [1, 3, 64, 256, 512, 513, 1024, 8192])
def test_tiles_cover_everything_once(channels, tiles):
    for tokens in (0, 1, 2, 31, 33, 1000, 4096, 65536, 1 << 20):
        cut = tiles.tiling(tokens, channels)
        assert cut.rows * (cut.row_tiles - 1) < max(1, tokens) <= cut.rows * cut.row_tiles
        assert cut.length * (cut.parts - 1) < cut.row_tiles <= cut.length * cut.parts
        assert cut.channels * (cut.blocks - 1) < channels <= cut.channels * cut.blocks
        assert cut.joined * (cut.joiners - 1) < channels <= cut.joined * cut.joiners
        assert cut.parts * cut.blocks <= tiles.PROGRAMS
        powers = (cut.rows, cut.channels, cut.joined)
        assert all(size & (size - 1) == 0 for size in powers)


@pytest.mark.parametrize(("tokens", "channels"), [(4096, 512), (65536, 256), (65536, 1024)])
def test_programs_are_enough_for_a_gpu(tokens, channels, tiles):
    cut = tiles.tiling(tokens, channels)
    assert cut.parts * cut.blocks >= 3 * 132  # multiprocessors of an H100


def stand_in(**attributes):
    """What the question looks at of a tensor on a GPU, ``(3,)``."""
    usual = {
        "is_cuda": True, "device": torch.device("cuda", 0),
        "dtype": torch.float32, "shape": torch.Size([3]), "is_contiguous": lambda: True,
    }  # fmt: skip
    return SimpleNamespace(**{**usual, **attributes})


@pytest.fixture
def launches(monkeypatch):
    """The trial launches, of which none runs; as on a fresh process with a GPU."""
    noted = []
    monkeypatch.setattr(trial, "_working", {})
    monkeypatch.setattr(trial, "_launch", lambda *place: noted.append(place))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return noted


@pytest.mark.parametrize("shape", [(3,), (7, 3), (4, 2, 3)], ids=str)
def test_kernels_serve_what_they_can(shape, launches):
    rows = stand_in(shape=torch.Size(shape), dtype=torch.float16)
    assert kernels.serve(rows, stand_in(), stand_in(dtype=torch.bfloat16))


UNSUITABLE_ROWS = {
    "on the CPU": {"is_cuda": False},
    "fp64": {"dtype": torch.float64},
    "other channels": {"shape": torch.Size([3, 8])},
}
UNSUITABLE_VECTORS = {
    "fp64": {"dtype": torch.float64},
    "on another GPU": {"device": torch.device("cuda", 1)},
    "on the CPU": {"device": torch.device("cpu")},
    "strided": {"is_contiguous": lambda: False},
    "other channels": {"shape": torch.Size([4])},
    "one number": {"shape": torch.Size([1])},
    "a matrix": {"shape": torch.Size([1, 3])},
}


@pytest.mark.parametrize("attributes", UNSUITABLE_ROWS.values(), ids=UNSUITABLE_ROWS)
def test_rows_that_are_not_served(attributes, launches):
    assert not kernels.serve(stand_in(**attributes), stand_in())


@pytest.mark.parametrize("attributes", UNSUITABLE_VECTORS.values(), ids=UNSUITABLE_VECTORS)
def test_vectors_that_are_not_served(attributes, launches):
    assert not kernels.serve(stand_in(), stand_in(), stand_in(**attributes))


def test_scale_and_shift_are_both_looked_at(monkeypatch):
    asked = []
    monkeypatch.setattr(kernels, "serve", lambda *tensors: asked.append(tensors))
    x, scale, shift = torch.ones(2, 3, dtype=torch.float16), torch.ones(3), torch.zeros(3)
    with torch.no_grad():
        multiply_add(x, scale, shift)
    assert [list(map(id, tensors)) for tensors in asked] == [[id(x), id(scale), id(shift)]]


RECORDERS = {
    "compiled": lambda norm, x: torch.compile(norm, backend="eager", fullgraph=True),
    "traced": lambda norm, x: torch.jit.trace(norm, x, check_trace=False),
}


@pytest.mark.parametrize("record", RECORDERS.values(), ids=RECORDERS)
@torch.no_grad()
def test_evaluation_that_is_recorded_is_torchs(record, monkeypatch):
    """A recorder of torch's operations sees no launch."""
    serve = mock.Mock(side_effect=AssertionError)
    monkeypatch.setattr(kernels, "serve", serve)
    norm, x = Affine(3), torch.randn(4, 3).half()
    with pytest.raises(AssertionError):
        norm(x)
    recorded = record(norm, x)
    norm.scale.mul_(2)
    assert torch.equal(recorded(x + 1), (2 * (x + 1).float()).half())


def test_a_gpu_is_tried_once_for_each_dtype(launches):
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    for _ in range(2):
        assert kernels.serve(stand_in()) and kernels.serve(stand_in(dtype=torch.float16))
        assert kernels.serve(stand_in(device=second))
    assert launches == [(first, torch.float32), (first, torch.float16), (second, torch.float32)]


@pytest.mark.parametrize("reason", [ModuleNotFoundError("no triton"), RuntimeError("no compiler")])
def test_where_triton_does_not_work_is_said_once(reason, launches, monkeypatch, caplog):
    monkeypatch.setattr(trial, "_launch", mock.Mock(side_effect=reason))
    with caplog.at_level(logging.WARNING):
        assert not kernels.serve(stand_in()) and not kernels.serve(stand_in())
    assert [record.message for record in caplog.records] == [
        f"Triton does not work on GPU 0 with torch.float32 ({type(reason).__name__}: {reason}): "
        "batch norm runs without its kernels, slower"
    ]


def test_nothing_is_tried_while_a_graph_is_captured(launches, monkeypatch):
    with monkeypatch.context() as capturing:
        capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert not kernels.serve(stand_in())
    assert launches == []
    assert kernels.serve(stand_in())


def test_the_trial_launches_a_kernel(device):
    transform = importlib.import_module("rbn_fairseq.norms.kernels.function").transform
    with mock.patch("rbn_fairseq.norms.kernels.function.transform", wraps=transform) as launched:
        trial._launch(torch.device(device), torch.bfloat16)
    (rows, *_), _ = launched.call_args
    assert rows.dtype == torch.bfloat16


def test_compiled_code_asks_without_a_break(launches, monkeypatch):
    """A compiled model takes the answer as it is while it compiles."""

    def forward(x):
        return x + 1 if trial.works(0, x.dtype) else x

    compiled = torch.compile(forward, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.zeros(3)), torch.ones(3)) and len(launches) == 1
