"""Stages: interrupted, continued, finished, for another request; BPE against subword-nmt's."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import corpus
from published import bytes_of
from rbn_fairseq.corpora import build, iwslt14
from rbn_fairseq.corpora.build import apply_merges, learn_merges
from rbn_fairseq.corpora.iwslt14 import IWSLT14
from rbn_fairseq.corpora.text import SPLITS

LANGS = ("de", "en")


@pytest.fixture
def iwslt(de_en_tgz):
    return IWSLT14(de_en_tgz, jobs=1, merges=30)


@pytest.fixture
def make(iwslt, no_fairseq, said):
    def make(out, iwslt=iwslt):
        return build.build(iwslt, out, True, said.append)

    return make


class Stop(Exception):
    """Ends a call in the middle, as a kill would."""


def stop_while_tokenising(monkeypatch):
    real = iwslt14.tokenise

    def tokenise(lines, lang, jobs):
        if lang == "en":
            raise Stop
        return real(lines, lang, jobs)

    monkeypatch.setattr(iwslt14, "tokenise", tokenise)


def stop_while_cutting(monkeypatch):
    real = build.write_lines

    def write(path, lines):
        real(path, lines)
        if path.name == "valid.de":
            raise Stop

    monkeypatch.setattr(build, "write_lines", write)


def stop_while_making_binary(monkeypatch):
    def stop(text, out, langs, *options):
        (out / "dict.de.txt").write_text("half of i")
        raise Stop

    monkeypatch.setattr(build, "binarise", stop)


@pytest.mark.parametrize(
    "stop, finished",
    [
        (stop_while_tokenising, set()),
        (stop_while_cutting, {"text"}),
        (stop_while_making_binary, {"text", "bpe"}),
    ],
)
def test_an_interrupted_call_goes_on(make, monkeypatch, tmp_path, stop, finished):
    make(tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop(patch)
        with pytest.raises(Stop):
            make(tmp_path / "out")
    stages = {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()}
    assert {name for name in stages if not name.endswith(".unfinished")} == finished
    assert any(name.endswith(".unfinished") for name in stages)
    kept = {name: (tmp_path / "out" / name).stat().st_ino for name in finished}
    make(tmp_path / "out")
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")
    assert kept == {name: (tmp_path / "out" / name).stat().st_ino for name in finished}


def test_what_is_finished_is_not_done_again(make, iwslt, monkeypatch, tmp_path, said):
    about = make(tmp_path)
    assert about == json.loads((tmp_path / "bin/about.json").read_text())
    assert about["corpus"] == "IWSLT14 De-En" and about["standard"] is False
    assert about["types"] == 6
    # Counts, hashes of four files, number of merges.
    assert len(about["differences"]) == 3 + 4 + 1
    request = json.loads((tmp_path / "request.json").read_text())
    assert about["request"] == iwslt.request() == request
    before = bytes_of(tmp_path)
    stop_while_tokenising(monkeypatch)
    assert make(tmp_path) == about
    assert bytes_of(tmp_path) == before
    assert said[-1] == f"`{tmp_path}` is finished already"


def test_number_of_jobs_and_place_of_the_archive_do_not_matter(make, iwslt, tmp_path):
    moved = tmp_path / "moved.tgz"
    moved.write_bytes(iwslt.path.read_bytes())
    make(tmp_path / "one")
    make(tmp_path / "one", replace(iwslt, jobs=2, path=moved))
    make(tmp_path / "two", replace(iwslt, jobs=2, path=moved))
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")


@pytest.mark.parametrize("stages", [("text",), ("text", "bpe", "bin")])
def test_another_request(make, iwslt, tmp_path, stages):
    out = tmp_path / "out"
    make(out)
    for stage in {"text", "bpe", "bin"} - set(stages):
        shutil.rmtree(out / stage)
    before = bytes_of(out)
    archive = tmp_path / "de-en.tgz"
    archive.write_bytes(iwslt.path.read_bytes() + b"\0")
    for key, value, field in ("merges", 31, "merges"), ("path", archive, "archive"):
        with pytest.raises(ValueError, match=f"--output: `{out}` .* another value of {field} "):
            make(out, replace(iwslt, **{key: value}))
    assert bytes_of(out) == before


def test_a_directory_of_something_else(make, tmp_path):
    (tmp_path / "text").mkdir()
    with pytest.raises(ValueError, match="--output: .* holds `text`, and no request.json"):
        make(tmp_path)


def test_a_refused_request_binds_nobody(make, iwslt, tmp_path):
    wrong = tmp_path / "wrong.tgz"
    wrong.write_bytes(b"<html>")
    with pytest.raises(ValueError, match="cannot be read to its end"):
        make(tmp_path / "out", replace(iwslt, path=wrong))
    assert make(tmp_path / "out")["merges"] == 30


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


def test_merges_are_those_of_subword_nmt(text, tmp_path):
    code, out = tmp_path / "code", tmp_path / "bpe"
    out.mkdir()
    learn_merges(text, code, LANGS, 120)
    train = b"".join((text / f"train.{lang}").read_bytes() for lang in LANGS)
    assert code.read_bytes() == subword_nmt("learn-bpe", "-s", 120, source=train)
    apply_merges(text, code, out, LANGS)
    for name in (f"{split}.{lang}" for split in SPLITS for lang in LANGS):
        source = (text / name).read_bytes()
        assert (out / name).read_bytes() == subword_nmt("apply-bpe", "-c", code, source=source)


def test_a_line_separator_ends_no_line(text, tmp_path):
    (text / "valid.de").write_text("ein\u2028s zwei\u0085\n")
    (tmp_path / "code").write_text("#version: 0.2\ne i\n")
    (tmp_path / "bpe").mkdir()
    apply_merges(text, tmp_path / "code", tmp_path / "bpe", LANGS)
    pieces = (tmp_path / "bpe" / "valid.de").read_text().split("\n")
    assert pieces == ["ei@@ n@@ \u2028@@ s z@@ w@@ ei@@ \u0085", ""]


def test_fewer_merges_than_asked_for(tmp_path):
    for lang in LANGS:
        (tmp_path / f"train.{lang}").write_text("ab ab\n")
    learn_merges(tmp_path, tmp_path / "code", LANGS, 500)
    assert (tmp_path / "code").read_text() == "#version: 0.2\na b</w>\n"
