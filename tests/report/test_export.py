"""The files of a report: complete, the same every time, and nobody else's are touched."""

import csv
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import matplotlib.image
import pytest
from markdown_it import MarkdownIt
from sections import ABOUT, make_sections

from rbn_fairseq.files import write_whole
from rbn_fairseq.report.blocks import Cell, Figure, Section, Table
from rbn_fairseq.report.cells import mean_cell
from rbn_fairseq.report.export import to_csv, write_report
from rbn_fairseq.report.latex import to_latex
from rbn_fairseq.report.markdown import to_markdown
from rbn_fairseq.report.series import Mean

SECTIONS = make_sections()
FIGURES = [it for section in SECTIONS for it in section.blocks if isinstance(it, Figure)]
TABLES = [it for section in SECTIONS for it in section.blocks if isinstance(it, Table)]


def files(directory):
    return {
        str(it.relative_to(directory)): it.read_bytes()
        for it in directory.rglob("*")
        if it.is_file()
    }


def read_csv(text):
    return list(csv.reader(io.StringIO(text)))


def test_files_and_links(report):
    directory, written = report
    kinds = {Figure: ("figures", "svg", "png", "csv"), Table: ("tables", "csv", "md", "tex")}
    expected = []
    for block in (it for section in SECTIONS for it in section.blocks if type(it) in kinds):
        folder, *suffixes = kinds[type(block)]
        expected += [f"{folder}/{block.name}.{suffix}" for suffix in suffixes]
    page = (directory / "index.html").read_text()
    assert re.findall('href="((?:figures|tables)/[^"]*)"', page) == expected
    assert written == [directory / name for name in ("index.html", *expected)]
    assert set(files(directory)) == {"index.html", *expected}


def test_figures(report):
    directory, _ = report
    for figure in FIGURES:
        place = directory / "figures" / figure.name
        picture = matplotlib.image.imread(place.with_suffix(".png"))
        width, height = figure.draw().get_size_inches()
        assert picture.shape[:2] == (round(height * 150), round(width * 150))
        root = ElementTree.parse(place.with_suffix(".svg")).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("viewBox").split()[2] == f"{width * 72:.6g}"  # points
        header, *rows = read_csv(place.with_suffix(".csv").read_text())
        assert header == list(figure.header)
        assert [[a, int(b), float(c)] for a, b, c in rows] == [list(row) for row in figure.rows]


def test_same_sections_same_bytes(report, tmp_path):
    write_report(tmp_path, "Title", make_sections(), ABOUT)
    assert files(tmp_path) == files(report[0])


