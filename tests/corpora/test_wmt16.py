"""WMT16 from the archive with BPE applied, and from raw text."""

import gzip
import subprocess
from argparse import Namespace
from collections import Counter

import pytest

import published
from rbn_fairseq.corpora.build import Standard, build
from rbn_fairseq.corpora.moses import Tokeniser
from rbn_fairseq.corpora.wmt16 import WMT16FromArchive, WMT16FromRaw
from rbn_fairseq.pieces import read_pieces

LANGS = ("en", "de")
STEMS = {"train": "train", "valid": "newstest2013", "test": "newstest2014"}


def test_archive(monkeypatch, tmp_path, said, no_fairseq):
    monkeypatch.setattr(
        WMT16FromArchive, "standard", Standard({"train": 40, "valid": 5, "test": 6})
    )
    members = published.wmt_members(tmp_path)
    archive = published.write_archive(tmp_path / "a.tar.gz", members)
    about = build(WMT16FromArchive(archive, 1), tmp_path / "out", False, said.append)
    assert about["standard"] and about["merges"] == 32_000
    assert about["pairs"] == {"train": 40, "valid": 5, "test": 6}
    stems = ("train.tok.clean", "newstest2013.tok", "newstest2014.tok")
    for split, stem in zip(STEMS, stems, strict=True):
        for lang in LANGS:
            pieces = members[f"{stem}.bpe.32000.{lang}"].encode()
            assert (tmp_path / f"out/bpe/{split}.{lang}").read_bytes() == pieces
            whole = subprocess.run(["sed", "s/@@ //g"], input=pieces, capture_output=True)
            assert (tmp_path / f"out/text/{split}.{lang}").read_bytes() == whole.stdout
    assert {path.name for path in (tmp_path / "out/text").iterdir()} == {
        "about.json", *(f"{split}.{lang}" for split in STEMS for lang in LANGS)
    }  # fmt: skip


def test_archive_with_other_counts(tmp_path, said, no_fairseq):
    archive = published.write_archive(tmp_path / "a.tar.gz", published.wmt_members(tmp_path))
    with pytest.raises(ValueError, match="not the standard WMT16 En-De") as error:
        build(WMT16FromArchive(archive, 1), tmp_path / "out", False, said.append)
    assert "train has 40 pairs, the standard has 4,500,966" in str(error.value)
    assert "test has 6 pairs, the standard has 3,003" in str(error.value)


@pytest.fixture
def raw(tmp_path):
    directory = tmp_path / "raw"
    directory.mkdir()
    for seed, (stem, size) in enumerate(
        {"train": 60, "newstest2013": 7, "newstest2014": 8}.items()
    ):
        text = published.pairs(size, 40 + seed, tmp_path) + published.ODD
        if stem == "train":  # 80 and 81 tokens; nine and ten times as many
            text += [("w " * 80, "w " * 80), ("w " * 81, "w " * 81)]
            text += [("w " * 9, "w"), ("w " * 10, "w")]
        for side, lang in enumerate(("de", "en")):
            content = "".join(f"{pair[side]}\r\n" for pair in text)
            (directory / f"{stem}.{lang}.gz").write_bytes(gzip.compress(content.encode()))
    return directory


def read(path):
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def tokens(raw, stem, lang):
    text = gzip.decompress((raw / f"{stem}.{lang}.gz").read_bytes()).decode()
    return list(Tokeniser(1)(text.replace("\r\n", "\n").split("\n")[:-1], lang))


def test_raw_to_what_fairseq_reads(raw, tmp_path, said):
    from fairseq.data import Dictionary, encoders
    from fairseq.data.data_utils import load_indexed_dataset

    out = tmp_path / "out"
    about = build(WMT16FromRaw(raw, 2, merges=150), out, False, said.append)
    assert not about["standard"] and "made from raw text" in about["differences"][0]
    for split in ("valid", "test"):
        for lang in LANGS:
            assert read(out / f"text/{split}.{lang}") == tokens(raw, STEMS[split], lang)
    # Every side is short but those made for the limits.
    sides = zip(*(tokens(raw, "train", lang) for lang in LANGS), strict=True)
    kept = [
        (len(en.split()), len(de.split()))
        for en, de in sides
        if en.strip() and de.strip() and len(en.split()) <= 80
        and max(len(en.split()), len(de.split())) <= 9 * min(len(en.split()), len(de.split()))
    ]  # fmt: skip
    train = [read(out / f"text/train.{lang}") for lang in LANGS]
    assert [(len(en.split()), len(de.split())) for en, de in zip(*train, strict=True)] == kept
    assert (80, 80) in kept and (1, 9) in kept
    assert any(line[0].isupper() for line in train[0])
    raw_test = gzip.decompress((raw / "newstest2014.de.gz").read_bytes())
    assert (out / "raw/test.de").read_bytes() == raw_test.replace(b"\r", b"")

    options = {"source_lang": "en", "target_lang": "de", **read_pieces(out / "bin")}
    options["bpe_codes"] = str(out / "bin" / options["bpe_codes"])
    tokenise = encoders.build_tokenizer(Namespace(**options)).encode
    apply_bpe = encoders.build_bpe(Namespace(**options)).encode
    for line, expected in zip(read(out / "raw/test.en"), read(out / "bpe/test.en"), strict=True):
        assert apply_bpe(tokenise(line)).split() == expected.split()

    dictionaries = [Dictionary.load(str(out / f"bin/dict.{lang}.txt")) for lang in LANGS]
    assert dictionaries[0] == dictionaries[1] and len(dictionaries[0]) == about["types"]
    pieces = Counter(
        piece
        for lang in LANGS
        for line in read(out / f"bpe/train.{lang}")
        for piece in line.split()
    )
    found = {dictionaries[0][i]: dictionaries[0].count[i] for i in range(4, about["types"])}
    assert {piece: count for piece, count in found.items() if count} == pieces  # else it is padding
    for split in STEMS:
        for lang in LANGS:
            data = load_indexed_dataset(str(out / f"bin/{split}.en-de.{lang}"), None)
            assert len(data) == about["pairs"][split]


def test_raw_sides_of_unequal_length(raw, tmp_path, said, no_fairseq):
    text = gzip.decompress((raw / "train.en.gz").read_bytes())
    (raw / "train.en.gz").write_bytes(gzip.compress(text + b"one more\n"))
    with pytest.raises(ValueError, match="train.en has 75 lines, train.de 74"):
        build(WMT16FromRaw(raw, 1, 10), tmp_path / "out", False, said.append)
