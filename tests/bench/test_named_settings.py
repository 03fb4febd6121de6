"""Settings of a benchmark: by name, fairseq's own, with mixed lengths."""

import pytest
from fairseq.models.transformer import TransformerModel

from rbn_fairseq.bench.named_settings import SETTINGS, add_mixing, fairseq_options, read_settings
from rbn_fairseq.bench.training import set_up
from runs import TINY

COMMON = [*TINY, "--optimizer", "adam", "--max-tokens", "600"]
OWN_CRITERION = ("--criterion", "label_smoothed_cross_entropy_rbn")


def test_a_setting_is_given_by_options_or_by_the_name_of_a_default():
    given = ["batch", "layer: --dropout 0.3", "fairseq"]
    settings = read_settings(given, COMMON)
    assert list(settings) == ["batch", "layer", "fairseq"]
    assert settings["batch"] == ["--norm-encoder", "batch"]
    assert settings["layer"] == ["--dropout", "0.3"]
    assert settings["fairseq"] == fairseq_options(COMMON)
    assert list(read_settings(SETTINGS, COMMON)) == ["fairseq", "layer", "batch", "rbn"]


def test_the_last_setting_is_mixed():
    settings = {"a": ["--dropout", "0.3"], "b": ["--dropout", "0.2"]}
    mixed = add_mixing(settings, "16,random")
    assert list(mixed)[:2] == ["a", "b"] and mixed["a"] == settings["a"]
    added = [options for name, options in mixed.items() if name not in settings]
    assert added == [
        ["--dropout", "0.2", "--length-mixing", "16"],
        ["--dropout", "0.2", "--length-mixing", "random"],
    ]


@pytest.mark.parametrize(
    "options",
    [
        "--arch rbn_transformer_tiny",
        "--arch rbn_transformer_tiny_pre --share-all-embeddings",
        # The user's win over the architecture's.
        "--arch rbn_transformer_tiny --encoder-layers 1 --decoder-attention-heads 2 --dropout 0.25",
        "--arch rbn_transformer_iwslt_de_en --encoder-normalize-before --encoder-layers 1 "
        "--decoder-layers 1 --decoder-embed-dim 128",
    ],
)
def test_fairseqs_own_model_has_the_sizes_of_ours(data_bin, options):
    common = [*options.split(), "--optimizer", "adam", "--max-tokens", "600"]
    models = []
    for own in ([], fairseq_options(common)):
        cfg, task = set_up(str(data_bin), [*common, *own], "cpu")
        models.append(task.build_model(cfg.model))
    ours, fairseqs = models
    assert type(fairseqs) is TransformerModel
    shapes = [{name: x.shape for name, x in model.state_dict().items()} for model in models]
    assert shapes[0] == shapes[1]
    for side in ("encoder", "decoder"):
        layers = [getattr(model, side).layers[0] for model in models]
        assert layers[0].self_attn.num_heads == layers[1].self_attn.num_heads
        assert layers[0].normalize_before == layers[1].normalize_before
        assert layers[0].dropout_module.p == layers[1].dropout_module.p


@pytest.mark.parametrize(
    "criterion, sister",
    [
        (OWN_CRITERION, "label_smoothed_cross_entropy"),
        (("--criterion", "cross_entropy"), "cross_entropy"),
        ((), "cross_entropy"),  # fairseq's default
    ],
)
def test_fairseqs_own_criterion_is_that_of_the_others_without_a_penalty(
    data_bin, criterion, sister
):
    common = [*COMMON, *criterion]
    cfg, _ = set_up(str(data_bin), [*common, *fairseq_options(common)], "cpu")
    assert (cfg.criterion._name, cfg.task._name) == (sister, "translation")
