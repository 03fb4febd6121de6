"""Norms and diagnostics in a process that has no fairseq, or not what the plugin needs beside."""

import subprocess
import sys

import pytest

_PROGRAM = """
import sys
sys.modules["fairseq"] = None  # importing it now raises ModuleNotFoundError

import torch
import rbn_fairseq.diagnostics as diagnostics
from rbn_fairseq.norms import NORMS, NormPlace, ValidTokens, build_norm, lay_out, record_gaps

x, mask = torch.randn(4, 2, 3), torch.ones(4, 2, dtype=torch.bool)
tokens, (layout,) = ValidTokens(mask), lay_out(mask, time_first=True)
for name in NORMS:
    norm, wide = build_norm([name], NormPlace(16, heads=4), {}), torch.randn(4, 2, 16)
    assert norm(wide, tokens).shape == wide.shape
    assert norm(layout.pack(wide), layout).shape == (8, 16)
norm = build_norm(["batch"], NormPlace(3), {})
with record_gaps() as gaps:
    norm(x.requires_grad_(), tokens).square().sum().backward()
assert len(gaps) == 1 and x.grad is not None
layers = diagnostics.collect_moments(norm, [x, 2 * x])
assert diagnostics.tid(layers[""]).mean > 0
diagnostics.recalibrate(norm, [x])
assert not [name for name in sys.modules if name.startswith("fairseq.")]
for slow in ("triton", "torch._dynamo"):  # which take seconds to load
    assert slow not in sys.modules, slow
"""


def test_norms_and_diagnostics_work_without_fairseq():
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first, second", ["rf", "fr"])
def test_fairseq_without_the_plugins_packages(first, second):
    lines = {"f": "import fairseq", "r": "from rbn_fairseq.norms import BatchNorm"}
    lacking = "import sys; sys.modules['torchcrf'] = sys.modules['tensorboardX'] = None"
    program = "\n".join([lacking, lines[first], lines[second], "BatchNorm(3)"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
