"""Options of norms: every declared range against values on both sides of its ends."""

import dataclasses
import math

import pytest

from rbn_fairseq.norms import NORMS, NormOptions, option

INSIDE = {
    "(0, 1]": [1e-300, 0.5, 1],
    "[0, 1)": [0, 0.999999],
    "[1, inf)": [1, 1.5, 1e300],
    "(0, inf)": [5e-324, 7],
    "[-2, 2]": [-2, 0, 2],
}
OUTSIDE = {
    "(0, 1]": [0, -1, 1.0000001, math.inf, math.nan],
    "[0, 1)": [1, -5e-324, math.nan],
    "[1, inf)": [0.999, -math.inf, math.inf, math.nan],
    "(0, inf)": [0, -1, math.inf, math.nan],
    "[-2, 2]": [-2.1, 2.1, math.nan],
}


def options_of(**declared):
    """A class of options with one parameter, ``size``."""

    @dataclasses.dataclass(frozen=True)
    class Options(NormOptions, norm="mine"):
        size: float = option(1, "what it is", **declared)
        least: float = option(0, "the least")

    return Options


@pytest.mark.parametrize("range", INSIDE)
def test_ranges(range):
    options = options_of(range=range)
    for value in INSIDE[range]:
        assert options(size=value).size == value
    for value in (*OUTSIDE[range], None, "1"):  # torch's momentum may be None; ours may not
        with pytest.raises(ValueError, match="--norm-mine-size must be") as error:
            options(size=value)
        assert f"but is {value}. The default is 1." in str(error.value)


def test_a_parameter_that_another_one_bounds():
    options = options_of(at_least="least")
    assert options(size=3, least=3).size == 3
    for size, least in ((3, 4), (3, math.nan), (None, 0)):
        with pytest.raises(ValueError, match="--norm-mine-size.*`least`"):
            options(size=size, least=least)


def test_choices():
    options = options_of(choices=(1, "other"))
    assert options(size="other").size == "other"
    with pytest.raises(ValueError, match="--norm-mine-size.*`other`, but is another"):
        options(size="another")


def test_the_help_has_the_range():
    for declared, word in (
        ({"range": "(0, 1]"}, "(0, 1]"), ({"range": "[1, inf)"}, ">= 1"),
        ({"range": "(0, inf)"}, "positive"), ({"at_least": "least"}, ">= least"),
    ):  # fmt: skip
        text = dataclasses.fields(options_of(**declared))[0].metadata["help"]
        assert text.startswith("what it is") and word in text


@pytest.mark.parametrize("range", ["0, 1", "(0,1]", "[0, 1", "", "(a, b)"])
def test_what_is_no_interval(range):
    with pytest.raises(ValueError):
        options_of(range=range)()


@pytest.mark.parametrize("name", NORMS)
def test_every_numbers_range_is_declared(name):
    for field in dataclasses.fields(NORMS[name].options_type):
        declared = {"range", "at_least", "choices"} & field.metadata.keys()
        assert len(declared) == 1
        with pytest.raises(ValueError, match=f"--norm-{name}-{field.name.replace('_', '-')}"):
            NORMS[name].options_type(**{field.name: "?" if field.type is str else -1})
