"""The scripts of WMT16, really run: from raw text to the table."""

import json

import pytest

from corpus import write_corpus
from rbn_fairseq.checkpoints.files import read_checkpoint
from shell import succeed

SMALL = ("--preset", "small", "--max-epoch", 1)


@pytest.fixture
def wmt16(tmp_path):
    write_corpus(tmp_path / "text", {"train": 300, "valid": 30, "test": 21}, seed=2)
    for split, name in (("valid", "newstest2013"), ("test", "newstest2014")):
        for lang in ("de", "en"):
            (tmp_path / "text" / f"{split}.{lang}").rename(tmp_path / "text" / f"{name}.{lang}")
    return tmp_path


def test_wmt16(wmt16, forked):
    """The other direction, from raw text, with compounds split."""
    data, runs = wmt16 / "data", wmt16 / "runs"
    options = ("--from-raw", "text", "--output", data, "--merges", 200, "--jobs", 1)
    assert "NOT THE STANDARD" in succeed("wmt16/prepare.sh", *options, cwd=wmt16, path=forked)
    # Seen from where the caller stands, not from the repository.
    places = ("--data", "data", "--runs", "runs", *SMALL)
    succeed("wmt16/train.sh", "rbn", "pre", 1, *places, cwd=wmt16, path=forked)
    succeed("wmt16/evaluate.sh", "rbn", "pre", 1, *places, cwd=wmt16, path=forked)
    scores = json.loads((runs / "pre-rbn-seed1" / "score.json").read_text())
    assert set(scores) == {"tokenised", "compound_split", "sacrebleu"}
    cfg = read_checkpoint(runs / "pre-rbn-seed1" / "checkpoint_last.pt")["cfg"]
    assert (cfg["task"]["source_lang"], cfg["task"]["target_lang"]) == ("en", "de")
    assert cfg["model"]["encoder_normalize_before"]
    out = succeed("wmt16/table.sh", "--runs", "runs", cwd=wmt16, path=forked)
    assert f"{scores['compound_split']['bleu']:.2f}" in out
