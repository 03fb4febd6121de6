"""docs/reliability.md names tests that there are, and every refusal."""

import re
from pathlib import Path

from rbn_fairseq.models.refusals import OF_CRITERION, OF_MODEL, OF_TRAINING

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "reliability.md").read_text()


def test_named_tests_are_there():
    named = re.findall(r"`(tests/\S+?\.py)(?:::(\w+))?`", TEXT)
    assert len(named) > 30
    for path, test in named:
        assert f"def {test}" in (ROOT / path).read_text(), (path, test)


def test_every_refusal_is_there():
    table = TEXT.split("## What is refused")[1].split("\n## ")[0]
    for refusal in (*OF_MODEL, *OF_TRAINING, *OF_CRITERION):
        for option in re.findall(r"--[a-z0-9-]+(?: [a-z_]+)?(?=\)|$| \(| or)", refusal.option):
            assert f"`{option}`" in table
