"""What the task refuses, forgets and leaves alone."""

import json
import re
import shutil
from types import SimpleNamespace

import pytest
from fairseq import checkpoint_utils

import runs
from rbn_fairseq.measuring.data_bin import check_data
from rbn_fairseq.measuring.session import open_session
from rbn_fairseq.tasks import TranslationRBNTask


@pytest.mark.parametrize("kind", ["missing", "empty"])
def test_data_directory_is_checked(tmp_path, kind):
    data = tmp_path / "data"
    if kind == "empty":
        data.mkdir()
    for attempt in (lambda: check_data(str(data)), lambda: runs.train(data, tmp_path / "save")):
        with pytest.raises(ValueError) as error:
            attempt()
        assert f"`{data}`" in str(error.value) and "fairseq-preprocess" in str(error.value)


def test_other_dictionary_of_the_same_size_is_refused(rbn_run, data_bin, tmp_path):
    other = shutil.copytree(data_bin, tmp_path / "data")
    for path in other.glob("dict.*.txt"):
        first, second, *rest = path.read_text().splitlines(keepends=True)
        path.write_text("".join([second, first, *rest]))
    with pytest.raises(ValueError, match="dictionaries of the data directory"):
        runs.generate(other, rbn_run / "checkpoint_last.pt")
    (tmp_path / "save").mkdir()
    shutil.copy(rbn_run / "checkpoint_last.pt", tmp_path / "save")
    with pytest.raises(ValueError, match="dictionaries of the data directory"):
        runs.train(other, tmp_path / "save", "--norm-encoder", "batch", "--max-epoch", 4)
    for option in ("--init-from", "--restore-file", "--finetune-from-model"):
        start = (option, rbn_run / "checkpoint_last.pt", "--max-update", 1)
        with pytest.raises(ValueError, match="dictionaries of the data directory"):
            runs.train(other, tmp_path / "new", "--norm-encoder", "batch", *start)


def test_a_validation_on_the_training_data_is_refused(data_bin, tmp_path):
    with pytest.raises(ValueError, match="--valid-subset valid,train: .*under another name"):
        runs.train(data_bin, tmp_path, "--valid-subset", "valid,train", "--max-update", 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("weight", ["--rbn-mean-weight", "--rbn-std-weight"])
def test_penalty_without_batch_norms_is_refused(data_bin, tmp_path, weight):
    with pytest.raises(ValueError, match="--norm-encoder batch"):
        runs.train(data_bin, tmp_path, weight, 0.1, "--max-update", 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "given, words",
    [
        (("bleu", "--maximize-best-checkpoint-metric"), "in a translation task with --eval-bleu"),
        (("bleu", "--eval-bleu"), "the lowest bleu: add --maximize-best-checkpoint-metric"),
        (("accuracy",), "the lowest accuracy: add --maximize-best-checkpoint-metric"),
    ],
)
def test_scores_that_cannot_choose_a_checkpoint_are_refused(data_bin, tmp_path, given, words):
    with pytest.raises(ValueError, match=f"--best-checkpoint-metric.*{words}"):
        runs.train(data_bin, tmp_path, "--best-checkpoint-metric", *given, "--max-update", 1)
    assert not list(tmp_path.iterdir())


def test_a_loss_that_is_maximised_is_told(data_bin, tmp_path):
    given = ("--best-checkpoint-metric", "loss", "--maximize-best-checkpoint-metric")
    log = runs.train(data_bin, tmp_path, *given, "--max-update", 1)
    assert "keeps the checkpoint with the highest loss" in log


def test_processes_that_would_train_alone_are_refused(data_bin, tmp_path, monkeypatch):
    """torchrun's, where a recipe asks for one GPU."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    runs.train(data_bin, tmp_path / "pod", "--max-update", 1)  # not torchrun's
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(ValueError, match="4 processes.*give --distributed-world-size 4"):
        runs.train(data_bin, tmp_path / "run", "--max-update", 1, "--distributed-world-size", 1)


def test_processes_of_srun_that_train_alone_are_told(data_bin, tmp_path, monkeypatch):
    for tasks, told in (("1", False), ("8", True)):
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", tasks)
        log = runs.train(
            data_bin, tmp_path / tasks, "--max-update", 1, "--distributed-world-size", 1
        )
        assert ("srun started 8 processes" in log) == told


def test_other_settings_than_those_of_a_complete_training_are_told(data_bin, tmp_path):
    """Of which nothing is left to train: it would stand under another norm's name."""
    given = ("--norm-encoder", "batch", "--max-epoch", 1, "--no-tid")
    words = "goes on, had other settings"
    assert words not in runs.train(data_bin, tmp_path, *given)
    assert words not in runs.train(data_bin, tmp_path, *given)
    log = runs.train(data_bin, tmp_path, *given, "--rbn-mean-weight", 60, "--seed", 2)
    changed = "common.seed, criterion.rbn_mean_weight"
    assert f"the training in {tmp_path}, which {words}: {changed}\n" in log
    assert "gnorm" not in log


def test_an_earlier_runs_best_score_is_forgotten(data_bin):
    checkpoint_utils.save_checkpoint.best = 0.0
    cfg = SimpleNamespace(data=str(data_bin), source_lang=None, target_lang=None, length_mixing="1")
    TranslationRBNTask.setup_task(cfg)
    assert not hasattr(checkpoint_utils.save_checkpoint, "best")


def test_several_parts_of_the_training_data_are_joined(data_bin, tmp_path):
    shutil.copytree(data_bin, tmp_path / "data")
    for path in data_bin.glob("train.*"):
        shutil.copy(path, tmp_path / "data" / path.name.replace("train.", "train1."))
    options = ("--norm-encoder", "batch", "--length-mixing", 3, "--max-update", 1)
    runs.train(tmp_path / "data", tmp_path / "save", *options)
    about = json.loads((tmp_path / "save" / "run.json").read_text())
    assert about["data"]["sentences"]["train"] == 3000
    assert about["config"]["task"]["upsample_primary"] == -1  # as another training's of one part


def test_parameters_of_norms_that_the_model_has_not_are_told(data_bin, tmp_path):
    log = runs.train(
        data_bin, tmp_path, "--norm-encoder", "batch", "--norm-batch-momentum", 0.1,
        "--norm-rms-eps", 1e-3, "--norm-power-warmup", 5, "--max-update", 1, "--no-tid",
    )  # fmt: skip
    log += runs.train(data_bin, tmp_path / "layer", "--norm-sync", "--max-update", 1)
    lines = re.findall(r"WARNING.*without effect.*: (.*)", log)
    assert lines == ["--norm-power-warmup, --norm-rms-eps", "--norm-sync"]


def test_text_alone_may_be_translated_but_neither_trained_on_nor_measured(
    data_bin, rbn_run, tmp_path
):
    checkpoint = rbn_run / "checkpoint_last.pt"
    for part in ("valid", "train"):
        source = shutil.copytree(data_bin, tmp_path / part)
        for path in source.glob(f"{part}.*.en.*"):
            path.unlink()
        with pytest.raises(ValueError, match=f"`{part}` has one side alone"):
            runs.train(source, tmp_path / "save", "--max-update", 1)
        with pytest.raises(ValueError, match=f"`{part}` has one side alone"):
            open_session(checkpoint, source).validation()
    assert len(runs.generate(source, checkpoint, "--gen-subset", "train")) > 1
