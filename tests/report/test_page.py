"""The page and the figures: what they show, and that they need nothing else."""

import csv
import io
import re
from html.parser import HTMLParser

import pytest

from rbn_fairseq.report.figures import colours, draw
from rbn_fairseq.report.page import render, write_report
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


class Rows(HTMLParser):
    """Cells of the page's table, and every address that a browser would load."""

    def __init__(self):
        super().__init__()
        self.rows, self.loads, self._cell = [], [], False

    def handle_starttag(self, tag, attrs):
        self.loads += [
            value for name, value in attrs if name in ("src", "href", "xlink:href", "data")
        ]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self._cell = tag in ("td", "th") or self._cell

    def handle_endtag(self, tag):
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data):
        if self._cell:
            self.rows[-1][-1] += data


def parse(page):
    rows = Rows()
    rows.feed(page)
    return rows


def test_table():
    copying = {"bleu": 1.25, "brevity_penalty": 1.0, "signature": "s"}
    rows = parse(render("Title", RUNS, copying=copying)).rows
    assert rows[1][:2] == ["copying the source", "1.2"]
    assert [row[0] for row in rows[2:]] == ["layer", "batch", "rbn"]
    assert rows[2][1:5] == ["12.3", "3.500", "", ""]
    assert rows[3][1:5] == ["12.3", "3.510", "3.50", "20.00"]
    assert rows[4][5:] == ["2", "1.5"]


def test_nothing_is_loaded():
    page = render("Title", RUNS)
    assert all(address.startswith("#") for address in parse(page).loads)
    assert "@import" not in page and not re.search(r"url\((?!#)", page)


def test_text_is_escaped():
    sentence = {"source": "<b>a</b> & b", "reference": "r", "layer": "1", "batch": "2", "rbn": "3"}
    page = render("a < b", RUNS, translations=[sentence])
    assert "&lt;b&gt;a&lt;/b&gt; &amp; b" in page and "<b>a" not in page
    assert "nrefs:1|&lt;tok&gt;" in page and "a &lt; b" in page


def test_runs_without_batch_norm_or_score():
    run = Run("layer", RUNS[0].validations, (), None, {})
    page = render("Title", [run])
    assert page.count("<svg") == 1 and "sacreBLEU" not in page
    assert "nrefs:1" in render("Title", [run, RUNS[1]])


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


def test_files(tmp_path):
    written = write_report(tmp_path, "Title", RUNS)
    names = [path.name for path in written]
    assert names == ["index.html", "valid.csv", "tid.csv", "scores.csv", "curves.png"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "tid.csv").read_text())))
    assert len(rows) == 2 * 3 * 2  # runs, epochs, layers
    assert rows[1] == {
        "run": "batch", "epoch": "0", "update": "0", "layer": "b", "mean_tid": "0.015",
        "var_tid": "0.2",
    }  # fmt: skip
    first = (tmp_path / "index.html").read_text()
    write_report(tmp_path, "Title", RUNS)
    assert (tmp_path / "index.html").read_text() == first  # the same runs, the same file
    write_report(tmp_path, "Title", RUNS[:1])
    assert not (tmp_path / "tid.csv").exists()  # that was of other runs
