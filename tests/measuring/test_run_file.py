"""`run.json`: what a training says of itself at its start."""

import json
import os
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

import runs
from rbn_fairseq.measuring.run_file import describe_run, describe_start, write_run_file

ROOT = Path(__file__).resolve().parents[2]
TINY_MODEL = {"encoder_layers": 2, "encoder_embed_dim": 128, "encoder_attention_heads": 4}


def read(directory):
    return json.loads((directory / "run.json").read_text())


def test_both_roads_and_a_resumption(data_bin, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    options = ("--norm-encoder", "batch", "--norm-batch-momentum", 0.05)
    relative = os.path.relpath(data_bin)
    runs.train(relative, tmp_path / "argparse", *options, "--max-epoch", 1)
    runs.train(relative, tmp_path / "argparse", *options, "--max-update", 17)
    runs.call(
        "hydra_train", "--config-dir", "configs", "--config-name", "iwslt14_pre",
        f"task.data={data_bin}", f"hydra.run.dir={tmp_path / 'hydra'}", "task.no_tid=true",
        "model._name=rbn_transformer_tiny_pre", "model.norm_encoder=batch", "common.cpu=true",
        "dataset.max_tokens=1000", "dataset.num_workers=0", "optimization.max_update=1",
    )  # fmt: skip
    post, pre = read(tmp_path / "argparse"), read(tmp_path / "hydra")
    assert [start["update"] for start in post["starts"]] == [0, 15]
    assert post["starts"][0]["versions"]["torch"] == torch.__version__
    assert post["starts"][0]["machine"]["processes"] == 1
    assert post["config"]["optimization"]["max_update"] == 17
    assert post["config"]["model"]["norm_batch_momentum"] == 0.05
    assert pre["config"]["model"].items() >= TINY_MODEL.items()
    for run in (post, pre):
        assert run["config"]["task"]["data"] == str(data_bin)
        assert (run["config"]["task"]["source_lang"], run["config"]["task"]["target_lang"]) == (
            "de", "en",
        )  # fmt: skip
        assert run["data"] == {
            "sentences": {"valid": 60, "train": 1500}, "vocabularies": {"de": 160, "en": 160},
        }  # fmt: skip


def test_a_model_of_fairseqs_own(data_bin, tmp_path):
    own = ("--task", "translation_rbn", "--required-batch-size-multiple", 1, "--max-update", 1)
    runs.train(data_bin, tmp_path, *runs.PLAIN, *own)
    run = read(tmp_path)
    assert run["config"]["model"]["_name"] == "transformer"
    assert run["parameters"] > 10_000


def test_an_optimizer_that_holds_the_whole_command_line(data_bin, tmp_path):
    for updates in (1, 2):  # the second one resumes, with nothing that shapes a training changed
        options = ("--optimizer", "sgd", "--momentum", 0.9, "--max-update", updates)
        arguments = runs.train_arguments(data_bin, tmp_path, *options, "--seed", 3)
        betas = arguments.index("--adam-betas")
        runs.call("train", *arguments[:betas], *arguments[betas + 2 :])
    run = read(tmp_path)
    optimizer = run["config"]["optimizer"]
    assert (optimizer["_name"], optimizer["momentum"]) == ("sgd", 0.9)
    assert not {"save_dir", "seed", "norm_encoder", "max_update", "task", "arch"} & optimizer.keys()
    assert run["config"]["task"]["length_mixing"] == "1"
    assert [start.get("changed") for start in run["starts"]] == [None, None]


class Task:
    cfg = OmegaConf.create({"source_lang": None})


def test_values_are_plain_json(tmp_path):
    cfg = OmegaConf.create(
        {"task": {"source_lang": None}, "model": {"_name": "fconv"}, "ema": None}
    )
    cfg.task["limit"] = float("inf")
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    run = describe_run(cfg, Task(), model)
    write_run_file(tmp_path, run, describe_start(model, 0, 1))
    assert read(tmp_path)["config"] == {
        "task": {"source_lang": None, "limit": "inf"}, "model": {"_name": "fconv"},
    }  # fmt: skip


def test_a_new_training_in_its_place_forgets_earlier_starts(tmp_path):
    for update in (0, 5, 7):
        write_run_file(tmp_path, {"config": {}}, {"update": update})
    assert [start["update"] for start in read(tmp_path)["starts"]] == [0, 5, 7]
    write_run_file(tmp_path, {"config": {}}, {"update": 0})
    assert [start["update"] for start in read(tmp_path)["starts"]] == [0]


def test_what_a_training_began_from_is_kept(tmp_path):
    """A command that resumes it may leave it out: it is not read any more."""
    for update, file in ((0, "parent.pt"), (5, None)):
        began = {"checkpoint": {"finetune_from_model": file}, "task": {"init_from": file}}
        write_run_file(tmp_path, {"config": began}, {"update": update})
    assert read(tmp_path) == {
        "config": {
            "checkpoint": {"finetune_from_model": "parent.pt"}, "task": {"init_from": "parent.pt"},
        },
        "starts": [{"update": 0}, {"update": 5}],
    }  # fmt: skip
    another = {"restore_file": "other/checkpoint3.pt"}
    write_run_file(tmp_path, {"config": {"checkpoint": another}}, {"update": 9}, resumes=False)
    assert read(tmp_path)["config"] == {"checkpoint": another}


def test_other_settings_of_a_resumption_are_told(tmp_path):
    settings = {"model": {"dropout": 0.1}, "task": {"length_mixing": "1"}, "criterion": {}}
    for update, mixing in ((0, "1"), (5, "1"), (7, "16")):
        settings["task"]["length_mixing"] = mixing
        settings["task"]["data"] = settings["task"]["tid_batches"] = update
        settings["criterion"]["newer"] = mixing  # an option that the last version had not
        settings["optimization"] = {"lr": [0.1 * len(mixing)], "max_epoch": update}
        write_run_file(tmp_path, {"config": settings}, {"update": update})
    starts = read(tmp_path)["starts"]
    assert starts[:2] == [{"update": 0}, {"update": 5}]
    assert starts[2]["changed"] == ["task.length_mixing", "criterion.newer", "optimization.lr"]


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"starts": [], "config": {"model": "x"}}'])
def test_a_damaged_file_ends_no_training(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    write_run_file(tmp_path, {"config": {"model": {"dropout": 0.1}}}, {"update": 5})
    assert [start["update"] for start in read(tmp_path)["starts"]] == [5]
