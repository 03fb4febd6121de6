"""`rbn evaluate`: each command against its own parser, and what is done again."""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import sacrebleu
import typer
from fairseq import options

from command import assert_a_signal_stops, completed, rbn, user_error
from rbn_fairseq.cli import evaluate
from rbn_fairseq.cli.app import app
from runs import USER_DIR

WITH_BATCH_NORM = ["average", "recalibrate", "generate", "score", "generate", "score"]
TARGET = {"IWSLT14 De-En": "en", "WMT16 En-De": "de"}


@pytest.fixture
def write_run(tmp_path):
    """Function that writes a run's settings and what its data are."""

    def write(corpus, norm, **optimization):
        data, run = tmp_path / "data" / "bin", tmp_path / "post-seed1"
        data.mkdir(parents=True, exist_ok=True)
        run.mkdir(exist_ok=True)
        (data / "about.json").write_text(json.dumps({"corpus": corpus}))
        task = {"data": str(data), "target_lang": TARGET[corpus]}
        config = {"task": task, "model": {"norm_encoder": norm}, "optimization": optimization}
        (run / "run.json").write_text(json.dumps({"config": config}))
        return run

    return write


def dry_run(run, *arguments):
    """Return the verbs that evaluate a run, and what each of them, or fairseq, reads."""
    commands = completed("evaluate", "--dry-run", run, *arguments).stdout.splitlines()
    verbs, parsed = [], []
    for _, verb, *words in map(shlex.split, commands):
        verbs.append(verb)
        if verb == "generate":
            parser = options.get_generation_parser()
            words = [*words, "--user-dir", str(USER_DIR)]
            parsed.append(options.parse_args_and_arch(parser, words))
        else:
            command = typer.main.get_command(app).commands[verb]
            parsed.append(command.make_context(verb, words).params)
    return verbs, parsed


def test_an_evaluated_run_has_no_commands(write_run):
    run = write_run("IWSLT14 De-En", "layer", max_epoch=60)
    assert dry_run(run)[0]
    (run / "average").mkdir()
    for name in ("average/generate-test.txt", "score.json"):
        (run / name).touch()
    assert not dry_run(run)[0]


def test_evaluation_of_iwslt14(write_run, tmp_path):
    run = write_run("IWSLT14 De-En", "batch", max_epoch=60)
    verbs, (average, recalibrate, search, without, _, score) = dry_run(run)
    assert verbs == WITH_BATCH_NORM
    assert (average["last"], average["output"]) == (6, recalibrate["checkpoint"])
    assert (search.beam, search.lenpen, search.max_len_a, search.max_len_b) == (5, 1, 1, 50)
    assert (search.gen_subset, search.post_process) == ("test", "subword_nmt")
    assert search.data == str(recalibrate["data"]) == str(tmp_path / "data" / "bin")
    assert without["reference"] == tmp_path / "data" / "text" / "test.en"
    assert without["json"].name == "score_averaged_statistics.json"
    assert score["json"].name == "score.json" and "recalibrated" in str(score["generated"])
    assert (score["lang"], score["compound_split"], score["test_set"]) == ("en", False, None)


def test_evaluation_of_wmt16(write_run):
    run = write_run("WMT16 En-De", "layer", max_epoch=0, max_update=100_000)
    verbs, (average, search, score) = dry_run(run)
    assert verbs == ["average", "generate", "score"]
    assert average["last"] == 6
    assert (search.beam, search.lenpen) == (4, 0.6)
    assert score["compound_split"] and score["lang"] == "de"
    assert (score["test_set"], score["language_pair"]) == ("wmt14/full", "en-de")


def test_data_that_were_moved(write_run, tmp_path):
    run = write_run("IWSLT14 De-En", "batch@0:layer")
    moved = tmp_path / "jürgen's x=(1)" / "bin"
    (tmp_path / "data").rename(moved.parent)
    _, (_, recalibrate, search, score, *_) = dry_run(run, "--data", moved)
    assert search.data == str(recalibrate["data"]) == str(moved)
    assert score["reference"] == moved.parent / "text" / "test.en"


@pytest.mark.parametrize("norm", ["renorm", "mabn"])
def test_running_statistics_are_recalibrated(write_run, norm):
    assert dry_run(write_run("IWSLT14 De-En", norm))[0] == WITH_BATCH_NORM


