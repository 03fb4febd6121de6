"""`rbn translate`: raw sentences come to what `rbn generate` makes of the prepared ones."""

import io
import json
import os
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import runs
from command import rbn, user_error
from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint
from rbn_fairseq.cli.app import app
from rbn_fairseq.cli.translate import _chunks
from rbn_fairseq.corpora.build import apply_merges, learn_merges
from rbn_fairseq.pieces import write_pieces
from rbn_fairseq.translator import open_translator

SEARCH = ("--beam", 5, "--max-len-b", 200)  # fairseq's defaults


@pytest.fixture(scope="module")
def trained(corpus, shared):
    """Directory with `bin`, data in pieces that are named there, and `run`, trained on them.

    Its norms have running statistics by sentence length.
    """

    def make(directory):
        (directory / "text").mkdir(parents=True)
        learn_merges(corpus, directory / "code", ("de", "en"), 60)
        apply_merges(corpus, directory / "code", directory / "text", ("de", "en"))
        runs.preprocess(directory / "text", directory / "bin")
        tokens = {"tokenizer": "moses", "moses_no_dash_splits": True, "lowercase": True}
        write_pieces(directory / "bin", "subword_nmt", directory / "code", **tokens)
        options = ("--norm-encoder", "batch", "--norm-batch-length-bins", 4, "--no-tid")
        runs.train(directory / "bin", directory / "run", *options, "--max-epoch", 3)

    return shared("pieces", make)


def test_pieces_of_the_data(trained, corpus):
    path = trained / "run" / "checkpoint_best.pt"
    prepared = runs.generate(trained / "bin", path, *SEARCH, "--remove-bpe")
    assert len(set(prepared.values())) > 20  # it tells sentences apart
    raw = [line.title() for line in (corpus / "test.de").read_text().splitlines()]
    said = CliRunner().invoke(app, ["translate", str(trained / "run")], input="\n".join(raw) + "\n")
    assert said.stdout.splitlines() == [prepared[number] for number in range(len(raw))]


def test_a_byte_order_mark_is_no_text_and_a_carriage_return_ends_no_line(monkeypatch):
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfgut\rso\r\nsehr\n"))
    )
    assert list(_chunks([])) == [["gut\rso", "sehr"]]


def test_other_encodings(trained):
    command = [sys.executable, "-m", "rbn_fairseq", "translate", trained / "run"]
    lenient = {**os.environ, "LC_ALL": "C.UTF-8"}  # in which Python takes any byte
    done = subprocess.run(command, input=b"gut\n\xff\n", env=lenient, capture_output=True)
    assert done.returncode == 2 and b"stdin is not UTF-8" in done.stderr


def test_words_as_pieces_and_runs_side_by_side(rbn_run, data_bin, plain_run, corpus, tmp_path):
    prepared = runs.generate(data_bin, rbn_run / "checkpoint1.pt", *SEARCH)
    lines = (corpus / "test.de").read_text().splitlines()[:3]
    spaced = shutil.copytree(data_bin, tmp_path / "bin")
    (spaced / "pieces.json").write_text('{"tokenizer": "space"}')
    data = ("--data", spaced)
    one = rbn("translate", rbn_run / "checkpoint1.pt", *data, "", *lines)
    assert one.stdout.splitlines() == ["", *(prepared[number] for number in range(3))]
    two = rbn("translate", f"ours={rbn_run / 'checkpoint1.pt'}", lines[0], *data,
              "--beside", plain_run)  # fmt: skip
    source, ours, other = two.stdout.splitlines()
    assert source == lines[0] and ours.split(maxsplit=1) == ["ours", prepared[0]]
    assert other.split()[0] == plain_run.name
    unknown = "漢字" * 200  # longer than a file's name may be
    assert unknown in rbn("translate", rbn_run, *data, unknown).stderr
    with pytest.raises(ValueError, match="1,024"):
        open_translator(rbn_run, spaced, "cpu").translate_lines(["eins " * 1024])


def test_refusals(trained, rbn_run, data_bin, capsys, tmp_path):
    def refusal(*arguments):
        return user_error(capsys, "translate", *arguments)

    line = refusal(rbn_run, "eins")
    assert str(data_bin) in line and "pieces.json" in line and "bpe_codes" in line
    assert "checkpoint_best.pt" in refusal(tmp_path, "eins")
    assert "--beside" in refusal(rbn_run, data_bin)
    assert "called the same" in refusal(f"x={rbn_run}", "--beside", f"x={trained / 'run'}")
    state = read_checkpoint(rbn_run / "checkpoint1.pt")
    state["cfg"]["task"]["_name"] = "language_modeling_rbn"
    write_checkpoint(tmp_path / "lm.pt", state)
    assert "trained for language_modeling_rbn" in refusal(tmp_path / "lm.pt", "eins")
    words = shutil.copytree(data_bin, tmp_path / "words")
    (words / "code").write_text("no merges, no model\n")
    for text, told in (
        ("[]", "neither `tokenizer`"),
        ("{", "no JSON"),
        ('{"lowercase": true}', "neither `tokenizer`"),
        ('{"tokeniser": "space", "bpe": "subword_nmt"}', "`tokeniser` is not known"),
        ('{"tokenizer": "mosess"}', '`tokenizer` is "mosess", but must be "moses" or "space"'),
        ('{"tokenizer": "space", "lowercase": "false"}', "must be true or false"),
        ('{"bpe": null}', '`bpe` is null, but must be "subword_nmt" or "sentencepiece"'),
        ('{"bpe": "sentencepiece"}', "go together"),
        ('{"tokenizer": "space", "bpe_codes": "code"}', "go together"),
        ('{"bpe": "subword_nmt", "bpe_codes": null}', "must be a file's name"),
        ('{"bpe": "subword_nmt", "bpe_codes": "cods"}', "`cods`, but there is no such file"),
        ('{"bpe": "sentencepiece", "sentencepiece_model": "code"}', f"`{words / 'code'}`, which"),
    ):
        (words / "pieces.json").write_text(text)
        assert told in refusal(rbn_run, "--data", words, "eins"), text
    (words / "pieces.json").write_text('{"bpe": "subword_nmt", "bpe_codes": "code"}')
    with pytest.raises(ValueError, match=f"`{words / 'code'}`, which"):  # which says more on stderr
        open_translator(rbn_run, words, "cpu")
    capsys.readouterr()

    data = shutil.copytree(trained / "bin", tmp_path / "bin")
    recorded = json.loads((trained / "run" / "run.json").read_text())["data"]["pieces"]
    assert recorded["bpe_codes"] == "code" and len(recorded["sha256"]) == 64
    merges = (data / "code").read_text().splitlines(keepends=True)
    (data / "code").write_text("".join(merges[:-1]))
    line = refusal(trained / "run", "--data", data, "eins")
    assert "run.json" in line and str(data / "pieces.json") in line
    (data / "pieces.json").unlink()
    assert "does not say how" in refusal(trained / "run", "--data", data, "eins")
