"""The scripts of the benchmarks, really run: generated text, small models, one epoch on the CPU."""

import json
import re
import shutil

import pytest

from corpus import write_corpus
from published import wmt_members, write_archive
from rbn_fairseq.checkpoints.files import read_checkpoint
from shell import refusal, succeed

pytestmark = pytest.mark.nightly  # what they call has tests of its own in cli

SMALL = ("--preset", "small", "--max-epoch", 1)


@pytest.fixture(scope="module")
def iwslt14(tmp_path_factory, forked):
    """Runs of LN (two seeds, one of them evaluated) and RBN (evaluated)."""
    directory = tmp_path_factory.mktemp("iwslt14")
    data, runs = directory / "data", directory / "runs"
    write_corpus(directory / "text", {"train": 300, "valid": 30, "test": 21})
    text = directory / "text"
    options = ("--from-tokenized", text, "--output", data, "--merges", 200, "--jobs", 1)
    assert "standard" in refusal("iwslt14/prepare.sh", *options, path=forked)
    succeed("iwslt14/prepare.sh", *options, "--allow-nonstandard", path=forked)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DATA", str(data / "bin"))
        environment.setenv("RUNS", str(runs))
        succeed("iwslt14/train.sh", "ln", "post", 1, 2, *SMALL, path=forked)
        quick = ("--tid-batches", 5)  # saves time
        succeed("iwslt14/train.sh", "rbn", "post", 1, *SMALL, *quick, path=forked)
        succeed("iwslt14/evaluate.sh", "ln", "post", 1, path=forked)
        succeed("iwslt14/evaluate.sh", "rbn", "post", 1, path=forked)
        yield runs


def test_what_training_and_evaluation_leave(iwslt14):
    runs = iwslt14
    names = ["post-ln-seed1", "post-ln-seed2", "post-rbn-seed1"]
    assert sorted(path.name for path in runs.iterdir()) == names
    run = runs / "post-rbn-seed1"
    assert {"checkpoint1.pt", "train.log", "tid.jsonl"} <= {path.name for path in run.iterdir()}
    configs = [read_checkpoint(runs / name / "checkpoint_last.pt")["cfg"] for name in names]
    assert [cfg["common"]["seed"] for cfg in configs] == [1, 2, 1]
    model, criterion = configs[2]["model"], configs[2]["criterion"]
    assert model["norm_encoder"] == "batch" and criterion["rbn_mean_weight"] == 0.1
    for name in ("score.json", "score_averaged_statistics.json"):
        scores = json.loads((run / name).read_text())
        assert set(scores) == {"tokenised", "sacrebleu"}
        assert scores["sacrebleu"]["search"].startswith("beam 5, lenpen 1, max_len_a 1")
    assert not (runs / names[0] / "score_averaged_statistics.json").exists()
    state = read_checkpoint(run / "average_recalibrated.pt")
    assert state["rbn_fairseq"]["recalibrated"]["batches"] > 0
    translations = (run / "average" / "generate-test.txt").read_text()
    hypotheses = re.findall(r"^D-", translations, re.MULTILINE)
    assert len(hypotheses) == 21  # every sentence, though 21 is no multiple of 8


def test_wmt16(forked, tmp_path, monkeypatch):
    """The other direction, from an archive, with compounds split; called from elsewhere."""
    archive = write_archive(tmp_path / "a.tar.gz", wmt_members(tmp_path, 300, 30, 21))
    here = {"cwd": tmp_path, "path": forked}
    prepare = ("--archive", archive, "--output", "data", "--jobs", 1, "--allow-nonstandard")
    assert "NOT THE STANDARD" in succeed("wmt16/prepare.sh", *prepare, **here)
    (tmp_path / "data" / "raw").mkdir()  # sacreBLEU would download the references
    shutil.copy(tmp_path / "data" / "text" / "test.de", tmp_path / "data" / "raw")
    monkeypatch.setenv("DATA", "data/bin")  # seen from where the caller stands
    monkeypatch.setenv("RUNS", "runs")
    succeed("wmt16/train.sh", "rbn", "pre", 1, *SMALL, **here)
    succeed("wmt16/evaluate.sh", "rbn", "pre", 1, **here)
    scores = json.loads((tmp_path / "runs" / "pre-rbn-seed1" / "score.json").read_text())
    assert set(scores) == {"tokenised", "compound_split", "sacrebleu"}
    out = succeed("wmt16/table.sh", **here)
    assert f"{scores['compound_split']['bleu']:.2f}" in out
