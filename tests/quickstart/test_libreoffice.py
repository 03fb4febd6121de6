"""The help pages: paragraphs by id, pairs of pages, and what is said where apt is missing."""

import pytest

from rbn_fairseq.quickstart.corpus import fetch_pages, read_page, read_pairs, shares_words

PAGE = """<html><body><p>no id</p>
<h2 id="h1">A   heading<br>
 in two lines</h2><div><p id="p1" class="x"> <span class="emph">Bold</span> &amp; plain</p>outside
<p id="p2"></p></div></body></html>"""


def test_paragraphs_by_id():
    assert read_page(PAGE) == {"h1": "A heading in two lines", "p1": "Bold & plain", "p2": ""}


@pytest.mark.parametrize(
    "source, target, expected",
    [
        ("=SUMME(A1:A3) ergibt 6", "=SUM(A1:A3) returns 6", True),
        ("ein Datum in Calc", "one date in Calc", True),  # 2 of 4
        ("Wählen Sie die Datei aus", "Choose the file", False),
        ("a b c d", "a x y z", False),  # exactly a quarter is no more than a quarter
    ],
)
def test_shared_words(source, target, expected):
    assert shares_words(source, target) is expected


def make_pages(root, pages):
    for name, paragraphs in pages.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        body = "".join(f'<p id="{i}">{text}</p>' for i, text in paragraphs.items())
        path.write_text(f"<html>{body}</html>", encoding="utf-8")
    return root


def test_pairs_of_pages(tmp_path):
    german = make_pages(
        tmp_path / "de",
        {
            "a/x.html": {"2": "zwei", "1": "Größe", "4": "nur deutsch", "5": "eins zwei"},
            "y.html": {"1": "allein"},
        },
    )
    english = make_pages(
        tmp_path / "en",
        {
            "a/x.html": {
                "1": "this has four words",
                "5": "eins zwei drei vier",
                "2": "only three words",
                "3": "not in German at all",
            },
            "z.html": {"1": "no such German page here"},
        },
    )
    assert read_pairs(german, english) == {"a/x.html": [("Größe", "this has four words")]}


def program(path, code):
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)


def test_fetched_once(tmp_path, monkeypatch):
    log = tmp_path / "log"
    program(tmp_path / "apt-get", f'echo apt-get >>{log}; touch "$2_4%3a1_all.deb"')
    program(tmp_path / "dpkg-deb", f'echo dpkg-deb >>{log}; test -e "$2" && mkdir "$3"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    first = fetch_pages(tmp_path / "debian")
    assert log.read_text().split() == ["apt-get", "dpkg-deb"] * 2
    assert fetch_pages(tmp_path / "debian") == first
    assert len(log.read_text().split()) == 4


def test_a_failure_is_explained(tmp_path, monkeypatch):
    program(tmp_path / "apt-get", "echo 'E: Unable to locate package' >&2; exit 100")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ValueError, match="failed: E: Unable .*apt-get update.* --data PREFIX"):
        fetch_pages(tmp_path / "debian")
