"""Random damage to checkpoints."""

from corruption import DAMAGES, damage
from rbn_fairseq.checkpoints import files


def test_damaged_files_are_refused_or_read_as_saved(tmp_path):
    counts, wrong = damage(30 * len(DAMAGES), 1, tmp_path)
    assert not wrong
    assert counts["refused"] > counts["read as saved"] > 0


def test_wrong_reading_would_be_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "is_whole", lambda path: True)  # checksums not looked at
    _, wrong = damage(30 * len(DAMAGES), 1, tmp_path)
    assert wrong
