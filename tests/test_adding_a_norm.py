"""docs/adding-a-norm.md: its code runs, and its norm works as the page says."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from rbn_fairseq.models import config
from rbn_fairseq.norms import NORMS, NormPlace, build_norm

PAGE = Path(__file__).resolve().parent.parent / "docs" / "adding-a-norm.md"


@pytest.fixture
def page(monkeypatch):
    """Names that the page's code defines; its norm is registered for one test."""
    monkeypatch.setitem(NORMS, "peak", None)  # taken back afterwards
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)  # where dataclasses look their module up
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), vars(module))
    return vars(module)


def test_the_page_runs_and_its_tests_pass(page):
    assert NORMS["peak"].options is page["PeakNormOptions"]


def test_its_norm_goes_into_plans(page):
    norm = build_norm(["groupscale", "peak"], NormPlace(8, heads=2), {})
    y = norm(torch.randn(3, 2, 8))
    assert torch.equal(y.abs().amax(-1), torch.ones(3, 2))


def test_it_is_what_its_docstring_says(page):
    """Also where the floor is larger, with options, and in fp64's precision."""
    norm = build_norm(["peak"], NormPlace(3), {"peak": page["PeakNormOptions"](floor=2.0)})
    x = torch.tensor([[3.0, -7.0, 1.0], [0.1, 0.0, -1.0], [0.0, 0.0, 0.0]], dtype=torch.double)
    divisors = torch.tensor([[7.0], [2.0], [2.0]], dtype=torch.double)
    # Divided once, then times 1.
    torch.testing.assert_close(norm.double()(x), x / divisors, rtol=1e-15, atol=0)


def test_its_options_become_fields(page):
    fields = {name: (kind, field) for name, kind, field in config.norm_fields()}
    kind, field = fields["norm_peak_floor"]
    assert kind is float and field.default == 1e-3 and "smallest divisor" in field.metadata["help"]


def test_its_error(page):
    with pytest.raises(ValueError, match="--norm-peak-floor.*positive.*-1"):
        page["PeakNormOptions"](floor=-1)
