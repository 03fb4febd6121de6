"""The page: what it shows, that its links lead somewhere, and that it needs nothing else."""

import math
import re
from collections import Counter
from html.parser import HTMLParser

import pytest
from sections import ABOUT, make_sections

from rbn_fairseq.report.blocks import Cell, Section, Sentences, Table
from rbn_fairseq.report.page import render

# Elements of HTML that have no end.
VOID = {"meta", "link", "br", "input"}


class Page(HTMLParser):
    """A page's elements; every one must end where HTML says."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.rows, self.text, self._open = [], [], Counter(), []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text[self._open[-1] if self._open else ""] += data.count("") - 1
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data

    def all(self, attribute):
        return [attributes[attribute] for _, attributes in self.elements if attribute in attributes]


@pytest.fixture(scope="module")
def text():
    return render("Title", make_sections(), ABOUT)


def with_table(*rows, columns=("a", "b"), notes=(), name="t"):
    return [Section("S", "", (Table(name, "T", columns, rows, notes),))]


def body(sections):
    """A page without its style and its script."""
    return re.sub(r"(?s)<(style|script)>.*?</\1>", "", render("Title", sections))


def test_tables_have_every_cell(text):
    expected = []
    for section in make_sections():
        for table in section.blocks:
            if isinstance(table, Table):
                expected.append([(column, "") for column in table.columns])
                expected += [[(cell.text, cell.note) for cell in row] for row in table.rows]
    rows = Page(text).rows
    expected = [[(words.replace("`", ""), note) for words, note in row] for row in expected]
    assert len(rows) == len(expected) == 9 + 4 + 4
    for row, cells in zip(rows, expected, strict=True):
        for shown, (words, note) in zip(row, cells, strict=True):
            assert re.fullmatch(re.escape(words) + ("[a-z]" if note else ""), shown)


def test_nothing_is_loaded(text):
    page = Page(text)
    addresses = [it for key in ("src", "href", "xlink:href", "data") for it in page.all(key)]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    assert not any(tag in ("iframe", "object", "base") for tag, _ in page.elements)


def test_ids_are_unique_and_links_lead_to_them(text):
    page = Page(text)
    ids = Counter(page.all("id"))
    assert max(ids.values()) == 1
    targets = [it[1:] for key in ("href", "xlink:href") for it in page.all(key) if it[0] == "#"]
    targets += page.all("aria-labelledby") + re.findall(r"url\(#([^)]*)\)", text)
    assert len(targets) > 100 and set(targets) <= set(ids)


def test_a_figure_refers_to_itself_only(text):
    drawings = re.findall(r"(?s)<svg.*?</svg>", text)
    assert len(drawings) == 6
    for drawing in drawings:
        own = set(re.findall(r' id="([^"]*)"', drawing))
        used = set(re.findall(r'href="#([^"]*)"', drawing) + re.findall(r"url\(#([^)]*)", drawing))
        assert used and used <= own


def test_text_is_escaped():
    cell = Cell("<b>&", note="a < b", colour='"><i>')
    label = {"<u>": "<b>a</b> & b"}
    sections = [
        Section("<h>", "a < `<code> --x<y`", (Sentences("s", (label,), {"<u>": "red"}),)),
        *with_table((cell, cell), columns=("<c>", "d & e"), notes=("n < `m & o`",)),
    ]
    page = body(sections)
    names = {tag for tag, _ in Page(page).elements}
    assert not names & {"b", "i", "u", "h", "c", "y"}
    for words in ("&lt;b&gt;a&lt;/b&gt; &amp; b", "d &amp; e", "<code>m &amp; o</code>"):
        assert words in page
    assert "<code>&lt;code&gt; " in page and "&lt;h&gt;" in page


def test_backticks_mark_code():
    page = body([Section("S", "run `rbn tid a.pt --dropout` or a ` alone", ())])
    command = 'rbn tid a.pt <span class="option">--dropout</span>'
    assert f"<p>run <code>{command}</code> or a ` alone</p>" in page


def test_long_and_commanding_cells():
    row = (Cell("x" * 40), Cell("`rbn tid " + "y" * 40 + "`"))
    page = body(with_table(row))
    assert re.findall(r'class="([^"]*)" data-text="[^"]*">(<code>)?', page) == [
        ("text", ""),
        ("text long", "<code>"),
    ]


def test_paragraphs_and_lists():
    page = body([Section("S", "one\ntwo\n\nthree:\n- four\n- five `six`\n", ())])
    found = re.findall("<(?:p|li)>(.*?)</(?:p|li)>", page)
    assert found == ["one two", "three:", "four", "five <code>six</code>"]
    assert page.count("<ul>") == 1


@pytest.mark.parametrize("number, listed", [(3, False), (4, True)])
def test_contents(number, listed):
    sections = [Section(f"part {it}", "", ()) for it in range(number)]
    page = body(sections)
    links = re.findall(r'<li><a href="#([^"]*)">(.*?)</a>', page)
    assert [title for _, title in links] == [it.title for it in sections] * listed
    assert all(f'<section id="{target}">\n<h2>{title}</h2>' in page for target, title in links)


def test_equal_notes_share_a_letter():
    rows = [(Cell("x", note=first), Cell("", note=second)) for first, second in ("uv", "vu", "wu")]
    page = body(with_table(*rows))
    assert Page(page).rows[1:] == [["xa", "b"], ["xb", "a"], ["xc", "a"]]
    notes = re.findall(r'id="note-t-(.)"><sup>(.)</sup> (.)<', page)
    assert notes == [("a", "a", "u"), ("b", "b", "v"), ("c", "c", "w")]


def test_letters_go_on_after_z():
    rows = [(Cell(f"{number}", note=f"{number}"),) for number in range(28)]
    rows = Page(body(with_table(*rows, columns=("a",)))).rows
    assert [rows[1 + number][0] for number in (25, 26, 27)] == ["25z", "26aa", "27ab"]


def test_numbers_of_the_paper_are_grey():
    ours, theirs = Cell("1", 1), Cell("2", 2, paper=True)
    page = body(with_table((ours, theirs)))
    assert re.findall(r'class="([^"]*)" data-value="2.0">2<', page) == ["paper"]
    assert len(re.findall("paper", body(with_table((ours, ours))))) == 0
    assert "the paper’s own numbers, not measured here" in page


def test_what_cells_are_sorted_by():
    cells = (0.1 + 0.2, -math.inf, math.nan, None)
    row = tuple(Cell("x", value) for value in cells) + (Cell(""), Cell("", note="n"))
    columns = tuple("abcdef")
    found = [
        {key: value for key, value in attributes.items() if key.startswith("data-")}
        for tag, attributes in Page(body(with_table(row, columns=columns))).elements
        if tag in ("td", "th")
    ][len(columns) :]
    numbers = [float(it["data-value"].replace("Infinity", "inf")) for it in found[:2]]
    assert numbers == [0.1 + 0.2, -math.inf] and "Infinity" in found[1]["data-value"]
    assert found[2:] == [{"data-text": "x"}, {"data-text": "x"}, {}, {}]


def test_columns_of_text_stand_at_the_left():
    row = (Cell("1", 1), Cell("2", 2), Cell("x"), Cell(""))
    elements = Page(body(with_table(row, row, columns=tuple("abcd")))).elements
    classes = [attributes.get("class") for tag, attributes in elements if tag in ("td", "th")]
    assert classes == ["text", None, "text", None] * 3


def test_sentences():
    translations = ({"source": "eins", "LN": "one"}, {"source": "zwei", "LN": "two"})
    page = body([Section("S", "", (Sentences("Ten", translations, {"LN": "#123"}, ("how",)),))])
    assert re.findall("<dd>(.*?)</dd>", page) == ["eins", "one", "zwei", "two"]
    dotted = re.findall(r"<dt>(?:<span[^>]*background:(.*?)\"></span>)?(.*?)</dt>", page)
    assert dotted == [("", "source"), ("#123", "LN")] * 2
    assert '<p class="note">how</p>' in page


def test_a_table_between_figures_stays_there():
    figures = make_sections()[1].blocks
    (section,) = with_table((Cell("1"), Cell("2")))
    blocks = (figures[0], section.blocks[0], figures[1], figures[2])
    page = body([Section("S", "", blocks)])
    order = re.findall(r'class="figures"|figure id="[^"]*"|<table>', page)
    assert order == [
        'class="figures"', f'figure id="figure-{figures[0].name}"', "<table>",
        'class="figures"', *(f'figure id="figure-{it.name}"' for it in figures[1:3]),
    ]  # fmt: skip


def test_refusals():
    row = (Cell("1"), Cell("2"))
    with pytest.raises(ValueError, match="Table `t`: row 2 has 1 cells, but there are 2 columns"):
        render("Title", with_table(row, row[:1]))
    with pytest.raises(ValueError, match="Table `a/b`: a name has letters"):
        render("Title", with_table(row, name="a/b"))
    with pytest.raises(ValueError, match="Table `T`: “T” and “T” have the same name"):
        render("Title", with_table(row) + with_table(row, name="T"))
