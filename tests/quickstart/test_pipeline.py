"""The whole quickstart on a small text: outcome, second call, other text, no room."""

import io
import json
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from unittest.mock import patch

import pytest
from rich.console import Console

from corpus import write_corpus
from rbn_fairseq.quickstart import NORMS, jobs, pipeline, quickstart
from rbn_fairseq.quickstart.data import Data
from rbn_fairseq.quickstart.jobs import Job


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
    with patch.object(jobs, "_RBN", (str(forked / "rbn"),)):
        return out, *call(out, text)


def test_outcome(done, text):
    out, results, said = done
    assert json.loads((out / "results.json").read_text()) == json.loads(json.dumps(results))
    assert results["data"]["pairs"] == {"train": 400, "valid": 20, "test": 13}
    assert list(results["runs"]) == list(NORMS) == ["layer", "batch", "rbn"]
    for name, run in results["runs"].items():
        assert [entry["epoch"] for entry in run["valid"]] == [1, 2]
        epochs = [entry["epoch"] for entry in run["tid"]]
        assert epochs == ([] if name == "layer" else [0, 1, 2])
        assert run["scores"]["sacrebleu"]["signature"].startswith("nrefs:1")
        assert run["seconds"] > 0
        assert run["commands"][0].startswith("rbn train ")
        assert ("--recalibrate" in run["commands"][1]) == (name != "layer")
    sources = (text / "test.de").read_text().splitlines()
    references = (text / "test.en").read_text().splitlines()
    for sentence in results["translations"]:
        assert references[sources.index(sentence["source"])] == sentence["reference"]
        assert set(sentence) == {"source", "reference", *NORMS}
    assert "copying the source" in said and str(out / "report.html") in said


def test_references_are_the_text_itself(done, text):
    # Not what the vocabulary can write: a rare character would be unknown on both sides.
    out, results, _ = done
    reference = (out / "data" / "text" / "test.en").read_text()
    assert reference == (text / "test.en").read_text()


def test_second_call_runs_nothing(done, text, monkeypatch):
    out, first, _ = done
    monkeypatch.setattr(pipeline, "run_jobs", None)
    begun = time.monotonic()
    again, _ = call(out, text)
    assert again == first
    assert time.monotonic() - begun < 60  # the promise; it takes about a second


def test_other_text_is_refused(done, text, tmp_path):
    other = shutil.copytree(text, tmp_path / "other")
    with (other / "train.de").open("a") as file, (other / "train.en").open("a") as target:
        file.write("eins\n"), target.write("one\n")
    with pytest.raises(ValueError, match="made from other text.*--output"):
        call(done[0], other)


def test_disk_without_room(text, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")(2**40, 2**40 - 2**20, 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ValueError, match="has 1 MiB left; the quickstart needs 512.*--output"):
        call(tmp_path / "out", text)


def test_two_at_once_are_refused(text, tmp_path):
    with pipeline._alone(tmp_path):
        with pytest.raises(ValueError, match="Another quickstart is working"):
            call(tmp_path, text)


def test_killed_and_called_again(done, text, forked, tmp_path, monkeypatch):
    """Killed while it trains, it comes to the very results of an uninterrupted call."""
    for name in ("layer", "batch"):  # one run is enough
        monkeypatch.delitem(NORMS, name)
    out = tmp_path / "killed"
    program = (
        "from pathlib import Path; from rich.console import Console\n"
        "from rbn_fairseq.quickstart import NORMS, quickstart\n"
        "del NORMS['layer'], NORMS['batch']\n"
        f"quickstart(Path({str(out)!r}), {str(text)!r}, 'de', 'en', 2, 1, Console())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    for _ in range(1200):
        if list(out.glob("rbn/checkpoint1.pt")):
            break
        time.sleep(0.1)
    process.kill()
    process.wait()
    time.sleep(1)  # the training ends with its parent
    assert not (out / "results.json").exists()
    monkeypatch.setattr(jobs, "_RBN", (str(forked / "rbn"),))
    again, _ = call(out, text)
    _, whole, _ = done
    one, two = (
        [(each["source"], each["rbn"]) for each in results["translations"]]
        for results in (again, whole)
    )
    assert one == two
    ours, theirs = again["runs"]["rbn"], whole["runs"]["rbn"]
    assert all(ours[key] == theirs[key] for key in ("valid", "tid", "scores"))


def test_other_number_of_epochs(tmp_path, monkeypatch):
    """More epochs go on with a run, fewer are refused; nothing keeps an old score."""
    data = Data(tmp_path / "bin", [], [], {})
    directory = tmp_path / "layer"

    def job(epochs):
        return pipeline._job("layer", tmp_path, data, epochs)[0]

    def pretend(job):
        monkeypatch.setattr(Job, "_run", lambda self, step: None)
        job.run()

    pretend(job(2))
    (directory / "checkpoint_last.pt").touch()
    assert job(2).is_finished() and not job(3).is_finished()
    assert (directory / "checkpoint_last.pt").exists()
    pretend(job(3))
    with pytest.raises(ValueError, match="trained for 3 epochs, not 2. Choose another place"):
        job(2)
    assert job(3).is_finished() and (directory / "checkpoint_last.pt").exists()


def test_nothing_is_deleted(tmp_path, monkeypatch):
    data = Data(tmp_path / "bin", [], [], {})
    pipeline._job("rbn", tmp_path, data, 2)
    (tmp_path / "rbn" / "checkpoint_last.pt").touch()
    pipeline._job("rbn", tmp_path, data, 2)
    assert (tmp_path / "rbn" / "checkpoint_last.pt").exists()
    monkeypatch.setitem(NORMS, "rbn", ("--norm-encoder", "batch", "--rbn-mean-weight", "1"))
    with pytest.raises(ValueError, match="another recipe"):
        pipeline._job("rbn", tmp_path, data, 2)
    (tmp_path / "rbn" / "begun.json").unlink()
    with pytest.raises(ValueError, match="no quickstart made"):
        pipeline._job("rbn", tmp_path, data, 2)
    assert (tmp_path / "rbn" / "checkpoint_last.pt").exists()


def test_language_that_cannot_be_scored(text, tmp_path):
    # Said before training, not after: sacreBLEU has Japanese as an extra only.
    other = shutil.copytree(text, tmp_path / "other")
    for path in other.glob("*.en"):
        path.rename(path.with_suffix(".ja"))
    with pytest.raises(ValueError, match="sacreBLEU cannot score `ja`"):
        call(tmp_path / "out", other, target_lang="ja")
    assert not (tmp_path / "out" / "layer").exists()


@pytest.mark.parametrize(
    "log, expected",
    [
        ('{"epoch": 1, "update": 0.5, "loss": "8"}\n', 0.5),
        ('{"epoch": 2, "update": 1.5, "loss": "8"}\n{"epoch": 2, "valid_loss": "1"}\n', 1.5),
        ('{"epoch": 2, "update": 1.5, "loss": "8"}\n' + "x" * 10_000, 1.5),
        ('{"epoch": 2, "upd', 0.0),
        ("", 0.0),
    ],
)
def test_progress_of_a_training(tmp_path, log, expected):
    (tmp_path / "train.log").write_text(log)
    assert pipeline._epochs_done(tmp_path / "train.log") == expected
    assert pipeline._epochs_done(tmp_path / "none") == 0