class StandIn(list):
    """Stands for subprocess.run: writes what commands leave, and remembers their words."""

    failing = ""

    def __call__(self, command):
        words = command[2:]  # those behind `python -m`
        self.append(words)
        failed = words[1] == self.failing
        for option in ("--output", "--json"):
            if option in words and not failed:
                Path(words[words.index(option) + 1]).write_text(words[1])
        if "--results-path" in words and not failed:
            translations = Path(words[words.index("--results-path") + 1])
            translations.mkdir(exist_ok=True)
            (translations / "generate-test.txt").write_text("")
        return subprocess.CompletedProcess(words, 3 if failed else 0)

    def take(self):
        """Return the verbs of the commands since the last time."""
        verbs = [words[1] for words in self]
        self.clear()
        return verbs


@pytest.fixture
def commands(monkeypatch):
    stand_in = StandIn()
    monkeypatch.setattr(evaluate.subprocess, "run", stand_in)
    return stand_in


@pytest.fixture
def bn_run(write_run):
    """A trained run; long ago, so that what is made now is newer."""
    run = write_run("IWSLT14 De-En", "batch@0:layer", max_epoch=3)
    (run / "checkpoint_last.pt").write_text("")
    os.utime(run / "checkpoint_last.pt", (1, 1))
    return run


def test_only_what_is_out_of_date_is_evaluated_again(bn_run, commands):
    call = ("evaluate", bn_run)
    assert rbn(*call).exit_code == 0
    assert commands[0][commands[0].index("--last") + 1] == "3"  # all that it was trained for
    assert commands.take() == WITH_BATCH_NORM
    assert rbn(*call).exit_code == 0 and commands.take() == []
    shutil.rmtree(bn_run / "average")
    shutil.rmtree(bn_run / "average_recalibrated")
    assert rbn(*call).exit_code == 0 and commands.take() == WITH_BATCH_NORM  # scored by hand
    os.utime(bn_run / "score.json", (2, 2))
    os.utime(bn_run / "checkpoint_last.pt", (3, 3))  # more training
    assert rbn(*call).exit_code == 0 and commands.take() == WITH_BATCH_NORM


def test_what_its_updates_ended_early_is_averaged_over_fewer_epochs(write_run, bn_run, commands):
    write_run("IWSLT14 De-En", "batch", max_epoch=3, max_update=1000)
    for epoch in (1, 2):
        (bn_run / f"checkpoint{epoch}.pt").write_text("")
    completed("evaluate", bn_run)
    assert commands[0][commands[0].index("--last") + 1] == "2"


@pytest.mark.parametrize("verb", ["recalibrate", "generate", "score"])
def test_what_failed_is_done_again(bn_run, commands, verb):
    """And nothing after it; also where there are scores of before."""
    (bn_run / "score.json").write_text("by hand")
    os.utime(bn_run / "score.json", (2, 2))
    commands.failing = verb
    assert rbn("evaluate", bn_run).exit_code == 3
    calls = commands.take()
    assert calls[-1] == verb and calls.count(verb) == 1
    commands.failing = ""
    assert rbn("evaluate", bn_run).exit_code == 0 and commands.take() == WITH_BATCH_NORM


def test_a_signal_stops_what_it_runs(bn_run, monkeypatch):
    assert_a_signal_stops(monkeypatch, evaluate, "evaluate", bn_run)


def test_references_are_fetched_before_the_work(capsys, write_run, tmp_path, commands, monkeypatch):
    def no_network(*names):
        raise OSError("no route")

    run = write_run("WMT16 En-De", "batch")
    monkeypatch.setattr(sacrebleu, "get_reference_files", no_network)
    assert "--test-set" in user_error(capsys, "evaluate", run)
    assert not commands
    raw = tmp_path / "data" / "raw" / "test.de"
    raw.parent.mkdir()
    raw.write_text("")
    completed("evaluate", run)
    (score, _) = (words for words in commands if words[1] == "score")
    assert score[score.index("--raw-reference") + 1] == str(raw) and "--test-set" not in score


def test_what_cannot_be_evaluated_is_refused_before_the_work(capsys, bn_run, tmp_path, commands):
    told = user_error(capsys, "evaluate", bn_run, tmp_path)
    assert f"`{tmp_path / 'run.json'}`" in told and "save directory" in told
    about = tmp_path / "data" / "bin" / "about.json"
    about.write_text(json.dumps({"corpus": "PTB"}))
    told = user_error(capsys, "evaluate", bn_run)
    assert "PTB, not IWSLT14 De-En or WMT16 En-De" in told and "--data DATA-BIN" in told
    about.unlink()
    told = user_error(capsys, "evaluate", bn_run)
    assert str(about) in told and "--data DATA-BIN" in told
    assert not commands