def test_an_older_report_is_replaced(tmp_path):
    table = Table("old", "Old", ("a",), ((Cell("1"),),))
    write_report(tmp_path, "Title", [Section("S", "", (table, replace(table, name="kept")))])
    for name in ("figures/mine.png", "tables/mine.tex", "tables/old.txt", "curves.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    changed = replace(table, name="kept", rows=((Cell("2"),),))
    write_report(tmp_path, "Other", [Section("S", "", (changed,))])
    found = files(tmp_path)
    assert found["tables/kept.csv"] == b"a\n2\n" and b"<h1>Other</h1>" in found["index.html"]
    assert set(found) == {
        "index.html", "tables/kept.csv", "tables/kept.md", "tables/kept.tex",
        "figures/mine.png", "tables/mine.tex", "tables/old.txt", "curves.png",
    }  # fmt: skip


def test_a_page_that_is_no_report_names_no_files_of_ours(tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "mine.png").write_text("mine")
    (tmp_path / "index.html").write_text('<a href="figures/mine.png">')
    with pytest.raises(ValueError, match="has another page.*--overwrite"):
        write_report(tmp_path, "Title", [])
    write_report(tmp_path, "Title", [], overwrite=True)
    assert (tmp_path / "figures" / "mine.png").read_text() == "mine"


def test_files_that_no_report_made_are_not_replaced(tmp_path):
    mine = tmp_path / "figures" / f"{FIGURES[1].name}.png"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(ValueError, match=f"{mine.name}.*--overwrite"):
        write_report(tmp_path, "Title", [Section("S", "", (FIGURES[1],))])
    assert files(tmp_path) == {f"figures/{mine.name}": b"mine"}
    write_report(tmp_path, "Title", [Section("S", "", (FIGURES[1],))], overwrite=True)
    write_report(tmp_path, "Title", [Section("S", "", (FIGURES[1],))])  # its own, again
    assert mine.read_bytes() != b"mine"


@pytest.mark.parametrize("written", range(5))
def test_an_interrupted_report_is_made_again(tmp_path, monkeypatch, written):
    table = Table("old", "Old", ("a",), ((Cell("1"),),))
    write_report(tmp_path, "Title", [Section("S", "", (table,))])
    left = iter(range(written))

    def interrupted(path, content):
        if next(left, None) is None:
            raise KeyboardInterrupt
        write_whole(path, content)

    new = [Section("S", "", (FIGURES[1], replace(table, name="new")))]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("rbn_fairseq.report.export.write_whole", interrupted)
        write_report(tmp_path, "Title", new)
    paths = write_report(tmp_path, "Title", new)
    assert {tmp_path / name for name in files(tmp_path)} == set(paths)


def test_nothing_is_written_where_a_table_is_refused(tmp_path):
    table = Table("t", "T", ("a", "b"), ((Cell("1"),),))
    with pytest.raises(ValueError, match="row 1 has 1 cells"):
        write_report(tmp_path, "Title", [Section("S", "", (FIGURES[1], table))])
    assert files(tmp_path) == {}


def test_csv_has_full_precision_and_says_what_is_the_papers():
    rows = (
        (Cell("x"), Cell("0.30", 0.1 + 0.2), Cell("")),
        (Cell("y, z", paper=True), Cell("1", 1), Cell("2.0", 2.0, paper=True)),
    )
    header, *found = read_csv(to_csv(Table("t", "T", ("run", "BLEU", "n"), rows)))
    assert header == ["run", "BLEU", "n", "from the paper"]
    assert found == [["x", str(0.1 + 0.2), "", ""], ["y, z", "1", "2.0", "run; n"]]
    assert read_csv(to_csv(Table("t", "T", ("a",), ((rows[0][1],),))))[0] == ["a"]


def test_csv_has_all_that_a_cell_says():
    mean = mean_cell(Mean(30.25, 0.125, 3), 2, 3)
    interval = Cell("+0.1 to +0.9", 0.1, csv=(("low", 0.1), ("high", 0.9)))
    rows = (
        (Cell("a"), mean, interval),
        (Cell("b"), mean_cell(None, 2, 1), Cell("")),
        (Cell("p"), Cell("30.0", 30.0, paper=True), interval),
    )
    header, *found = read_csv(to_csv(Table("t", "T", ("run", "BLEU", "95 %"), rows)))
    assert header == [
        "run", "BLEU", "BLEU, standard deviation", "BLEU, seeds", "95 %, low", "95 %, high",
        "from the paper",
    ]  # fmt: skip
    assert found == [
        ["a", "30.25", "0.125", "3", "0.1", "0.9", ""],
        ["b", "", "", "", "", "", ""],
        ["p", "30.0", "", "", "0.1", "0.9", "BLEU"],
    ]


class Cells(HTMLParser):
    """The cells of a table that Markdown became, and what of it is in italics or code."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.marked, self._open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self._open.remove(tag)

    def handle_data(self, data):
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data
            self.marked += [(tag, data) for tag in self._open if tag in ("em", "strong", "code")]


def test_markdown_is_read_as_it_was_meant():
    """By another implementation of Markdown."""
    texts = ("a|b", "_x_ *y*", "<b>&amp;", "pre_rbn\\|", "`rbn a|b`", "two\nlines", "1 ` 2")
    rows = ((*map(Cell, texts), Cell("3.5", 3.5, paper=True), Cell("", note="x | `y|z` *q*")),)
    columns = (*"abcdefg", "the|paper", "i")
    text = to_markdown(Table("t", "A *title*", columns, rows, ("the _end_",)))
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    cells = Cells(html)
    assert cells.rows[0] == list(columns)
    shown = [
        "a|b",
        "_x_ *y*",
        "<b>&amp;",
        "pre_rbn\\|",
        "rbn a|b",
        "two lines",
        "1 ` 2",
        "3.5",
        "a",
    ]
    assert cells.rows[1] == shown
    assert cells.marked == [("code", "rbn a|b"), ("em", "3.5")]
    assert "<sup>a</sup> x | <code>y|z</code> *q*" in html
    assert "<strong>A *title*</strong>" in html and "<p>the _end_</p>" in html
    assert html.count("text-align:right") == 2 * 2  # of the paper's numbers, and of no text at all


def test_latex_by_hand():
    rows = (
        (Cell("BN & more"), Cell("-1.5", -1.5), Cell("34.0 ± 0.2", 34)),
        (Cell("50% #1_$x^{~}\\"), Cell("", note="`rbn a_b --c`"), Cell("35.5", 35.5, paper=True)),
    )
    table = Table("table-1", "TID, %", ("[norm]", "gap", "BLEU"), rows, ("done",))
    assert to_latex(table).splitlines() == [
        r"% Needs \usepackage[T1]{fontenc}, \usepackage{booktabs}, \usepackage{xcolor}",
        r"\begin{table}",
        r"  \centering",
        r"  \caption{TID, \%}",
        r"  \label{tab:table-1}",
        r"  \begin{tabular}{lrr}",
        r"    \toprule",
        r"    {[}norm{]} & gap & BLEU \\",
        r"    \midrule",
        r"    BN \& more & $-$1.5 & 34.0 \ensuremath{\pm} 0.2 \\",
        r"    50\% \#1\_\$x\textasciicircum{}\{\textasciitilde{}\}\textbackslash{}"
        r" & \textsuperscript{a} & \textcolor{gray}{35.5} \\",
        r"    \bottomrule",
        r"  \end{tabular}",
        r"  \par\smallskip",
        r"  \begin{minipage}{\linewidth}\footnotesize\raggedright",
        r"    \textsuperscript{a} \texttt{rbn a\_b -{}-c}\par",
        r"    \textcolor{gray}{Grey}: the paper's own numbers, not measured here.\par",
        r"    done\par",
        r"  \end{minipage}",
        r"\end{table}",
    ]


LINES = r">{\raggedright\arraybackslash}p{.3\linewidth}"


def test_latex_gives_long_texts_several_lines():
    long, short = Cell("`rbn tid SAVE_DIR/checkpoint_last.pt --output x`"), Cell("short")
    rows = ((short, long), (short, short))
    text = to_latex(Table("t", "T", ("a", "b"), rows))
    assert rf"\begin{{tabular}}{{l{LINES}}}" in text and r"\usepackage{array}" in text
    assert r"\usepackage{array}" not in to_latex(Table("t", "T", ("a", "b"), rows[1:]))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_latex_is_balanced(table):
    text = to_latex(table)
    bare = re.sub(r"\\[\\{}&%$]", "", text)
    depth = 0
    for character in bare:
        depth += (character == "{") - (character == "}")
        assert depth >= 0
    assert depth == 0 and bare.count("$") % 2 == 0
    opened, closed = (re.findall(rf"\\{word}{{(\w+)}}", text) for word in ("begin", "end"))
    assert sorted(opened) == sorted(closed)
    (columns,) = re.findall(r"begin{tabular}{([lr]+)}", text.replace(LINES, "l"))
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 1 + len(table.rows)
    for row in rows:
        assert len(re.findall(r"(?<!\\)&", row)) == len(columns) - 1 == len(table.columns) - 1
    assert ("{xcolor}" in text) == (r"\textcolor" in text)
