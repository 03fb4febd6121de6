"""The help pages: paragraphs by id, pairs of pages, and what is said where apt is missing."""

import shutil
import subprocess
from pathlib import Path

import pytest

from rbn_fairseq.quickstart import libreoffice
from rbn_fairseq.quickstart.libreoffice import fetch_pages, read_page, read_pairs, shares_words

PAGE = """<html><body><p>no id</p>
<h2 id="h1">A   heading<br>
 in two lines</h2><div><p id="p1" class="x"> <span class="emph">Bold</span> &amp; plain</p>outside
<p id="p2"></p></div></body></html>"""


def test_paragraphs_by_id():
    assert read_page(PAGE) == {"h1": "A heading in two lines", "p1": "Bold & plain"}


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
        {"a/x.html": {"2": "zwei", "1": "Größe", "4": "nur deutsch"}, "y.html": {"1": "allein"}},
    )
    english = make_pages(
        tmp_path / "en",
        {
            "a/x.html": {
                "1": "this has four words",
                "2": "only three words",
                "3": "not in German at all",
            },
            "z.html": {"1": "no such German page here"},
        },
    )
    assert read_pairs(german, english) == {"a/x.html": [("Größe", "this has four words")]}


def test_without_apt(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match="no `apt-get` here.*--data PREFIX"):
        fetch_pages(tmp_path / "debian")


def test_fetched_once(tmp_path, monkeypatch):
    commands = []

    def run(command, **options):
        commands.append(command[0])
        if command[0] == "apt-get":
            (options["cwd"] / f"{command[2]}_1_all.deb").touch()
        else:
            Path(command[3]).mkdir()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(libreoffice.subprocess, "run", run)
    first = fetch_pages(tmp_path / "debian")
    assert commands == ["apt-get", "dpkg-deb", "apt-get", "dpkg-deb"]
    assert fetch_pages(tmp_path / "debian") == first
    assert len(commands) == 4
