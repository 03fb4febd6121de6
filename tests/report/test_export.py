"""A report's files, and the page as text."""

import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from rbn_fairseq.report.blocks import Section
from rbn_fairseq.report.content import sections
from rbn_fairseq.report.export import check_directory, write_report

GIFT = "<script>alert('&')</script>"


def few(runs):
    """Most tables of runs, and one figure: drawing takes most of the time."""
    return sections(runs)[:3]


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_files(main, tmp_path):
    report = sections(main)[:5]
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
    write_report(out, "Old", sections(main)[:5])
    (out / "figures" / "mine.png").write_text("mine")
    write_report(out, "New", few(main[:1]))
    assert not (out / "figures" / "figure4.png").exists()
    assert (out / "figures" / "mine.png").exists() and "New" in (out / "index.html").read_text()


def test_foreign_files_are_not_lost(main, tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "summary.csv").write_text("mine")
    with pytest.raises(ValueError, match="--overwrite"):
        check_directory(tmp_path, overwrite=False)
    (tmp_path / "index.html").write_text("<html>mine</html>")
    with pytest.raises(ValueError, match="index.html"):
        check_directory(tmp_path, overwrite=False)
    check_directory(tmp_path, overwrite=True)
    write_report(tmp_path, "T", few(main))
    check_directory(tmp_path, overwrite=False)  # it is a report's now
    with pytest.raises(ValueError, match="--output"):
        check_directory(tmp_path / "index.html", overwrite=True)


def test_texts_of_others_are_escaped(make, tmp_path):
    run = make(GIFT, "BN", changes={"task.data": GIFT}, bleu=30.0, tid=(0.02, 0.1))
    shown = [*sections([run]), Section(GIFT, f"{GIFT} `{GIFT}`", ())]
    written, *_ = write_report(tmp_path, GIFT, shown, [(GIFT, GIFT)])
    page = written.read_text()
    assert GIFT not in page and page.count("<script") == page.count("</script>") == 3
    assert "&lt;script&gt;alert" in page
    embedded = re.search(r'<script type="application/json" id="panels">(.*?)</script>', page)
    panels = json.loads(embedded[1])["validation"]
    assert panels[0]["curves"][0]["runs"][0]["run"] == GIFT


def test_the_page_is_shown_without_any_other_file(main, tmp_path):
    page = write_report(tmp_path, "T", few(main))[0].read_text()
    markup = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.findall(r'src="|<link[^>]*href="(?!data:)', markup)
    assert markup.count("<svg ") == 1 and markup.count("<table>") == 5


def test_a_note_stands_on_the_page_once_and_in_every_file(main, tmp_path):
    page, *others = write_report(tmp_path, "T", few(main))
    note = "Mean over seeds ± sample standard deviation"
    texts = [path.read_text() for path in others if path.name in ("table1.md", "table2.md")]
    assert page.read_text().count(note) == 1 and all(note in text for text in texts)


def test_without_torch_and_fairseq(main, tmp_path):
    code = (
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'fairseq', 'omegaconf'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
        "from pathlib import Path\n"
        "from rbn_fairseq.report import content, export, runs\n"
        f"read = runs.read_runs([('bn', Path({str(main[1].directory)!r}))])\n"
        f"export.write_report(Path({str(tmp_path / 'out')!r}), 'T', content.sections(read)[:5])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "figures" / "figure4.png").exists()
