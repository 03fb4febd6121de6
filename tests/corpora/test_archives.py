"""What is taken out of an archive, and which archives are refused."""

import errno
import io
import shutil
import tarfile
from unittest import mock

import pytest
from published import write_archive

from rbn_fairseq.corpora import archives
from rbn_fairseq.corpora.archives import extract


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


def link(name, target, kind):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "member",
    [
        tarfile.TarInfo("../outside"),
        tarfile.TarInfo("a/../../outside"),
        tarfile.TarInfo("/absolute"),
        link("link", "../../outside", tarfile.SYMTYPE),
        link("link", "/etc/passwd", tarfile.SYMTYPE),
        link("link", "../outside", tarfile.LNKTYPE),
        link("x", "", tarfile.FIFOTYPE),
        link("x", "", tarfile.CHRTYPE),
    ],
    ids=lambda member: f"{member.name} {member.linkname}",
)
def test_members_that_would_leave(tmp_path, out, member):
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(tarfile.TarInfo("x"), io.BytesIO())
        tar.addfile(member, io.BytesIO())
    with pytest.raises(ValueError, match="--archive: .*a.tar` was refused") as error:
        extract(archive, {"x"}, out)
    assert repr(member.name) in str(error.value)
    assert not (tmp_path / "outside").exists()


def test_missing_members_are_named(tmp_path, out):
    archive = write_archive(tmp_path / "a.tgz", {"folder/x": "x"})
    with pytest.raises(ValueError, match="a.tgz` lacks y, z: it is not the archive"):
        extract(archive, {"x", "z", "y"}, out)


def test_link_in_the_place_of_a_file(tmp_path, out):
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        tar.addfile(link("x", "y", tarfile.SYMTYPE))
    with pytest.raises(ValueError, match="link or a device"):
        extract(archive, {"x"}, out)


def header(name, size, attributes=None):
    info = tarfile.TarInfo(name)
    info.size, info.pax_headers = size, attributes or {}
    return info.tobuf()


def sparse(size, stored):
    """Header of a file with holes, in GNU's format: of ``size`` bytes, ``stored`` of them there."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, stored
    buf = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    buf[483:495] = b"%011o\0" % size
    buf[148:156] = b" " * 8
    buf[148:156] = b"%06o\0 " % sum(buf)
    return bytes(buf)


# More than is behind it; holes, which take no room in the archive; less than nothing.
@pytest.mark.parametrize(
    "content, size",
    [
        (header("x", 2**50), 2**50),
        (header("other", 2**50), 2**50),
        (sparse(8**11 - 1, 0) + bytes(1024), 8**11 - 1),
        (header("x", 0, {"size": "-512"}) + bytes(1024), -512),
    ],
    ids=["wanted", "other", "holes", "negative"],
)
def test_members_of_impossible_size(tmp_path, out, content, size):
    archive, most = tmp_path / "a.tar", 2**32  # GNU's holes are of 8 GiB at most
    archive.write_bytes(content)
    with mock.patch.object(archives, "_MOST", most):
        with pytest.raises(ValueError, match="--archive: .*a.tar` was refused") as error:
            extract(archive, {"x"}, out)
    assert f"its size is {size:,} bytes, of at most {most:,}" in str(error.value)
    assert not list(out.iterdir())


def test_all_members_together(tmp_path, out):
    archive = write_archive(tmp_path / "a.tgz", {name: name * 100 for name in "abx"})
    with mock.patch.object(archives, "_MOST", 300):
        extract(archive, {"x"}, out)
    with mock.patch.object(archives, "_MOST", 299), pytest.raises(ValueError, match="'x'"):
        extract(archive, {"x"}, out)


# tarfile reads the first as a whole, before there is a member; the second leads it to the same
# header without end; what it raises at the third does not tell of any archive.
@pytest.mark.parametrize(
    "content",
    [
        tarfile.TarInfo("x" * 2**21).tobuf(tarfile.GNU_FORMAT),
        sparse(1, -512),
        header("x", 0, {"GNU.sparse.map": "many"}),
    ],
    ids=["long name", "endless", "no number"],
)
def test_headers_that_mislead(tmp_path, out, content):
    archive = tmp_path / "a.tar"
    archive.write_bytes(content + bytes(1024))
    with mock.patch.object(archives, "_MOST", 100):  # what is endless ends here
        with pytest.raises(ValueError, match="a.tar` cannot be read to its end"):
            extract(archive, {"x"}, out)


def test_a_full_disk_is_no_damage(tmp_path, out):
    archive = write_archive(tmp_path / "a.tgz", {"x": "x"})
    full = OSError(errno.ENOSPC, "No space left on device")
    with mock.patch.object(shutil, "copyfileobj", side_effect=full):
        with pytest.raises(OSError) as error:
            extract(archive, {"x"}, out)
    assert error.value is full


def cut(data):
    return data[:4000]


def overwritten(data):
    return data[:2000] + bytes(2000) + data[4000:]


def without_checksum(data):
    return data[:-4]


def another_kind(data):
    return b"<html>404"


def empty(data):
    return b""


# A tar has checksums in its headers only: without compression, what is overwritten is not noticed.
DAMAGED = [
    (kind, damage)
    for kind in ("w:gz", "w:xz", "w:bz2", "w")
    for damage in (cut, overwritten, without_checksum, another_kind, empty)
    if (kind, damage) not in (("w", overwritten), ("w", without_checksum))
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
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(ValueError, match="a.tgz` cannot be read to its end"):
        extract(archive, {"x"}, out)


def test_no_archive(tmp_path, out):
    with pytest.raises(ValueError, match="there is no file `.*none.tgz`"):
        extract(tmp_path / "none.tgz", {"x"}, out)
