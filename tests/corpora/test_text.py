"""Text of one sentence a line: reading, lower case, taking it out of archives."""

import errno
import io
import shutil
import subprocess
import tarfile
from pathlib import Path
from unittest import mock

import pytest

from published import write_archive
from rbn_fairseq.corpora.text import extract, lower_case, read_lines, write_lines

# str.splitlines and fairseq's readers end lines at some of these.
LINES = ["a\u2028b", "c\u0085d", "e\u00a0f", "", "g\x0bh\x1ci", " j | k "]


def test_written_lines_are_read(tmp_path):
    write_lines(tmp_path / "text", LINES)
    assert (tmp_path / "text").read_bytes() == "".join(f"{line}\n" for line in LINES).encode()
    assert list(read_lines(tmp_path / "text")) == LINES


def test_a_carriage_return_ends_no_line(tmp_path):
    (tmp_path / "text").write_bytes(b"a\rb\r\n\r\nc\r")
    assert list(read_lines(tmp_path / "text")) == ["a b", "", "c"]


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n")
    assert list(read_lines(tmp_path / "text")) == ["a", "\ufeffb"]


def test_not_utf8(tmp_path):
    (tmp_path / "text").write_bytes(b"a\nb\xe4\n")
    with pytest.raises(ValueError, match="Line 2 of `.*text` is not UTF-8"):
        list(read_lines(tmp_path / "text"))


@pytest.mark.skipif(shutil.which("perl") is None, reason="the oracle is Perl")
def test_lower_case_is_perls():
    # Latin, Greek, Cyrillic and Georgian as single characters, and sigma at the end of words.
    text = "\n".join([*map(chr, range(0x21, 0x1D00)), "ΟΔΟΣ ΑΣ, Σ ΣΑ", "İI ẞ"]) + "\n"
    perl = subprocess.run(
        ["perl", "-CSD", "-ne", "print lc"], input=text.encode(), capture_output=True, check=True
    )
    assert [lower_case(line) for line in text.split("\n")] == perl.stdout.decode().split("\n")


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
