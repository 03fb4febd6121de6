"""Settings are computed, not run: against what Python makes of them."""

import gc
import sys
from types import ModuleType

import pytest
from fairseq import utils

from rbn_fairseq.checkpoints.safe import compute, run_no_settings


@pytest.mark.parametrize(
    "text",
    [
        "(0.9, 0.98)", " [(512, 3)] * 20", "[(512, 3)] * 9 + [(1024, 1)]", "True", "None", "-1e-5",
        "{'name': 'x', 'y': [1]}", "'relu'", "[3,7,15]", "2 * (3 - 1)", "()",
    ],
)  # fmt: skip
def test_as_python(text):
    assert compute(text) == eval(text.strip())


@pytest.mark.parametrize(
    "text",
    [
        "print()", "[print()]", "(1, print())", "{1: print()}", "[1] * print()", "x", "x.y", "x[0]",
        "[i for i in ()]", "lambda: 0", "f'{print()}'", "(x := 1)", "relu(", "", "1 if 1 else 2",
        "[" * 9999, "\0", "1/1000",
    ],
)  # fmt: skip
def test_all_else_is_refused(text):
    with pytest.raises(ValueError, match="may hold literals .*Nothing of it was run"):
        compute(text)


def test_fairseq_computes():
    assert utils.eval_str_list("[1, 2]", type=int) == [1, 2]
    assert utils.eval_bool(True, default=True) is True  # no text
    with pytest.raises(ValueError, match="Nothing of it was run"):
        utils.eval_bool("print()")


class Imports:
    """Imports a module when the garbage collector finds it, as another thread might."""

    def __init__(self, modules):
        self.modules, self.itself = modules, self

    def __del__(self):
        self.modules[f"late_{id(self)}"] = ModuleType("late")


def test_modules_may_be_imported_meanwhile(monkeypatch):
    modules = {**sys.modules, **{f"more_{number}": ModuleType("more") for number in range(5000)}}
    monkeypatch.setattr(sys, "modules", modules)
    thresholds = gc.get_threshold()
    gc.collect()
    Imports(modules)
    gc.set_threshold(2000)  # containers, of which each item of a dictionary may be one
    try:
        run_no_settings()
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert any(name.startswith("late_") for name in modules)
