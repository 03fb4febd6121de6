"""Tests, files and classes that docs/ names are there; docs/reliability.md has every refusal."""

import re
from pathlib import Path

from rbn_fairseq.models.refusals import OF_CRITERION, OF_MODEL, OF_TRAINING
from rbn_fairseq.norms import NORMS

ROOT = Path(__file__).resolve().parent.parent
RELIABILITY, THEORY = (
    (ROOT / "docs" / name).read_text() for name in ("reliability.md", "theory.md")
)


def test_links_lead_to_files():
    """On GitHub and in the site, whose build checks headings, too."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/**/*.md")]
    links = [(p, to) for p in pages for to in re.findall(r"\]\(([^\s)#:]+)[)#]", p.read_text())]
    assert len(links) > 100
    assert not [link for link in links if not (link[0].parent / link[1]).is_file()]


def test_named_tests_are_there():
    named = re.findall(r"`(tests/\S+?\.py)(?:::(\w+))?`", RELIABILITY)
    assert len(named) > 30
    for path, test in named:
        assert f"def {test}" in (ROOT / path).read_text(), (path, test)


def test_named_code_is_there():
    for file in re.findall(r"`((?:norms|models|criterions)/\w+\.py)`", THEORY):
        assert (ROOT / "rbn_fairseq" / file).is_file(), file
    classes = re.findall(r"`(norms/\w+\.py)`, `(\w+)` \|", THEORY)
    assert len(classes) == len(NORMS)
    for file, name in classes:
        text = (ROOT / "rbn_fairseq" / file).read_text()
        assert re.search(rf"^ *(class|def) {name}\b", text, re.M), (file, name)


def test_every_refusal_is_there():
    table = RELIABILITY.split("## What is refused")[1].split("\n## ")[0]
    for refusal in (*OF_MODEL, *OF_TRAINING, *OF_CRITERION):
        for option in re.findall(r"--[a-z0-9-]+(?: [a-z_]+)?(?=\)|$| \(| or)", refusal.option):
            assert f"`{option}`" in table
