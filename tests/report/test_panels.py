"""The figures of runs: what they show."""

import pytest

from rbn_fairseq.report.figures import colours, draw
from rbn_fairseq.report.runs import LayerTID, Run, TIDPoint, Validation


def make_run(name, shift=0.0):
    validations = tuple(Validation(e, 100 * e, 6 - e + shift, 5.5 - e + shift) for e in (1, 2))
    first = LayerTID("a", 0.25, 0.01 + shift)
    points = tuple(
        TIDPoint(e, 100 * e, (first, LayerTID("b", 0.015 + e / 100, 0.2))) for e in range(3)
    )
    score = {"bleu": 12.34 + shift, "brevity_penalty": 0.9, "signature": "nrefs:1|<tok>"}
    tid = () if name == "layer" else points
    return Run(name, validations, tid, 90.0, {"sacrebleu": score})


RUNS = [make_run("layer"), make_run("batch", 0.01), make_run("rbn", 0.02)]


def test_colour_of_a_norm_is_always_the_same():
    assert colours(["rbn"])["rbn"] == colours(["x", "layer", "rbn", "y"])["rbn"]
    several = colours(["layer", "batch", "rbn", "x", "y", "z"])
    assert len(set(several.values())) == 6


@pytest.mark.parametrize(
    "panel, expected",
    [
        ("valid_loss", {"layer": [4.5, 3.5], "batch": [4.51, 3.51]}),
        ("tid_mean", {"batch": [1.5, 2.5, 3.5]}),
        ("tid_variance", {"rbn": [20, 20, 20]}),
    ],
)
def test_curves(panel, expected):
    axes = draw([panel], RUNS).axes[0]
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}
    for name, values in expected.items():
        assert lines[name] == pytest.approx(values)
    assert ("layer" in lines) == (panel == "valid_loss")
    dashed = [line.get_ydata() for line in axes.get_lines() if line.get_linestyle() == "--"]
    if panel == "tid_mean":
        assert list(dashed[0]) == pytest.approx([13.25, 13.75, 14.25])  # of both layers
    colour = {line.get_label(): line.get_color() for line in axes.get_lines()}
    assert colour["rbn"] == colours(["rbn"])["rbn"]


def test_bars():
    axes = draw(["tid_mean_by_layer"], RUNS).axes[0]
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    assert heights == [pytest.approx([25, 3.5])] * 2


def test_many_runs():
    """As many as a grid has: each has its colour, and no legend squeezes the panel."""
    names = [f"run{number}" for number in range(16)]
    assert len(set(colours(["rbn", *names]).values())) == 17
    few, many = (
        draw(["tid_mean"], [make_run(name) for name in chosen]) for chosen in (names[:3], names)
    )
    named = [
        [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        for figure in (few, many)
    ]
    assert named == [[*names[:3], "last layer", "average"], ["last layer", "average"]]
    assert (
        draw(["tid_mean_by_layer"], [make_run(name) for name in names]).axes[0].get_legend() is None
    )
