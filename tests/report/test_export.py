"""A report's files, and the page in text and in a real browser."""

import os
import re
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from playwright.sync_api import sync_playwright

from rbn_fairseq.report.blocks import Section, Sentences
from rbn_fairseq.report.content import sections
from rbn_fairseq.report.export import check_directory, write_report
from rbn_fairseq.report.page import render

GIFT = "<script>alert('&')</script>"
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
REQUIRED = os.environ.get("RBN_BROWSER") == "required"  # as continuous integration says


def few(runs):
    """All tables of runs, and few figures: drawing takes most of the time."""
    return sections(runs)[:2]


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_files(main, tmp_path):
    report = sections(main)[:3]
    page, *others = write_report(tmp_path / "out", "Title", report)
    names = {str(path.relative_to(tmp_path / "out")) for path in others}
    text = page.read_text()
    assert names == set(re.findall(r'href="((?:figures|tables)/[^"]+)"', text))
    assert {path.suffix for path in others} == {".svg", ".png", ".csv", ".md", ".tex"}
    for path in others:
        if path.suffix == ".svg":
            ElementTree.parse(path)
    first = contents(tmp_path / "out")
    write_report(tmp_path / "again", "Title", report)
    assert contents(tmp_path / "again") == first  # byte for byte


def test_an_older_report_is_replaced(main, tmp_path):
    out = tmp_path / "out"
    write_report(out, "Old", sections(main)[:3])
    (out / "figures" / "mine.png").write_text("mine")
    write_report(out, "New", few(main[:1]))
    assert not (out / "figures" / "figure4.png").exists()
    assert (out / "figures" / "mine.png").exists() and "New" in (out / "index.html").read_text()


def test_foreign_files_are_not_lost(main, tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "summary.csv").write_text("mine")
    with pytest.raises(ValueError, match="--overwrite"):
        write_report(tmp_path, "T", few(main))
    assert (tmp_path / "tables" / "summary.csv").read_text() == "mine"
    (tmp_path / "index.html").write_text("<html>mine</html>")
    with pytest.raises(ValueError, match="--output"):
        check_directory("--output", tmp_path, overwrite=False)
    check_directory("--output", tmp_path, overwrite=True)
    write_report(tmp_path, "T", few(main), overwrite=True)
    with pytest.raises(ValueError, match="--output"):
        check_directory("--output", tmp_path / "index.html", overwrite=True)


def test_texts_of_others_are_escaped(make):
    run = make(GIFT, "BN", changes={"task.data": GIFT}, bleu=30.0, tid=(0.02, 0.1))
    sentences = Sentences(GIFT, ({GIFT: GIFT},), {}, (GIFT,))
    shown = [*sections([run]), Section(GIFT, f"{GIFT} `{GIFT}`", (sentences,))]
    page = render(GIFT, shown, [(GIFT, GIFT)])
    assert GIFT not in page and page.count("<script>") == 1
    assert "&lt;script&gt;alert" in page


def test_the_page_needs_nothing_else(main):
    page = render("T", few(main))
    assert not re.findall(r'(?:src|href)="(?!#|data:)', page)
    assert page.count("<img ") == 1 and page.count("<table>") == 4


@pytest.mark.skipif(CHROMIUM is None and not REQUIRED, reason="no chromium on PATH")
@pytest.mark.parametrize("width", [500, 1280])
def test_the_page_in_a_browser(main, tmp_path, width):
    """Everything is seen, only tables scroll, a click enlarges a figure; nothing is asked for."""
    page_file, *_ = write_report(tmp_path, "Title", sections(main))
    seen = []
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # refused to root with it
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("console", lambda message: seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("request", lambda request: seen.append(request.url))
        page.goto(page_file.as_uri())
        drawings = page.locator("figure img").all()
        assert len(drawings) > 5
        for drawing in drawings:
            box = drawing.bounding_box()
            assert drawing.evaluate("it => it.naturalWidth") > 200
            assert box["width"] > 200 and box["x"] >= 0 and box["x"] + box["width"] <= width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("table").first.is_visible()
        drawings[0].click()
        assert page.locator("dialog[open] img").bounding_box()["width"] > 0.9 * width
        page.keyboard.press("Escape")
        assert page.locator("dialog[open]").count() == 0
        browser.close()
    assert [url for url in seen if not url.startswith("data:")] == [page_file.as_uri()]


def test_without_torch_and_fairseq(main, tmp_path):
    code = (
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'fairseq', 'omegaconf'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
        "from pathlib import Path\n"
        "from rbn_fairseq.report import content, evaluated, export, runs\n"
        f"read = runs.read_runs([('bn', Path({str(main[1].directory)!r}))])\n"
        f"export.write_report(Path({str(tmp_path / 'out')!r}), 'T', content.sections(read)[:3])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "figures" / "figure4.png").exists()
