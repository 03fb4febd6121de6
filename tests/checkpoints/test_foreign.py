"""Checkpoints that were made elsewhere or by older versions."""

import dataclasses

import pytest
import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from fairseq.tasks.translation import TranslationConfig

import runs
from rbn_fairseq.checkpoints.files import write_checkpoint
from rbn_fairseq.criterions.penalty import RBNPenaltyConfig
from rbn_fairseq.models.config import config_class
from saved import assert_same_weights, last, load

BATCH = ("--norm-encoder", "batch")
STILL = ("--lr", runs.NOTHING, "--max-update")  # whatever is trained, the weights stay


@pytest.mark.parametrize("updates, option", [(3, "--restore-file"), (1, "--finetune-from-model")])
def test_layer_norms_go_on_from_fairseqs_own(data_bin, plain_run, tmp_path, updates, option):
    file = plain_run / "checkpoint_last.pt"
    plain = ("--criterion", "label_smoothed_cross_entropy")  # its optimizer goes with it
    runs.train(data_bin, tmp_path, *plain, option, file, *STILL, updates)
    ours, theirs = last(tmp_path), last(plain_run)
    assert ours["cfg"]["model"]["_name"] == "rbn_transformer_tiny"
    assert ours["optimizer_history"][-1]["num_updates"] == updates
    assert ours["extra_state"]["val_loss"] == theirs["extra_state"]["val_loss"]
    assert_same_weights(ours["model"], theirs["model"])


@pytest.mark.parametrize("option", ["--restore-file", "--finetune-from-model"])
def test_batch_norms_do_not_and_say_what_does(data_bin, plain_run, tmp_path, option):
    file = plain_run / "checkpoint_last.pt"
    with pytest.raises(Exception, match="Cannot load model parameters") as raised:
        runs.train(data_bin, tmp_path, *BATCH, option, file, "--max-update", 3)
    error = raised.value.__context__  # which fairseq's trainer covers with its own
    assert isinstance(error, ValueError)
    for words in ("statistics differ", "layers.0", "--norm-encoder", "`layer`", "--init-from FILE"):
        assert words in str(error)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "other",
    [("--norm-encoder", "renorm"), ("--norm-placement", "deepnorm"), ("--norm-unit-embeddings",)],
    ids=" ".join,
)
def test_norms_of_the_same_names_and_shapes_are_told_apart(data_bin, rbn_run, tmp_path, other):
    model = last(rbn_run)["cfg"]["model"]
    given = ("--norm-encoder", model["norm_encoder"], *other, "--no-tid", "--max-update", 999)
    file = rbn_run / "checkpoint_last.pt"
    with pytest.raises(ValueError, match=f"other norms.* {other[0]} .*--init-from FILE"):
        runs.train(data_bin, tmp_path, *given, "--restore-file", file)
    assert not list(tmp_path.iterdir())


def test_statistics_without_norms_for_them_are_refused(rbn_run, data_bin):
    path = rbn_run / "checkpoint_last.pt"
    with pytest.raises(ValueError, match="population statistics differ") as error:
        load(path, data_bin, norm_encoder="layer")
    assert "--norm-encoder" in str(error.value) and "--init-from" in str(error.value)
    model, _, _ = load(path, data_bin, strict=False, norm_encoder="layer")
    weight = last(rbn_run)["model"]["encoder.layers.0.self_attn_layer_norm.weight"]
    assert torch.equal(model.encoder.layers[0].self_attn_layer_norm.weight, weight)


def test_other_differences_are_still_torchs(rbn_run, data_bin):
    with pytest.raises(RuntimeError, match="decoder.layers.2"):
        load(rbn_run / "checkpoint_last.pt", data_bin, decoder_layers=3)


def fields(config, *bases):
    known = {item.name for base in bases for item in dataclasses.fields(base)}
    return [item.name for item in dataclasses.fields(config) if item.name not in known]


def without(state, *names):
    """A checkpoint without some entries, such as ``cfg.task.no_tid``."""
    for name in names:
        first, _, rest = name.partition(".")
        if rest:
            state = {**state, first: without(state[first], rest)}
        else:
            assert first in state
            state = {key: value for key, value in state.items() if key != first}
    return state


# Without --norm-encoder no one can know which norms they are; all else has its default here.
MODEL = [name for name in fields(config_class()) if name.startswith("norm_")]
MODEL.remove("norm_encoder")
TASK = fields(TASK_DATACLASS_REGISTRY["translation_rbn"], TranslationConfig)
NEW = {
    "model": [f"cfg.model.{name}" for name in MODEL],
    "task": [f"cfg.task.{name}" for name in TASK],
    "criterion": [f"cfg.criterion.{name}" for name in fields(RBNPenaltyConfig, FairseqDataclass)],
    "dictionaries": ["task_state.dictionaries"],
    "callbacks": ["extra_state.TranslationRBNTask"],
    "state": ["task_state"],
}


@pytest.fixture(scope="module")
def new(rbn_run, data_bin):
    """Model, config and task of a new checkpoint."""
    return load(rbn_run / "checkpoint_last.pt", data_bin)


@pytest.mark.parametrize("names", NEW.values(), ids=NEW)
def test_checkpoints_of_before_several_entries_load(rbn_run, data_bin, tmp_path, names, new):
    write_checkpoint(tmp_path / "old.pt", without(last(rbn_run), *names))
    model, _, task = load(tmp_path / "old.pt", data_bin)
    assert str(model) == str(new[0]) and dict(task.cfg) == dict(new[2].cfg)
    assert_same_weights(model.state_dict(), last(rbn_run)["model"])


def test_training_resumes_from_an_old_checkpoint(rbn_run, data_bin, tmp_path):
    state = last(rbn_run)
    old = [*NEW["model"], *NEW["task"], *NEW["criterion"], "task_state"]
    write_checkpoint(tmp_path / "old" / "checkpoint_last.pt", without(state, *old))
    write_checkpoint(tmp_path / "new" / "checkpoint_last.pt", state)
    updates = state["optimizer_history"][-1]["num_updates"] + 2
    for name in ("old", "new"):
        runs.train(
            data_bin, tmp_path / name, *runs.RBN, "--max-update", updates, "--no-tid",
            "--disable-validation",
        )  # fmt: skip
        assert last(tmp_path / name)["optimizer_history"][-1]["num_updates"] == updates
    assert_same_weights(*(last(tmp_path / name)["model"] for name in ("old", "new")))
