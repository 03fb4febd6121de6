"""Modes that norms with running statistics do not go with; the line at the start."""

import re

import pytest
from omegaconf import OmegaConf
from torch import nn

import runs
from rbn_fairseq.callbacks import start
from rbn_fairseq.callbacks.start import describe_penalty
from rbn_fairseq.criterions.penalty import RBNPenaltyConfig
from rbn_fairseq.models.refusals import OF_TRAINING, refuse
from rbn_fairseq.norms import (
    Affine,
    BatchNorm,
    LayerNorm,
    MovingAverageBatchNorm,
    PowerNorm,
    UnifiedNorm,
)

PLAIN = {
    "common": {"fp16": False, "amp": False},
    "distributed_training": {"ddp_backend": "pytorch_ddp", "broadcast_buffers": False},
    "optimization": {"use_bmuf": False},
    "task": {"length_mixing": "1"},
}
GIVEN = {
    "--ddp-backend fully_sharded": {"distributed_training": {"ddp_backend": "fully_sharded"}},
    "--ddp-backend slowmo": {"distributed_training": {"ddp_backend": "slowmo"}},
    "--use-bmuf": {"optimization": {"use_bmuf": True}},
    "--broadcast-buffers": {"distributed_training": {"broadcast_buffers": True}},
    "--fp16": {"common": {"fp16": True}},
    "--amp": {"common": {"amp": True}},
}


def check(norm, **given):
    refuse(OF_TRAINING, OmegaConf.merge(PLAIN, given), nn.Sequential(nn.Linear(2, 2), norm))


@pytest.mark.parametrize("option", GIVEN)
def test_refused_with_running_statistics_alone(option):
    norm = PowerNorm(2) if option in ("--fp16", "--amp") else BatchNorm(2)
    check(norm)
    check(LayerNorm(2), **GIVEN[option])
    with pytest.raises(ValueError) as error:
        check(norm, **GIVEN[option])
    message = str(error.value)
    name = {BatchNorm: "batch", PowerNorm: "power"}[type(norm)]
    assert message.startswith(f"{option} does not go with `{name}`: ")
    assert re.search("Use |Leave it out", message)


@pytest.mark.parametrize("kind", [MovingAverageBatchNorm, UnifiedNorm])
@pytest.mark.parametrize("option", ["--fp16", "--amp"])
def test_every_backward_that_remembers_gradients_is_known(kind, option):
    with pytest.raises(ValueError, match=f"{option} does not go with `{kind.name}`"):
        check(kind(2), **GIVEN[option])


def test_what_folding_leaves_does_not_train():
    with pytest.raises(ValueError, match="Training does not go with `affine`"):
        check(Affine(2))


def test_every_refusal_is_tried():
    others = {"--length-mixing", "Training"}
    assert {refusal.option for refusal in OF_TRAINING} == {*GIVEN, *others}


@pytest.mark.parametrize("value", [2, "random"])
def test_mixed_lengths_do_not_go_with_statistics_by_length(data_bin, tmp_path, value):
    """In training they are normalised together."""
    mixing = "--length-mixing", value, "--norm-encoder", "batch", "--max-update", 1
    with pytest.raises(ValueError, match="--length-mixing does not go with --norm-batch-length-b"):
        runs.train(data_bin, tmp_path, *mixing, "--norm-batch-length-bins", 2)
    runs.train(data_bin, tmp_path, *mixing)


@pytest.mark.parametrize("options, warned", [(["--norm-sync"], 1), ([], 0)])
def test_joint_batches_and_statistics_by_length(data_bin, tmp_path, monkeypatch, options, warned):
    monkeypatch.setattr(start, "world_size", lambda sync: 2 if sync else 1)
    log = runs.train(
        data_bin, tmp_path, "--norm-encoder", "batch", "--norm-batch-length-bins", 2,
        "--max-update", 1, *options,
    )  # fmt: skip
    assert log.count("--norm-sync puts batches of unlike lengths together") == warned


def test_models_of_other_kinds_train_without_monitors(data_bin, tmp_path):
    log = runs.call(
        "train", data_bin, "--user-dir", runs.USER_DIR, "--task", "translation_rbn", "--arch",
        "lstm", "--encoder-embed-dim", 8, "--decoder-embed-dim", 8, "--encoder-hidden-size", 8,
        "--decoder-hidden-size", 8, "--decoder-out-embed-dim", 8, "--optimizer", "adam",
        "--max-tokens", 1000, "--max-update", 1, "--cpu", "--save-dir", tmp_path,
    )  # fmt: skip
    assert "norms:" not in log and "Conditioning is not measured" in log
    assert not list(tmp_path.glob("*.jsonl"))


@pytest.mark.parametrize(
    "options",
    [("--use-bmuf",), ("--norm-encoder", "power", "--memory-efficient-fp16")],
    ids=lambda options: " ".join(map(str, options)),
)
def test_training_is_refused(data_bin, tmp_path, options):
    with pytest.raises(ValueError, match="does not go with"):
        runs.train(data_bin, tmp_path, "--norm-encoder", "batch", *options, "--max-update", 1)
    assert not list(tmp_path.iterdir())


def test_line_at_the_start(data_bin, tmp_path):
    log = runs.train(
        data_bin, tmp_path, "--norm-encoder", "batch@0:layer", "--rbn-mean-weight", 0.5,
        "--rbn-std-weight", 2, "--max-epoch", 1, "--no-tid", "--log-format", "json",
    )  # fmt: skip
    (line,) = re.findall(r"norms: (.*)", log)
    assert line.startswith(
        "encoder batch@0:layer; decoder layer | statistics of each process's own batch | RBN "
        "penalty (paper, sum): weights of mean and std 0.5 and 2, which is "
    )
    mean, std, size = re.search(
        r"is (\S+) and (\S+) per token \(micro-batches of (\S+) t", line
    ).groups()
    # fairseq's own count: tokens (its sample size) a batch.
    words = float(re.search(r'"train_wpb": "([\d.]+)"', log)[1])
    assert abs(float(size) - words) <= 1
    assert float(mean) == pytest.approx(0.5 / words, rel=0.01)
    assert float(std) == pytest.approx(2 / words, rel=0.01)


@pytest.mark.parametrize(
    "reduction, replicas, effective",
    [
        ("sum", 1, "0.0005 and 0.0001"),
        ("sum", 4, "0.000125 and 2.5e-05"),
        ("token", 4, "0.5 and 0.1"),
    ],
)
def test_effective_penalty(reduction, replicas, effective):
    rbn = RBNPenaltyConfig(rbn_mean_weight=0.5, rbn_std_weight=0.1, rbn_reduction=reduction)
    assert f"which is {effective} per token" in describe_penalty(rbn, 1000.0, "token", replicas)
