"""docs/theory.md: it tells of every norm, and the code that it names is there."""

import re
from pathlib import Path

import pytest

from rbn_fairseq.norms import NORMS

ROOT = Path(__file__).resolve().parent.parent
THEORY = (ROOT / "docs" / "theory.md").read_text()
FILES = re.findall(r"`((?:norms|models|criterions)/\w+\.py)`", THEORY)
NAMED = re.findall(r"`(norms/\w+\.py)`, `(\w+)` \|", THEORY)


def test_every_norm_has_its_rows_and_its_paragraph():
    assert len(NAMED) == len(NORMS)
    for name in NORMS:
        assert len(re.findall(rf"^\| [^|]*`{name}`", THEORY, re.M)) == 2, name
        (paragraph,) = re.findall(rf"^\*\*.*`{name}`.*\*\*: [^*]*?(?=^\*\*|^## )", THEORY, re.M)
        assert "Use" in paragraph, name


@pytest.mark.parametrize("file", sorted(set(FILES)))
def test_files_are_there(file):
    assert (ROOT / "rbn_fairseq" / file).is_file()


@pytest.mark.parametrize("file, name", NAMED)
def test_names_are_there(file, name):
    assert re.search(rf"^ *(class|def) {name}\b", (ROOT / "rbn_fairseq" / file).read_text(), re.M)
