"""`rbn translate`: raw sentences come to what `rbn generate` makes of the prepared ones."""

import json
import shutil

import pytest
from typer.testing import CliRunner

import runs
from command import rbn, user_error
from rbn_fairseq.cli.app import app
from rbn_fairseq.corpora.build import apply_merges, learn_merges
from rbn_fairseq.pieces import write_pieces

SEARCH = ("--beam", 5, "--max-len-b", 200)  # fairseq's defaults


@pytest.fixture(scope="module")
def trained(corpus, shared):
    """Directory with `bin`, data in pieces that are named there, and `run`, trained on them.

    Its norms have running statistics by sentence length.
    """

    def make(directory):
        (directory / "text").mkdir(parents=True)
        learn_merges(corpus, directory / "code", ("de", "en"), 60)
        apply_merges(corpus, directory / "code", directory / "text", ("de", "en"), 1)
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


def test_pieces_of_the_command_and_runs_side_by_side(rbn_run, data_bin, plain_run, corpus):
    prepared = runs.generate(data_bin, rbn_run / "checkpoint1.pt", *SEARCH)
    lines = (corpus / "test.de").read_text().splitlines()[:3]
    pieces = ("--tokenizer", "space")
    one = rbn("translate", rbn_run / "checkpoint1.pt", *pieces, "", *lines)
    assert one.stdout.splitlines() == ["", *(prepared[number] for number in range(3))]
    two = rbn("translate", f"ours={rbn_run / 'checkpoint1.pt'}", lines[0], *pieces,
              "--beside", plain_run)  # fmt: skip
    source, ours, other = two.stdout.splitlines()
    assert source == lines[0] and ours.split(maxsplit=1) == ["ours", prepared[0]]
    assert other.split()[0] == plain_run.name
    unknown = "漢字" * 200  # longer than a file's name may be
    assert unknown in rbn("translate", rbn_run, *pieces, unknown).stderr


def test_refusals(trained, rbn_run, data_bin, capsys, tmp_path):
    def refusal(*arguments):
        return user_error(capsys, "translate", *arguments)

    line = refusal(rbn_run, "eins")
    assert str(data_bin) in line and "--tokenizer" in line and "--bpe-codes" in line
    assert "checkpoint_best.pt" in refusal(tmp_path, "eins")
    assert "--beside" in refusal(rbn_run, data_bin)
    assert "1,024" in refusal(rbn_run, "--tokenizer", "space", "eins " * 1024)
    for options in (("--bpe", "sentencepiece"), ("--bpe-codes", trained / "code")):
        assert "go together" in refusal(rbn_run, *options, "eins")
    model = ("--bpe", "sentencepiece", "--sentencepiece-model", trained / "code")
    assert str(trained / "code") in refusal(rbn_run, *model, "eins")

    data = shutil.copytree(trained / "bin", tmp_path / "bin")
    recorded = json.loads((trained / "run" / "run.json").read_text())["data"]["pieces"]
    assert recorded["bpe_codes"] == "code" and len(recorded["sha256"]) == 64
    merges = (data / "code").read_text().splitlines(keepends=True)
    (data / "code").write_text("".join(merges[:-1]))
    line = refusal(trained / "run", "--data", data, "eins")
    assert "run.json" in line and str(data / "pieces.json") in line
    (data / "code").unlink()
    line = refusal(trained / "run", "--data", data, "eins")
    assert "gone" in line and "--bpe subword_nmt --bpe-codes" in line
    (data / "pieces.json").write_text("[]")
    assert "damaged" in refusal(trained / "run", "--data", data, "eins")
    (data / "pieces.json").unlink()
    assert "does not say how" in refusal(trained / "run", "--data", data, "eins")
