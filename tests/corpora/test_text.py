"""Text of one sentence a line: reading, cleaning, mapping, taking it out of archives."""

import errno
import gzip
import io
import shutil
import subprocess
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from published import write_archive
from rbn_fairseq.corpora import text as corpora_text
from rbn_fairseq.corpora.text import (
    clean_pair,
    count_pairs,
    extract,
    find_text,
    lower_case,
    map_chunks,
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


@pytest.mark.parametrize(
    "source, target, expected",
    [
        (b"a\n" * 2, b"b\n" * 5, "valid.de has 2 lines, valid.en 5"),
        (b"a\n\nb\r\n", b"b\n" * 3, "Line 3 of `valid.de` holds a carriage return"),
        (b"", b"", "valid.de and valid.en have no lines"),
    ],
)
def test_pairs_are_counted(tmp_path, source, target, expected):
    write_pairs(tmp_path, "test", ("de", "en"), [("a", "b")] * 3)
    assert count_pairs(tmp_path, "test", ("de", "en")) == 3
    (tmp_path / "valid.de").write_bytes(source)
    (tmp_path / "valid.en").write_bytes(target)
    with pytest.raises(ValueError, match=expected):
        count_pairs(tmp_path, "valid", ("de", "en"))


def words(number, word="w"):
    return " ".join([word] * number)


@pytest.mark.parametrize(
    "source, target, kept",
    [
        (words(3), words(2), True),  # exactly 1.5
        (words(2), words(3), True),
        (words(16), words(10), False),
        (words(10), words(16), False),
        (words(175), words(175), True),
        (words(176), words(175), False),
        (words(175), words(176), False),
        ("", words(1), False),
        (words(1), " \u00a0", False),
        (words(1), "|", False),
        (words(1, "x" * 1000), words(1), True),
        (words(1, "x" * 1001), words(1), False),
        (words(1), words(1, "x" * 1001), False),
        (words(1), words(1), True),
    ],
)
def test_what_is_kept(source, target, kept):
    expected = (source, target) if kept else None
    assert clean_pair(source, target, longest=175, ratio=1.5) == expected


def test_limits_are_the_callers():
    assert clean_pair(words(9), words(1), longest=80, ratio=9) is not None
    assert clean_pair(words(10), words(1), longest=80, ratio=9) is None
    assert clean_pair(words(81), words(80), longest=80, ratio=9) is None


def test_white_space_and_bars_are_tidied():
    pair = clean_pair(" a\u2028b\u0085\u00a0c\t", "a|b  c ", longest=5, ratio=1.5)
    assert pair == ("a b c", "ab c")
    # Perl's white space ends here; str.split would cut.
    assert clean_pair("a\x1fb", "a", longest=1, ratio=1.0) == ("a\x1fb", "a")


@pytest.mark.skipif(shutil.which("perl") is None, reason="the oracle is Perl")
def test_lower_case_is_perls():
    # Latin, Greek, Cyrillic and Georgian as single characters, and sigma at the end of words.
    text = "\n".join([*map(chr, range(0x21, 0x1D00)), "ΟΔΟΣ ΑΣ, Σ ΣΑ", "İI ẞ"]) + "\n"
    perl = subprocess.run(
        ["perl", "-CSD", "-ne", "print lc"], input=text.encode(), capture_output=True, check=True
    )
    assert [lower_case(line) for line in text.split("\n")] == perl.stdout.decode().split("\n")


def slow_first(chunk):
    if chunk[0] == "0":
        time.sleep(0.05)
    return [f"<{line}>" for line in chunk]


# Chunks that the lines fill and do not fill; more chunks than may wait, and fewer.
@pytest.mark.parametrize("number", [0, 1, 6, 7, 25])
@pytest.mark.parametrize("ahead", [1, 4])
def test_order(number, ahead):
    lines = [str(i) for i in range(number)]
    with ThreadPoolExecutor(3) as executor:
        mapped = list(map_chunks(slow_first, iter(lines), executor, ahead, size=3))
    assert mapped == [f"<{line}>" for line in lines]


def test_lines_are_not_read_ahead_for_nothing():
    read = []

    def lines():
        for number in range(1000):
            read.append(number)
            yield str(number)

    with ThreadPoolExecutor(2) as executor:
        mapped = map_chunks(slow_first, lines(), executor, ahead=2, size=3)
        next(mapped)
        assert len(read) == 9  # three chunks: one that is returned, two that wait
        mapped.close()


@pytest.fixture
def out(tmp_path):
    directory = tmp_path / "out"
    directory.mkdir()
    return directory


@pytest.mark.parametrize("prefix", ["", "./", "folder/", "./a/b/"])
def test_only_what_is_wanted(tmp_path, out, prefix):
    archive = write_archive(tmp_path / "a.tgz", {f"{prefix}{name}": name for name in "xyz"})
    extract(archive, {"x", "z"}, out)
    assert {path.name: path.read_text() for path in out.iterdir()} == {"x": "x", "z": "z"}


def member(name, kind=tarfile.REGTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x"])
def test_members_that_would_leave(tmp_path, out, name):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.addfile(member("../outside"))
        tar.addfile(member(name))
    extract(tmp_path / "a.tar", {"x"}, out)
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.stem != "a"] == [
        Path("out"), Path("out/x")
    ]  # fmt: skip


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_what_is_no_file_is_not_followed(tmp_path, out, kind):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.addfile(member("x", kind, "/etc/passwd"))
    with pytest.raises(ValueError, match="lacks x"):
        extract(tmp_path / "a.tar", {"x"}, out)
    assert not list(out.iterdir())


def test_missing_members_are_named(tmp_path, out):
    archive = write_archive(tmp_path / "a.tgz", {"folder/x": "x"})
    with pytest.raises(ValueError, match="a.tgz` lacks y, z: it is not the archive"):
        extract(archive, {"x", "z", "y"}, out)


def test_more_text_than_any_corpus(tmp_path, out):
    archive = write_archive(tmp_path / "a.tgz", {name: name * 100 for name in "abx"})
    with mock.patch.object(corpora_text, "_MOST", 200):
        extract(archive, {"a", "x"}, out)
    with mock.patch.object(corpora_text, "_MOST", 199):
        with pytest.raises(ValueError, match="--archive: .*200 bytes .* at most 199"):
            extract(archive, {"a", "x"}, out)


def test_a_full_disk_is_no_damage(tmp_path, out):
    archive = write_archive(tmp_path / "a.tgz", {"x": "x"})
    full = OSError(errno.ENOSPC, "No space left on device")
    with mock.patch.object(shutil, "copyfileobj", side_effect=full):
        with pytest.raises(OSError) as error:
            extract(archive, {"x"}, out)
    assert error.value is full


DAMAGE = {
    "cut": lambda data: data[:4000],
    "overwritten": lambda data: data[:2000] + bytes(2000) + data[4000:],
    "without checksum": lambda data: data[:-4],
    "another kind": lambda data: b"<html>404",
    "empty": lambda data: b"",
}
# A tar has checksums in its headers only: without compression, what is overwritten is not noticed.
DAMAGED = [
    (kind, damage)
    for kind in ("w:gz", "w:xz", "w:bz2", "w")
    for damage in DAMAGE
    if (kind, damage) not in (("w", "overwritten"), ("w", "without checksum"))
]


@pytest.mark.parametrize("kind, damage", DAMAGED)
def test_damaged_archives(tmp_path, out, kind, damage):
    archive = tmp_path / "a.tgz"
    # What cannot be compressed: the damage is in the middle of the member.
    content = b"".join(number.to_bytes(8, "big") for number in range(0, 10**18, 10**14 + 7))
    with tarfile.open(archive, kind) as tar:
        info = tarfile.TarInfo("x")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    archive.write_bytes(DAMAGE[damage](archive.read_bytes()))
    with pytest.raises(ValueError, match="a.tgz` cannot be read to its end"):
        extract(archive, {"x"}, out)
