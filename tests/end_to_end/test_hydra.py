"""fairseq-hydra-train with the project's configs: group choice, sweep, independent jobs."""

import re
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

import runs
from rbn_fairseq import recipes
from rbn_fairseq.checkpoints.files import read_checkpoint
from rbn_fairseq.models.config import config_class, resolve
from rbn_fairseq.models.kinds import LANGUAGE_MODEL, TRANSLATION
from rbn_fairseq.norms import NORMS

ROOT = Path(__file__).resolve().parent.parent.parent


JOBS = ("ln-seed1", "rbn-seed1")  # in the order of the sweep


@pytest.fixture(scope="module")
def sweep(data_bin, tmp_path_factory):
    directory = tmp_path_factory.mktemp("sweep")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)  # where the README says to run it
        runs.call(
            "hydra_train", "--config-dir", "configs", "--config-name", "iwslt14_pre", "-m",
            "norm=ln,rbn", f"task.data={data_bin}", f"hydra.sweep.dir={directory}",
            "model._name=rbn_transformer_tiny_pre", "common.cpu=true", "dataset.max_tokens=1000",
            "dataset.num_workers=0", "optimization.max_epoch=1", "lr_scheduler.warmup_updates=50",
            "checkpoint.patience=1",
        )  # fmt: skip
    return directory


def test_jobs_of_a_sweep_are_independent(sweep):
    losses = []
    for job in JOBS:
        extra = read_checkpoint(sweep / job / "checkpoint_last.pt")["extra_state"]
        losses.append(extra["val_loss"])
        # One validation: the best score is this job's own, not the first job's.
        assert extra["best"] == extra["val_loss"]
        assert list((sweep / job / "tensorboard" / "train").iterdir())
    assert losses[0] < losses[1]  # else the first job's best would not have shown


def test_the_group_sets_model_and_criterion(sweep):
    states = [read_checkpoint(sweep / job / "checkpoint_last.pt") for job in JOBS]
    assert [state["cfg"]["criterion"]["rbn_mean_weight"] for state in states] == [0.0, 0.1]
    assert [state["cfg"]["model"]["norm_encoder"] for state in states] == ["layer", "batch"]
    assert runs.tid_rows(sweep / JOBS[1])
    assert not torch.equal(
        states[0]["model"]["encoder.layers.0.fc1.weight"],
        states[1]["model"]["encoder.layers.0.fc1.weight"],
    )


def test_the_penalty_and_mixing_are_the_same_from_both_roads(data_bin, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    log = runs.call(
        "hydra_train", "--config-dir", "configs", "--config-name", "iwslt14_post",
        "norm=rbn", f"task.data={data_bin}", f"hydra.run.dir={tmp_path / 'hydra'}",
        "criterion.rbn_mean_weight=0.5", "+criterion.rbn_warmup_updates=3", "task.no_tid=true",
        "task.length_mixing=16",  # an integer in YAML, a word for argparse
        "model._name=rbn_transformer_tiny", "common.cpu=true", "common.seed=1",
        "dataset.max_tokens=1000", "dataset.num_workers=0", "optimization.max_update=1",
    )  # fmt: skip
    log += runs.train(
        data_bin, tmp_path / "argparse", "--norm-encoder", "batch", "--rbn-mean-weight", 0.5,
        "--rbn-std-weight", 0.01,
        "--rbn-warmup-updates", 3, "--length-mixing", 16, "--seed", 1, "--no-tid",
        "--max-update", 1,
    )  # fmt: skip
    lines = re.findall(r"length mixing: .*", log)
    assert len(lines) == 2 and len(set(lines)) == 1
    hydra, argparse = (
        read_checkpoint(tmp_path / road / "checkpoint_last.pt") for road in ("hydra", "argparse")
    )
    assert [str(state["cfg"]["task"]["length_mixing"]) for state in (hydra, argparse)] == ["16"] * 2
    settings = {
        name: value for name, value in hydra["cfg"]["criterion"].items() if name.startswith("rbn_")
    }
    assert len(settings) == 5 and settings["rbn_mean_weight"] == 0.5
    assert {name: argparse["cfg"]["criterion"][name] for name in settings} == settings


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("configs/norm/*.yaml")), ids=lambda path: path.stem
)
def test_settings_of_norms_are_known(path):
    settings = OmegaConf.load(path).model
    kind = LANGUAGE_MODEL if path.stem.endswith("_lm") else TRANSLATION
    merged = OmegaConf.merge(OmegaConf.structured(config_class(kind)), settings)
    pre = settings.get("norm_placement") in ("sub", "peri", "hybrid")  # for Pre-Norm recipes only
    for side in kind.sides:
        merged[f"{side}_normalize_before"] = pre
    options = Namespace(**OmegaConf.to_container(merged))  # without the task's, which some are
    first, *others = resolve(options, kind).norms.stacks.values()
    used = first.layers.split("+")
    assert set(used) <= set(NORMS) and all(stack.layers == "layer" for stack in others)
    of_used = tuple(f"norm_{name}_" for name in used)
    general = (
        "norm_encoder", "norm_decoder", "norm_placement", "norm_weight", "norm_unit_embeddings",
        "norm_small_init",
    )  # fmt: skip
    for key in settings:
        assert key in general or key.startswith(of_used)


#: Sentences of training data, rounded down.
SENTENCES = {"iwslt14": 160_000, "imdb": 22_500, "conll2003": 14_000, "resume": 3_800}


@pytest.mark.parametrize(
    "recipe", [name for name in recipes.names() if name.startswith((*SENTENCES, "wmt16"))]
)
def test_prepbn_ends_inside_every_recipe(recipe):
    path = recipes.find(recipe)
    settings, _ = recipes.compose_settings(path, [recipes.choose(path, "norm", "prepbn")])
    dataset, optimization = settings["dataset"], settings["optimization"]
    updates = optimization.get("max_update")
    if updates is None:  # of as many sentences as a batch can have
        largest = dataset.get("batch_size") or dataset["max_tokens"]
        updates = optimization["max_epoch"] * (SENTENCES[recipe.split("_")[0]] // largest)
    assert settings["model"]["norm_repbn_layer_end"] <= updates


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/**/*.yaml")), ids=lambda p: p.stem)
def test_settings_are_commented(path):
    assert OmegaConf.load(path)
    obvious = ("user_dir", "_self_", "_lang", "_subset", "adam_eps", "rbn_std_weight: 0.0")
    for line in path.read_text().splitlines():
        setting, _, comment = line.partition("#")
        if not setting.strip() or setting.rstrip().endswith(":"):
            continue
        assert comment or any(word in line for word in (*obvious, "_name: adam")), line
