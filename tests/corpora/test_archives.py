"""What is taken out of an archive, and which archives are refused."""

import io
import tarfile

import pytest
from published import write_archive

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


# A cut in the compressed data, one in the checksum behind it, another kind of file, an empty one.
@pytest.mark.parametrize("damage", [lambda d: d[:4000], lambda d: b"<html>404", lambda d: b""])
@pytest.mark.parametrize("kind", ["w:gz", "w:xz", "w"])
def test_damaged_archives(tmp_path, out, damage, kind):
    archive = tmp_path / "a.tgz"
    # What cannot be compressed: the cut is in the middle of the member.
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
