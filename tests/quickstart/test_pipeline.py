"""The whole quickstart on a small text: outcome, second call, other text."""

import html
import io
import re
import shlex
import shutil
from unittest.mock import patch

import pytest
from rich.console import Console

from command import rbn
from corpus import write_corpus
from rbn_fairseq.quickstart import jobs, pipeline
from rbn_fairseq.quickstart.pipeline import NORMS, quickstart
from rbn_fairseq.report.runs import read_run
from rbn_fairseq.scoring import read_generated


def call(out, data, **options):
    console = Console(file=io.StringIO(), width=120)
    settings = {"source_lang": "de", "target_lang": "en", "epochs": 2, "workers": 2, **options}
    quickstart(out, str(data), console=console, **settings)
    return (out / "report" / "index.html").read_text(), console.file.getvalue()


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
    out, page, said = done
    assert "400 pairs to train on, 20 to validate, 13 to translate" in said
    assert "copying the source" in said and str(out / "report" / "index.html") in said
    assert list(NORMS) == ["layer", "rbn"]
    for name in NORMS:
        run = read_run(name, out / name)
        assert list(run.valid["epoch"]) == [1, 2] and run.train["minutes"].iloc[-1] > 0
        assert sorted(set(run.tid["epoch"])) == ([] if name == "layer" else [0, 1, 2])
        score = run.scores["sacrebleu"]
        assert score["signature"].startswith("nrefs:1")
        assert re.search(rf"^{name} +{score['bleu']:.1f} ", said, re.MULTILINE)
    about = page.split('id="about"')[1]
    facts = dict.fromkeys(re.findall(r"<dt>(.*?)</dt>", about))
    assert [*facts] == ["text", "sentences", "copying the source", *NORMS]
    assert "400 train, 20 valid, 13 test" in about
    commands = [html.unescape(text) for text in re.findall(r"<code>(rbn .*?)</code>", about)]
    assert [text.split()[1] for text in commands] == ["train", "average", "generate"] * 2
    assert all("--recalibrate" in text for text in commands if " average " in text)
    command = shlex.split(re.search("^try it:  rbn (.*)", said, re.MULTILINE)[1])
    number = (text / "test.de").read_text().splitlines().index(command[-1])
    _, translations = read_generated(out / "rbn" / "generate.txt")
    sentence, ours, theirs = rbn(*command).stdout.splitlines()
    assert sentence == command[-1] and theirs.split()[0] == "layer/average.pt"
    assert ours.split(maxsplit=1) == ["rbn/average.pt", translations[number]]


@pytest.mark.nightly
def test_second_call_runs_nothing(done, text, monkeypatch):
    out, first, _ = done
    monkeypatch.setattr(jobs.subprocess, "Popen", None)
    assert call(out, text)[0] == first


@pytest.mark.nightly
def test_other_text_is_refused(done, text, tmp_path):
    other = shutil.copytree(text, tmp_path / "other")
    with (other / "train.de").open("a") as file, (other / "train.en").open("a") as target:
        file.write("eins\n"), target.write("one\n")
    with pytest.raises(ValueError, match="another value of sha256.*--output"):
        call(done[0], other)


def test_another_number_of_epochs(tmp_path):
    commands = pipeline._commands("layer", tmp_path, ("de", "en"), 2)
    assert pipeline._commands("layer", tmp_path, ("de", "en"), 2) == commands
    with pytest.raises(ValueError, match="--epochs.*--output"):
        pipeline._commands("layer", tmp_path, ("de", "en"), 3)
