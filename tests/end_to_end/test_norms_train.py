"""Every registered norm through fairseq's training and translation: train, resume, translate."""

import copy

import pytest
import torch
from fairseq import options
from fairseq_cli import generate, train

import composing
import runs
from rbn_fairseq.checkpoints.files import read_checkpoint
from rbn_fairseq.norms import NORMS

SMALL = (
    "--encoder-layers", 1, "--decoder-layers", 1, "--max-tokens", 400, "--no-tid",
    "--no-epoch-checkpoints", "--disable-validation",
    # Schedules that move before and after the stop.
    "--norm-renorm-start", 1, "--norm-renorm-r-end", 4, "--norm-renorm-d-end", 4,
    "--norm-repbn-layer-end", 2, "--norm-power-warmup", 3,
    "--norm-mabn-window", 2, "--norm-mabn-warmup", 2, "--norm-mabn-r-start", 3,
    "--norm-un-window", 2, "--norm-un-warmup", 2, "--norm-un-r-start", 3,
)  # fmt: skip
PRE = {"encoder_normalize_before": True, "decoder_normalize_before": True}


@pytest.fixture(scope="module")
def training(data_bin):
    return composing.options_of(runs.train_arguments(data_bin, "", *SMALL))


@pytest.fixture(scope="module")
def translating(data_bin):
    arguments = (
        data_bin, "--user-dir", runs.USER_DIR, "--task", "translation_rbn", "--path", "-",
        "--cpu", "--num-workers", 0, "--gen-subset", "valid", "--beam", 1, "--max-len-b", 3,
    )  # fmt: skip
    return composing.options_of(list(map(str, arguments)), options.get_generation_parser)


def train_until(cfg, save_dir, update):
    cfg = copy.deepcopy(cfg)
    cfg.checkpoint.save_dir = str(save_dir)
    cfg.optimization.max_update = update
    train.main(cfg)
    return read_checkpoint(save_dir / "checkpoint_last.pt")["model"]


def assert_trains_resumes_and_translates(cfg, translating, tmp_path, capsys):
    whole = train_until(cfg, tmp_path / "whole", 4)
    halfway = train_until(cfg, tmp_path / "parts", 2)
    resumed = train_until(cfg, tmp_path / "parts", 4)
    assert whole.keys() == resumed.keys() == halfway.keys()
    for key, value in whole.items():
        assert value.isfinite().all(), key
        assert torch.equal(value, resumed[key]), f"{key}: resuming changed the training"
        assert "norm" not in key or not torch.equal(value, halfway[key]), f"{key} does not learn"

    cfg = copy.deepcopy(translating)
    cfg.common_eval.path = str(tmp_path / "parts" / "checkpoint_last.pt")
    capsys.readouterr()
    generate.main(cfg)
    translated = [line for line in capsys.readouterr().out.splitlines() if line.startswith("H-")]
    assert len(translated) == 60


PLACEMENTS = pytest.mark.parametrize("pre", [False, True], ids=["post", "pre"])


@PLACEMENTS
@pytest.mark.parametrize("name", [name for name in NORMS if name != "affine"])  # does not learn
def test_every_norm(name, pre, training, translating, tmp_path, capsys):
    cfg = copy.deepcopy(training)
    cfg.model.encoder_normalize_before = cfg.model.decoder_normalize_before = pre
    cfg.model.norm_encoder = cfg.model.norm_encoder_final = name
    plans = runs.decoder_plans(name, layers=1)
    cfg.model.norm_decoder, cfg.model.norm_decoder_final = plans
    assert_trains_resumes_and_translates(cfg, translating, tmp_path, capsys)


def test_resuming_in_a_schedule_that_must_end_inside_the_training(training, tmp_path):
    cfg = copy.deepcopy(training)
    cfg.model.norm_encoder, cfg.model.norm_repbn_layer_end = "repbn", 4
    cfg.checkpoint.save_interval_updates = 2
    whole = train_until(cfg, tmp_path / "whole", 5)
    (halfway,) = (tmp_path / "whole").glob("checkpoint_*_2.pt")
    cfg.checkpoint.restore_file = str(halfway)
    resumed = train_until(cfg, tmp_path / "rest", 5)
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(value, resumed[key]) for key, value in whole.items())


@PLACEMENTS
@pytest.mark.parametrize(
    "plan", ["groupscale+power", "rms+batch", "batch+layer", "batch@0:layer", "groupscale+mabn"]
)
def test_compositions_and_hybrids(plan, pre, training, translating, tmp_path, capsys):
    cfg = copy.deepcopy(training)
    cfg.model.encoder_normalize_before = cfg.model.decoder_normalize_before = pre
    cfg.model.encoder_layers, cfg.model.norm_encoder = 2, plan
    cfg.criterion.rbn_mean_weight = 0.1 if "batch" in plan else 0.0
    assert_trains_resumes_and_translates(cfg, translating, tmp_path, capsys)


@pytest.mark.parametrize(
    "options",
    [
        {"norm_placement": "deepnorm"},
        PRE | {"norm_placement": "sub"},
        PRE | {"norm_placement": "peri"},
        PRE | {"norm_placement": "hybrid"},
        {"norm_encoder": "batch@embedding:layer@qk:batch"},
        {"norm_weight": "wn"},
        {"norm_weight": "cwn"},
        {"norm_unit_embeddings": True, "norm_small_init": True},
    ],
    ids=["deepnorm", "sub", "peri", "hybrid", "sites", "wn", "cwn", "fixnorm"],
)
def test_arrangements_and_weights(options, training, translating, tmp_path, capsys):
    cfg = copy.deepcopy(training)
    for name, value in ({"norm_encoder": "batch"} | options).items():
        setattr(cfg.model, name, value)
    assert_trains_resumes_and_translates(cfg, translating, tmp_path, capsys)
