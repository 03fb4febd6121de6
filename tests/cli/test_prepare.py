"""`rbn prepare`: options, what it prints, and errors of one line."""

import errno
import json

import pytest

import corpus
from command import assert_a_signal_stops, completed, rbn, user_error
from rbn_fairseq.corpora import build, iwslt14
from rbn_fairseq.corpora.text import sha256
from rbn_fairseq.pieces import read_pieces


@pytest.fixture
def text(tmp_path):
    corpus.write_corpus(tmp_path / "text", {"train": 40, "valid": 5, "test": 6})
    return tmp_path / "text"


def test_iwslt14_to_the_end(text, tmp_path):
    command = ("prepare", "iwslt14", "--from-tokenized", text, "--output", tmp_path / "out")
    command += ("--merges", 30, "--jobs", 1, "--allow-nonstandard")
    result = completed(*command)
    about = json.loads((tmp_path / "out/bin/about.json").read_text())
    assert about["pairs"] == {"train": 40, "valid": 5, "test": 6} and not about["standard"]
    assert all(difference in result.output for difference in about["differences"])
    assert f"merges      {about['merges']}\n" in result.output
    assert (tmp_path / "out/bin/train.de-en.de.idx").exists()
    pieces = read_pieces(tmp_path / "out/bin")
    assert pieces["lowercase"] and pieces["sha256"] == sha256(tmp_path / "out/bpe/code")
    assert "is finished already" in rbn(*command).output


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (("iwslt14",), "Give --archive FILE or --from-tokenized DIR"),
        (("iwslt14", "--archive", "a", "--from-tokenized", "b"), "one of the two"),
        (("wmt16", "--archive", "none.tgz"), "--archive: there is no file `none.tgz`"),
        (("iwslt14", "--archive", "none.tgz"), "--archive: there is no file `none.tgz`"),
        (("iwslt14", "--from-tokenized", "none"), "--from-tokenized: there is no directory"),
    ],
)
def test_refusals(capsys, monkeypatch, tmp_path, arguments, expected):
    monkeypatch.chdir(tmp_path)
    assert expected in user_error(capsys, "prepare", *arguments)
    assert not list(tmp_path.iterdir())


def test_a_signal_stops_what_it_runs(monkeypatch, text, tmp_path):
    command = ("prepare", "iwslt14", "--from-tokenized", text, "--output", tmp_path / "out")
    command += ("--merges", 30, "--jobs", 1, "--allow-nonstandard")
    assert_a_signal_stops(monkeypatch, build, *command)


def test_full_disk(capsys, monkeypatch, text, tmp_path):
    def write(path, lines):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(iwslt14, "write_lines", write)
    line = user_error(
        capsys, "prepare", "iwslt14", "--from-tokenized", text, "--output", tmp_path / "out"
    )
    assert "No space left on device: " in line and "train.de" in line


def test_full_disk_under_fairseq(capsys, monkeypatch, text, tmp_path):
    # A directory in the place of a file, which fairseq-preprocess cannot write either.
    make = build.binarise

    def binarise(source, out, *rest):
        (out / "dict.de.txt").mkdir()
        make(source, out, *rest)

    monkeypatch.setattr(build, "binarise", binarise)
    command = ("prepare", "iwslt14", "--from-tokenized", text, "--output", tmp_path / "out")
    line = user_error(capsys, *command, "--merges", 20, "--allow-nonstandard")
    assert "fairseq-preprocess failed" in line and "dict.de.txt" in line
    assert not (tmp_path / "out/bin").exists()


def test_interrupt(monkeypatch, text, tmp_path):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(iwslt14, "write_lines", interrupt)
    result = rbn("prepare", "iwslt14", "--from-tokenized", text, "--output", tmp_path / "out")
    assert result.exit_code == 130
    assert "the same command does what is left" in result.output
