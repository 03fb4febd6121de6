"""Random damage to checkpoints."""

import random

from corruption import DAMAGES, damage, same, state
from rbn_fairseq.checkpoints import files


def test_damaged_files_are_refused_or_read_as_saved(tmp_path):
    counts, wrong = damage(20 * len(DAMAGES), 1, tmp_path)
    assert not wrong
    assert counts["refused"] > counts["read as saved"] > 0


def test_wrong_reading_would_be_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "is_whole", lambda path: True)  # checksums not looked at
    _, wrong = damage(20 * len(DAMAGES), 1, tmp_path)
    assert wrong


def test_a_difference_in_any_part_is_seen():
    one, again, other = (state(random.Random(seed)) for seed in (1, 1, 2))
    assert same(one, again)
    for part in one:
        assert not same(one, {**one, part: other[part]}), part
