"""What the task refuses, forgets and leaves alone."""

import json
import re
import shutil
from types import SimpleNamespace

import pytest
from fairseq import checkpoint_utils

import runs
from rbn_fairseq.measuring.data_bin import check_data
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


def longer(log):
    return re.findall(r"(--norm\S+) (\d+) is longer than this training, which has (\d+) upd", log)


def test_schedules_longer_than_the_training_are_told(data_bin, tmp_path):
    options = ("--norm-encoder", "power", "--norm-power-warmup", 1000, "--no-tid")
    log = runs.train(data_bin, tmp_path, *options, "--max-epoch", 2, "--update-freq", "3,2")
    trained = re.findall(r"valid on .*num_updates (\d+)", log)[-1]
    assert longer(log) == [("--norm-power-warmup", "1000", trained)]


def test_schedules_that_end_in_time_are_not(data_bin, tmp_path):
    options = ("--norm-renorm-start", 1, "--norm-renorm-r-end", 2, "--norm-renorm-d-end", 3)
    log = runs.train(
        data_bin, tmp_path, "--norm-encoder", "renorm", *options, "--max-update", 2,
        "--max-epoch", 9, "--no-tid",
    )  # fmt: skip
    assert longer(log) == [("--norm-renorm-d-end", "3", "2")]


def test_a_schedule_that_evaluation_waits_for_is_refused_beyond_the_training(data_bin, tmp_path):
    options = ("--norm-encoder", "repbn", "--no-tid", "--max-update", 2, "--norm-repbn-layer-end")
    with pytest.raises(ValueError) as error:
        runs.train(data_bin, tmp_path / "long", *options, 3)
    for words in ("--norm-repbn-layer-end 3", "which has 2 updates", "`repbn`", "2 or less"):
        assert words in str(error.value)
    assert not list(tmp_path.glob("long/*.pt"))
    assert not longer(runs.train(data_bin, tmp_path / "enough", *options, 2))


@pytest.mark.parametrize("reset, updates", [("optimizer", 15), ("dataloader", 30)])
def test_a_schedule_counts_the_updates_behind_a_reset(data_bin, tmp_path, reset, updates):
    """Of two epochs of 15 updates, the second after a reset of updates, or of epochs."""
    options = ("--norm-encoder", "repbn", "--no-tid", "--norm-repbn-layer-end")
    runs.train(data_bin, tmp_path, *options, 15, "--max-epoch", 1)
    again = (f"--reset-{reset}", "--max-epoch", 2 if reset == "optimizer" else 1)
    with pytest.raises(ValueError, match=f"which has {updates} updates"):
        runs.train(data_bin, tmp_path, *options, updates + 1, *again)
    assert not longer(runs.train(data_bin, tmp_path, *options, updates, *again))


def test_a_schedule_counts_updates_of_other_sizes_behind_a_resume(data_bin, tmp_path):
    options = ("--norm-encoder", "repbn", "--no-tid", "--norm-repbn-layer-end")
    runs.train(data_bin, tmp_path, *options, 15, "--max-epoch", 1)
    again = ("--max-epoch", 2, "--update-freq", 5)
    with pytest.raises(ValueError, match="which has 18 updates"):
        runs.train(data_bin, tmp_path, *options, 19, *again)
    assert "num_updates 18" in runs.train(data_bin, tmp_path, *options, 18, *again)
    tuned = ("--finetune-from-model", tmp_path / "checkpoint_last.pt", "--max-epoch", 1)
    with pytest.raises(ValueError, match="which has 15 updates"):
        runs.train(data_bin, tmp_path / "tuned", *options, 16, *tuned)


def test_a_schedule_counts_no_update_that_is_skipped(data_bin, tmp_path):
    options = ("--norm-encoder", "repbn", "--no-tid", "--max-epoch", 2, "--update-freq", 4)
    options += ("--skip-remainder-batch", "--norm-repbn-layer-end")
    with pytest.raises(ValueError, match="which has 6 updates"):
        runs.train(data_bin, tmp_path, *options, 7)
    log = runs.train(data_bin, tmp_path, *options, 6)
    assert re.findall(r"num_updates (\d+)", log)[-1] == "6"


def test_a_schedule_is_not_judged_where_updates_are_not_known(data_bin, tmp_path):
    """Of batches within an epoch that make no whole updates, fairseq may repeat the epoch."""
    options = ("--norm-encoder", "repbn", "--no-tid", "--norm-repbn-layer-end", 30)
    runs.train(data_bin, tmp_path, *options, "--max-epoch", 2, "--save-interval-updates", 4)
    start = ("--restore-file", tmp_path / "checkpoint_1_4.pt", "--max-epoch", 1)
    with pytest.raises(ValueError, match="which has 10 updates"):  # 4, and the other 11 in pairs
        runs.train(data_bin, tmp_path / "pairs", *options, *start, "--update-freq", 2)
    log = runs.train(data_bin, tmp_path / "again", *options, *start, "--update-freq", 3)
    assert not longer(log)


def test_text_alone_may_be_translated_as_training_data(data_bin, rbn_run, tmp_path):
    source = shutil.copytree(data_bin, tmp_path / "data")
    for path in source.glob("train.*.en.*"):
        path.unlink()
    with pytest.raises(ValueError, match="one side alone"):
        runs.train(source, tmp_path / "save", "--max-update", 1)
    checkpoint = rbn_run / "checkpoint_last.pt"
    assert len(runs.generate(source, checkpoint, "--gen-subset", "train")) > 1
