"""A line ends at a line feed and nowhere else."""

import gzip

import pytest

from rbn_fairseq.corpora.lines import (
    announced,
    check_pairs,
    find_text,
    read_lines,
    write_lines,
    write_pairs,
)

# str.splitlines and fairseq's readers end lines at some of these.
LINES = ["a\u2028b", "c\u0085d", "e\u00a0f", "", "g\x0bh\x1ci", " j | k "]


def test_written_lines_are_read(tmp_path):
    write_lines(tmp_path / "text", LINES)
    assert (tmp_path / "text").read_bytes() == "".join(f"{line}\n" for line in LINES).encode()
    assert list(read_lines(tmp_path / "text")) == LINES
    (tmp_path / "text.gz").write_bytes(gzip.compress((tmp_path / "text").read_bytes()))
    assert list(read_lines(tmp_path / "text.gz")) == LINES


def test_last_line_without_a_line_feed(tmp_path):
    (tmp_path / "text").write_bytes(b"a\nb")
    assert list(read_lines(tmp_path / "text")) == ["a", "b"]


def test_not_utf8(tmp_path):
    (tmp_path / "text").write_bytes(b"a\nb\xe4\n")
    with pytest.raises(ValueError, match="Line 2 of `.*text` is not UTF-8"):
        list(read_lines(tmp_path / "text"))


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"no gzip" + data])
def test_damaged_gzip(tmp_path, damage):
    (tmp_path / "text.gz").write_bytes(damage(gzip.compress(b"a\n" * 1000)))
    with pytest.raises(ValueError, match="text.gz` cannot be decompressed to its end"):
        list(read_lines(tmp_path / "text.gz"))


def test_plain_before_compressed(tmp_path):
    with pytest.raises(ValueError, match="--from-raw: there is no file `.*train.de`"):
        find_text("--from-raw", tmp_path, "train.de")
    (tmp_path / "train.de.gz").touch()
    assert find_text("--from-raw", tmp_path, "train.de").name == "train.de.gz"
    (tmp_path / "train.de").touch()
    assert find_text("--from-raw", tmp_path, "train.de").name == "train.de"


@pytest.fixture
def text(tmp_path):
    for number, split in enumerate(("train", "valid", "test"), 1):
        write_pairs(tmp_path, split, ("de", "en"), [("a", "b")] * number)
    return tmp_path


def test_pairs_are_counted(text):
    assert check_pairs(text, ("de", "en")) == {"train": 1, "valid": 2, "test": 3}


@pytest.mark.parametrize(
    "name, content, expected",
    [
        ("valid.en", b"b\n" * 5, "valid.de has 2 lines, valid.en 5"),
        ("test.de", b"a\n\nb\r\n", "Line 3 of `test.de` holds a carriage return"),
    ],
)
def test_pairs_that_do_not_fit(text, name, content, expected):
    (text / name).write_bytes(content)
    with pytest.raises(ValueError, match=expected):
        check_pairs(text, ("de", "en"))


def test_empty_part(text):
    write_pairs(text, "test", ("de", "en"), [])
    with pytest.raises(ValueError, match="test.de and test.en have no lines"):
        check_pairs(text, ("de", "en"))


def test_progress_is_said(said):
    assert list(announced(["a", "b"], "reading", said.append, interval=-1)) == ["a", "b"]
    assert said == ["  reading: 1 lines so far", "  reading: 2 lines so far"]
    assert list(announced(["a"], "reading", said.append, interval=60)) == ["a"]
    assert len(said) == 2
