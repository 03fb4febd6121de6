"""Runs that anybody may have left: what their files say stands in a report as text alone."""

import csv
import json
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt
from run_directories import configuration, log_text, norm, tid_line, write_lines

from rbn_fairseq.report.content import sections
from rbn_fairseq.report.export import write_report
from rbn_fairseq.report.runs import read_run, read_runs
from rbn_fairseq.report.setups import describe

GIFT = (
    "<script>gift()</script>\"'><img src=x onerror=gift()></style></svg><svg onload=gift()>"
    "]]>--><!--{{gift}}`</code>`\\input{/etc/passwd}$x$%\n| x | [gift](javascript:gift())"
)
FORMULA = "=HYPERLINK(1)"


def hostile_run(directory, seed):
    """A run in which every text that a report shows is hostile."""
    directory.mkdir()
    changes = norm("BN") | {"model.norm_encoder": GIFT.replace("\n", " "), "task.data": GIFT}
    cfg = configuration(seed=seed, **changes, **{"task.source_lang": GIFT, "task.target_lang": "b"})
    text = f"x | {cfg}\n{log_text(cfg, [5.0, 4.0], start=False)}"
    language = "<script>gift()</script>"
    (directory / "train.log").write_text(f"x | [{language}] dictionary: 9 types\n{text}")
    for file, batching in (("tid.jsonl", "as-trained"), ("tid_batching.jsonl", GIFT)):
        lines = [tid_line(epoch, 0, 0.1, 0.1, batching=batching) for epoch in range(3)]
        write_lines(directory / file, [line | {"layer": GIFT} for line in lines])
    place = {"place": GIFT, "c_50": 1.0, "c_80": 2.0, "c_max": 3.0, "layer": 1, "update": 100}
    write_lines(directory / "conditioning.jsonl", [place | {"epoch": 1}])
    costs = [{"statistics": it, "nll": 4.0, "cost": 0.1, "update": 100} for it in (GIFT, "running")]
    write_lines(directory / "cost.jsonl", costs)
    score = {"bleu": 30.0, "brevity_penalty": 1.0, "signature": GIFT}
    (directory / "score.json").write_text(json.dumps({"sacrebleu": score, GIFT: GIFT}))
    return directory


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A report of a run whose name is, besides, a formula of spreadsheets."""
    directory = tmp_path_factory.mktemp("hostile")
    runs = read_runs([(FORMULA + GIFT, hostile_run(directory / "run", seed=1))])
    write_report(directory / "out", GIFT, sections(runs), [(GIFT, GIFT)])
    return directory / "out"


def test_settings_of_another_type_are_unknown(tmp_path):
    known = describe(read_run("run", hostile_run(tmp_path / "one", seed=1)))
    unknown = describe(read_run("run", hostile_run(tmp_path / "two", seed=GIFT)))
    assert (known.seed, known.norm) == (1, GIFT.replace("\n", " "))
    assert (unknown.seed, unknown.norm) == (None, "run")


@pytest.mark.parametrize("number", [0, -1, "many", "Random", 2.5, None, [16]])
def test_length_mixing_that_cannot_be_is_unknown(tmp_path, number):
    cfg = configuration(**{"task.length_mixing": number})
    (tmp_path / "train.log").write_text(log_text(cfg, [5.0]))
    assert describe(read_run("run", tmp_path)).seed is None


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.append(data)


def test_page_and_drawings_have_only_our_elements(written):
    pages = [written / "index.html", *written.glob("figures/*.svg")]
    assert len(pages) > 5
    for path in pages:
        found = Elements(path.read_text())
        assert found.tags.count("script") == found.tags.count("html") <= 1
        assert not {"img", "iframe", "object", "foreignobject"} & set(found.tags)
        assert not [name for name, _ in found.attributes if name.startswith("on")]
        links = [value for name, value in found.attributes if name.endswith(("href", "src"))]
        own = ("#", "data:,", "data:image/png;", "figures/", "tables/")
        assert not [link for link in links if not link.startswith(own)]
    assert "gift()" in "".join(Elements(pages[0].read_text()).texts)  # it is there, as text


def test_latex_has_only_our_commands(written):
    texts = [path.read_text() for path in written.glob("tables/*.tex")]
    assert any("textbackslash" in text for text in texts)
    for text in texts:
        assert "\\input" not in text and "$x$" not in text
        assert not [line for line in text.splitlines()[1:] if line.replace("\\%", "").count("%")]


def test_markdown_has_no_markup_of_runs(written):
    texts = [path.read_text() for path in written.glob("tables/*.md")]
    assert any("gift()" in text for text in texts)
    for text in texts:
        html = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
        tags = set(Elements(html).tags)
        assert tags <= {*"p strong em code sup table thead tbody tr th td".split()}


def test_csv_holds_no_formulas(written):
    files = [*written.glob("tables/*.csv"), *written.glob("figures/*.csv")]
    cells = {cell for path in files for row in csv.reader(path.open(newline="")) for cell in row}
    assert any(cell.startswith(f"'{FORMULA}") for cell in cells)
    assert not [cell for cell in cells if cell.startswith(("=", "@", "\t", "\r"))]


def test_files_stay_in_the_report(written):
    names = {str(path.relative_to(written)) for path in written.rglob("*") if path.is_file()}
    assert all(name == "index.html" or name.startswith(("figures/", "tables/")) for name in names)


def test_an_epoch_of_any_size(tmp_path):
    line = {"epoch": 10**15, "valid_loss": "5", "valid_num_updates": "9"}
    (tmp_path / "train.log").write_text(json.dumps(line) + "\n")
    (problem,) = [it for it in read_run("run", tmp_path).problems if "no validation of" in it]
    assert "epochs 1, 2, 3, 4, 5, 6, 7, 8, …" in problem
