"""Pieces against those of the command subword-nmt."""

import subprocess
import sys
from pathlib import Path

import pytest

import corpus
from rbn_fairseq.corpora import bpe
from rbn_fairseq.corpora.lines import SPLITS

LANGS = ("de", "en")


def subword_nmt(*arguments, source):
    done = subprocess.run(
        [str(Path(sys.executable).with_name("subword-nmt")), *map(str, arguments)],
        input=source, capture_output=True, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.fixture
def text(tmp_path):
    corpus.write_corpus(tmp_path / "text", {"train": 300, "valid": 20, "test": 21})
    for lang in LANGS:  # words that were not in training, an empty line, spaces
        with (tmp_path / "text" / f"test.{lang}").open("a") as file:
            file.write("xylophon ünter\n\n  zwei  drei \nfest\u00a0verbunden\n")
    return tmp_path / "text"


@pytest.mark.parametrize("jobs", [1, 2])
def test_codes_and_pieces(text, tmp_path, jobs, said):
    code, out = tmp_path / "code", tmp_path / "bpe"
    out.mkdir()
    bpe.learn(text, code, LANGS, 120)
    train = b"".join((text / f"train.{lang}").read_bytes() for lang in LANGS)
    assert code.read_bytes() == subword_nmt("learn-bpe", "-s", 120, source=train)
    assert bpe.check_codes(code) == 120
    bpe.apply(text, code, out, LANGS, jobs, said.append)
    for name in (f"{split}.{lang}" for split in SPLITS for lang in LANGS):
        source = (text / name).read_bytes()
        assert (out / name).read_bytes() == subword_nmt("apply-bpe", "-c", code, source=source)


def test_a_line_separator_ends_no_line(text, tmp_path, said):
    (text / "valid.de").write_text("ein\u2028s zwei\u0085\n")
    (tmp_path / "code").write_text("#version: 0.2\ne i\n")
    (tmp_path / "bpe").mkdir()
    bpe.apply(text, tmp_path / "code", tmp_path / "bpe", LANGS, 1, said.append)
    pieces = (tmp_path / "bpe" / "valid.de").read_text().split("\n")
    assert pieces == ["ei@@ n@@ \u2028@@ s z@@ w@@ ei@@ \u0085", ""]


def test_fewer_merges_than_asked_for(tmp_path):
    for lang in LANGS:
        (tmp_path / f"train.{lang}").write_text("ab ab\n")
    bpe.learn(tmp_path, tmp_path / "code", LANGS, 500)
    assert bpe.check_codes(tmp_path / "code") == 1  # ab, as a word's end


@pytest.mark.parametrize(
    "content, expected",
    [
        ("#version: 0.2\na b\na b c\n", "line 3 of `.*code` is not two pieces"),
        ("a b\n\nc d\n", "line 2 of"),
        ("#version: 0.3\na b\n", "a version not known"),
        ("#version: 0.2\n", "holds no merges"),
        ("", "holds no merges"),
        (None, "there is no file"),
    ],
)
def test_codes_that_are_none(tmp_path, content, expected):
    if content is not None:
        (tmp_path / "code").write_text(content)
    with pytest.raises(ValueError, match=f"--bpe-codes: .*{expected}"):
        bpe.check_codes(tmp_path / "code")
