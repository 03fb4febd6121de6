"""Settings are computed, not run: against what Python makes of them."""

import pytest
from fairseq import utils

from rbn_fairseq.checkpoints.safe import compute


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
