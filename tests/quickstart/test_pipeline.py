"""The whole quickstart on a small text: outcome, second call, other text."""

import io
import json
import re
import shlex
import shutil
from unittest.mock import patch

import pytest
from rich.console import Console

from command import rbn
from corpus import write_corpus
from rbn_fairseq.quickstart import NORMS, jobs, pipeline, quickstart


def call(out, data, **options):
    console = Console(file=io.StringIO(), width=120)
    settings = {"source_lang": "de", "target_lang": "en", "epochs": 2, "workers": 2, **options}
    results = quickstart(out, str(data), console=console, **settings)
    return results, console.file.getvalue()


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    directory = tmp_path_factory.mktemp("text")
    write_corpus(directory, {"train": 400, "valid": 20, "test": 13})
    return directory


@pytest.fixture(scope="module")
def done(text, forked, tmp_path_factory):
    out = tmp_path_factory.mktemp("quickstart")
    with (
        patch.object(jobs, "_RBN", (str(forked / "rbn"),)),
        patch.dict(NORMS, {name: NORMS[name] for name in ("layer", "rbn")}, clear=True),
    ):
        yield out, *call(out, text)  # the third differs from the second by options alone


@pytest.mark.nightly
def test_outcome(done, text):
    out, results, said = done
    assert json.loads((out / "results.json").read_text()) == json.loads(json.dumps(results))
    assert results["data"]["pairs"] == {"train": 400, "valid": 20, "test": 13}
    assert list(results["runs"]) == list(NORMS) == ["layer", "rbn"]
    for name, run in results["runs"].items():
        assert [entry["epoch"] for entry in run["valid"]] == [1, 2]
        epochs = [entry["epoch"] for entry in run["tid"]]
        assert epochs == ([] if name == "layer" else [0, 1, 2])
        assert run["scores"]["sacrebleu"]["signature"].startswith("nrefs:1")
        assert run["seconds"] > 0
        assert run["machine"] and {"torch", "fairseq", "rbn_fairseq"} <= run["versions"].keys()
        assert run["commands"][0].startswith("rbn train ")
        assert ("--recalibrate" in run["commands"][1]) == (name != "layer")
    sources = (text / "test.de").read_text().splitlines()
    references = (text / "test.en").read_text().splitlines()
    for sentence in results["translations"]:
        assert references[sources.index(sentence["source"])] == sentence["reference"]
        assert set(sentence) == {"source", "reference", *NORMS}
    assert "copying the source" in said and str(out / "report.html") in said
    command = shlex.split(re.search("^try it:  rbn (.*)", said, re.MULTILINE)[1])
    translated = {entry["source"]: entry["rbn"] for entry in results["translations"]}
    assert rbn(*command).stdout.strip() == translated[command[-1]] != ""


@pytest.mark.nightly
def test_second_call_runs_nothing(done, text, monkeypatch):
    out, first, _ = done
    monkeypatch.setattr(pipeline, "run_jobs", None)
    assert call(out, text)[0] == first


@pytest.mark.nightly
def test_other_text_is_refused(done, text, tmp_path):
    other = shutil.copytree(text, tmp_path / "other")
    with (other / "train.de").open("a") as file, (other / "train.en").open("a") as target:
        file.write("eins\n"), target.write("one\n")
    with pytest.raises(ValueError, match="made from other text.*--output"):
        call(done[0], other)


def test_another_number_of_epochs(tmp_path):
    pipeline._job("layer", tmp_path, 2)
    assert len(pipeline._job("layer", tmp_path, 2).left()) == 3
    with pytest.raises(ValueError, match="--epochs.*--output"):
        pipeline._job("layer", tmp_path, 3)
