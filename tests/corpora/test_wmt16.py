"""WMT16 from the archive with BPE applied."""

import subprocess

import pytest

import published
from rbn_fairseq.corpora.build import build
from rbn_fairseq.corpora.wmt16 import WMT16

LANGS = ("en", "de")
SPLITS = ("train", "valid", "test")


def test_archive(monkeypatch, tmp_path, said, no_fairseq):
    monkeypatch.setattr(WMT16, "standard", {"train": 40, "valid": 5, "test": 6})
    members = published.wmt_members(tmp_path)
    archive = published.write_archive(tmp_path / "a.tar.gz", members)
    about = build(WMT16(archive, 32_000), tmp_path / "out", False, said.append)
    assert about["standard"] and about["merges"] == 32_000
    assert about["pairs"] == {"train": 40, "valid": 5, "test": 6}
    stems = ("train.tok.clean", "newstest2013.tok", "newstest2014.tok")
    for split, stem in zip(SPLITS, stems, strict=True):
        for lang in LANGS:
            pieces = members[f"{stem}.bpe.32000.{lang}"].encode()
            assert (tmp_path / f"out/bpe/{split}.{lang}").read_bytes() == pieces
            whole = subprocess.run(["sed", "s/@@ //g"], input=pieces, capture_output=True)
            assert (tmp_path / f"out/text/{split}.{lang}").read_bytes() == whole.stdout
    assert {path.name for path in (tmp_path / "out/text").iterdir()} == {
        "about.json", *(f"{split}.{lang}" for split in SPLITS for lang in LANGS)
    }  # fmt: skip


def test_archive_with_other_counts(tmp_path, said, no_fairseq):
    archive = published.write_archive(tmp_path / "a.tar.gz", published.wmt_members(tmp_path))
    with pytest.raises(ValueError, match="not the standard WMT16 En-De") as error:
        build(WMT16(archive, 32_000), tmp_path / "out", False, said.append)
    assert "train has 40 pairs, the standard has 4,500,966" in str(error.value)
    assert "test has 6 pairs, the standard has 3,003" in str(error.value)
