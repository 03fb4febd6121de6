"""Texts for language modelling: PTB and WikiText-103 as fairseq reads them, and wrong files."""

import json

import pytest
from fairseq.data import Dictionary, data_utils

from command import completed, rbn, user_error

LINES = {"train": ["a b a", "b", ""], "valid": ["a"], "test": ["a c"]}
FILES = {"ptb": "ptb.{}.txt", "wikitext103": "wiki.{}.tokens"}


@pytest.fixture(params=FILES)
def text(request, tmp_path):
    for split, lines in LINES.items():
        name = FILES[request.param].format(split)
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    return request.param, tmp_path


def test_it_is_what_fairseq_reads(text, tmp_path):
    name, directory = text
    out = tmp_path / "out"
    arguments = ("prepare", name, "--text", directory, "--output", out, "--jobs", 1)
    result = completed(*arguments, "--allow-nonstandard")
    assert "NOT THE STANDARD: " in result.output and '"train": 3' in result.output
    words = Dictionary.load(str(out / "bin" / "dict.txt"))
    data = data_utils.load_indexed_dataset(str(out / "bin" / "train"), words)
    # An empty line is one, as in the standard's numbers: WikiText's perplexity counts its end.
    assert [words.string(data[index]) for index in range(len(data))] == LINES["train"]
    about = json.loads((out / "bin" / "about.json").read_text())
    assert about["lines"] == {"train": 3, "valid": 1, "test": 1} and not about["standard"]
    again = rbn(*arguments)
    assert "finished already" in again.output and '"train": 3' in again.output


def test_what_is_not_the_standard_is_refused(text, tmp_path, capsys):
    name, directory = text
    out = tmp_path / "out"
    arguments = ("prepare", name, "--text", directory, "--output", out)
    assert "train" in (error := user_error(capsys, *arguments))
    assert "has 3 lines, the standard has" in error and "--allow-nonstandard" in error
    assert not (out / "bin").exists()


def test_other_files(text, tmp_path, capsys):
    name, directory = text
    out = tmp_path / "out"
    arguments = ("prepare", name, "--text", directory, "--output", out, "--allow-nonstandard")
    completed(*arguments)
    valid = directory / FILES[name].format("valid")
    valid.write_text("another\n")
    assert "request.json" in user_error(capsys, *arguments)
    valid.unlink()
    assert f"there is no `{valid}`" in user_error(capsys, *arguments)
