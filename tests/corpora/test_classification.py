"""Corpora of texts with labels: readers, errors by line, the validation set, stages."""

import gzip
import json
from collections import Counter

import pytest

from command import user_error
from rbn_fairseq.corpora import build
from rbn_fairseq.corpora.classification import STANDARDS, Texts, read_texts, tokenise


def file(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    return path


@pytest.mark.parametrize(
    "name, content, expected",
    [
        ("a.tsv", "good\tA film.\nvery bad\t\n", [("good", "A film."), ("very_bad", "")]),
        ("a.tsv.gz", "1\tA \u2028 film.\n\n0\tNo.", [("1", "A \u2028 film."), ("0", "No.")]),
        ("a.tsv", "a\t16\tx\r\n\r\nb\t17\ty\r\n", [("a", "x"), ("b", "y")]),
    ],
)
def test_readers(tmp_path, name, content, expected):
    rows = read_texts(file(tmp_path, name, content))
    assert [(row.label, row.text) for row in rows] == expected


@pytest.mark.parametrize(
    "content, message",
    [
        ("a\tx\nno label\n", "Line 2 of `.*a.tsv` has 0 tabs .*`no label`: expected is a label"),
        ("a\tx\n\n\ty\n", "Line 3 .* expected is a label"),
        ("a\t1\tx\ty\n", "Line 1 .* has 3 tabs"),
        ("a\tx\nb\t1\ty\n", "Line 2 .* has 2 tabs"),
    ],
)
def test_errors_name_the_line(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        list(read_texts(file(tmp_path, "a.tsv", content)))


CUT = gzip.compress(b"a\tx\n" * 9999)[:-20]


@pytest.mark.parametrize("content", [b"a\tx\n", CUT], ids=["no gzip", "cut off"])
def test_damaged_gzip(tmp_path, content):
    (tmp_path / "a.tsv.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.tsv\.gz` cannot be read to its end"):
        list(read_texts(tmp_path / "a.tsv.gz"))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("It's GREAT,<br /><br/>isn’t it?", "it's great , isn’t it ?"),
        (r"5/5 C:\new-made...", r"5 / 5 c : \ new - made . . ."),
        ("<unk> \u2028\t x\x85y", "< unk > x y"),
        ("I ❤\ufe0flove", "i ❤\ufe0f love"),
        ("नमस्ते, cafe\u0301 8½!", "नमस्ते , cafe\u0301 8½ !"),
        ("", ""),
    ],
)
def test_tokens(text, expected):
    assert tokenise(text) == expected


@pytest.fixture
def files(tmp_path):
    train = "".join(f"{'ab'[k % 2]}\ttext {k}\n" for k in range(20))
    return file(tmp_path, "train.tsv", train), file(tmp_path, "test.tsv", "b\tlast\na\tx\na\ty\n")


def lines(path):
    return path.read_text().splitlines()


def test_stages(files, no_fairseq, tmp_path, said):
    corpus = Texts(*files, valid_part=0.3, types=50)
    out = tmp_path / "out"
    about = build.build(corpus, out, False, said.append)
    assert about["texts"] == {"train": 14, "valid": 6, "test": 3} and about["types"] == 6
    assert about["labels"]["test"] == {"a": 2, "b": 1}
    ((langs, options, joined),) = no_fairseq
    assert langs == ("text", "label") and not joined
    assert ("--nwordssrc", "50", "--padding-factor", "1") == options[:4]
    parts = {
        split: list(zip(lines(out / f"text/{split}.label"), lines(out / f"text/{split}.text"),
                        strict=True))
        for split in ("train", "valid", "test")
    }  # fmt: skip
    assert parts["test"] == [("b", "last"), ("a", "x"), ("a", "y")]
    every = [(row.label, row.text) for row in read_texts(files[0])]
    assert Counter(parts["train"] + parts["valid"]) == Counter(every)
    for part in (parts["train"], parts["valid"]):
        assert part == [row for row in every if row in part]  # in their order
    assert build.build(corpus, out, False, said.append) == about and len(no_fairseq) == 1
    assert "finished already" in said[-1]
    with pytest.raises(ValueError, match="another value of seed"):
        build.build(Texts(*files, valid_part=0.3, types=50, seed=2), out, False, said.append)
    build.build(Texts(*files, seed=2), tmp_path / "other", False, said.append)
    assert lines(tmp_path / "other/text/valid.text") != lines(out / "text/valid.text")


def test_a_given_validation_set(files, no_fairseq, tmp_path):
    train, test = files
    about = build.build(Texts(train, test, valid=test), tmp_path / "out", False, print)
    assert about["texts"] == {"train": 20, "valid": 3, "test": 3}
    assert about["request"]["seed"] is None


def test_standard_numbers(files, no_fairseq, tmp_path):
    with pytest.raises(ValueError, match=r"not the standard IMDB: train and valid.*'a': 10.*; te"):
        build.build(Texts(*files, **STANDARDS["imdb"]), tmp_path / "out", False, print)
    assert not (tmp_path / "out" / "text").exists()
    about = build.build(Texts(*files, **STANDARDS["imdb"]), tmp_path / "out", True, print)
    assert len(about["differences"]) == 2 and not about["standard"]
    standard = Texts(*files, standard={"a": 10, "b": 10})
    about = build.build(standard, tmp_path / "half", True, print)
    assert len(about["differences"]) == 1 and "test: " in about["differences"][0]


@pytest.mark.parametrize(
    "train, test, message",
    [
        ("a\tx\nb\ty\na\tz\nb\tw\n", "a\tx\nc\ty\n", "Line 2 of .*test.tsv` has the label `c`"),
        ("b\tx\nc\ty\na\tz\nb\tw\na\tx\n", "a\tx\n", "Line 2 .*`c`.* drawn, .*--valid"),
        ("a\tx\na\ty\na\tz\n", "a\tx\n", "has 1 labels to train on"),
        ("a\tx\nb\ty\n", "a\tx\n", "no texts for `valid`"),
        ("a\tx\nb\ty\na\tz\nb\tw\n", "", "no texts for `test`"),
    ],
)
def test_refused(no_fairseq, tmp_path, train, test, message):
    paths = file(tmp_path, "train.tsv", train), file(tmp_path, "test.tsv", test)
    with pytest.raises(ValueError, match=message):
        build.build(Texts(*paths, valid_part=0.2), tmp_path / "out", False, print)


def test_errors_of_the_command(files, tmp_path, capsys):
    command = ("prepare", "classification", "--train", files[0], "--output", tmp_path / "out")
    line = user_error(capsys, *command, "--test", tmp_path / "none.tsv")
    assert "--test: there is no file" in line
    assert not (tmp_path / "out").exists()
    bad = file(tmp_path, "bad.tsv", "a\tx\nb\n")
    line = user_error(capsys, *command, "--test", bad)
    assert "Line 2 of" in line and "bad.tsv" in line
    assert json.loads((tmp_path / "out/request.json").read_text())["corpus"] == "texts"
    imdb = ("--test", files[1], "--corpus", "imdb", "--output", tmp_path / "imdb")
    line = user_error(capsys, *command, *imdb)
    assert "not the standard IMDB" in line and "--allow-nonstandard" in line
