"""The classifier: fairseq's encoder and a linear layer, and nothing of padding."""

import argparse

import pytest
import torch
from fairseq.models.transformer import TransformerConfig, TransformerEncoder
from torch.nn import functional

import oracles
from rbn_fairseq.models.config import config_class
from rbn_fairseq.models.kinds import CLASSIFIER
from small_models import (
    SIZES,
    STILL,
    assert_alike,
    assert_same_gradients,
    build_classifier,
    classified,
    gradients,
    label_task,
    randomise,
)

pytestmark = pytest.mark.usefixtures("double_softmax")

PRE = {"encoder_normalize_before": True}
OPTIONS = {
    "post": {},
    "pre": PRE,
    "learned positions": {"encoder_learned_pos": True},
    "no positions": {"no_token_positional_embeddings": True},
    "norm of embeddings": {"layernorm_embedding": True},
    "gelu": {"activation_fn": "gelu"},
}
EVERY = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def fairseqs(model, options):
    """fairseq's encoder with the same weights."""
    sizes = {name: size for name, size in SIZES.items() if name.startswith("encoder")}
    given = {"max_source_positions": 50, **STILL, **sizes, **options}
    cfg = TransformerConfig.from_namespace(argparse.Namespace(**given))
    words = label_task().source_dictionary
    embedding = torch.nn.Embedding(len(words), cfg.encoder.embed_dim, words.pad())
    encoder = TransformerEncoder(cfg, words, embedding).double()
    encoder.load_state_dict(model.encoder.state_dict())
    return encoder


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@EVERY
def test_it_is_fairseqs_encoder_and_a_linear_layer(options, training):
    model = randomise(build_classifier(**STILL, **options)).double().train(training)
    encoder = fairseqs(model, options).train(training)
    sample = classified()
    tokens = sample["net_input"]["src_tokens"]
    out = encoder(tokens, sample["net_input"]["src_lengths"])["encoder_out"][0]  # (T, B, C)
    weight, bias = model.output_projection.weight, model.output_projection.bias
    expected = functional.linear(out[0], weight, bias)  # <s> comes first
    actual, _ = model(**sample["net_input"])
    assert actual.shape == (len(tokens), 3)
    assert_alike(actual, expected, "logits")
    arriving = torch.randn_like(expected)
    ours = gradients(model, (actual * arriving).sum())
    both = torch.nn.ModuleDict({"encoder": encoder, "output_projection": model.output_projection})
    assert_same_gradients(ours, gradients(both, (expected * arriving).sum()))
    features, _ = model(**sample["net_input"], features_only=True)
    assert_alike(features, out[0], "features")


@pytest.mark.parametrize("norm", ["layer", "batch", "instance", "power"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("left, wider", [(False, 4), (True, 0), (True, 3)])
def test_padding_makes_no_difference(norm, training, left, wider):
    outcomes = []
    for padding in ({}, {"left": left, "wider": wider}):
        model = randomise(build_classifier(**STILL, norm_encoder=norm)).double().train(training)
        sample = classified(**padding)
        nll, texts = model.nll(sample, padding=1)
        assert texts == len(sample["target"])
        outcomes.append((nll, gradients(model, nll), model.state_dict()))
    (nll, grads, state), (other_nll, other_grads, other_state) = outcomes
    assert_alike(other_nll, nll)
    assert_same_gradients(other_grads, grads)
    for name, value in state.items():  # statistics, too
        assert_alike(other_state[name], value, name)


def test_batch_norm_is_over_the_real_tokens_of_all_texts():
    model = build_classifier(**STILL, norm_encoder="batch@0.self:layer", encoder_layers=1)
    model = model.double().train()
    seen = []
    norm = model.encoder.layers[0].self_attn_layer_norm
    norm.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].detach()))
    model(**classified()["net_input"])
    (rows,) = seen
    assert len(rows) == classified()["net_input"]["src_lengths"].sum()
    mean, var = oracles.moments(rows)
    torch.testing.assert_close(norm.population.get()[0].double(), 0.05 * mean, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(
        norm.population.get()[1].double(), 0.95 + 0.05 * var, rtol=1e-4, atol=1e-6
    )


@torch.no_grad()
def test_nll_is_of_classes_counted_from_0():
    model = build_classifier(**STILL).double().eval()
    sample = classified()
    logits, _ = model(**sample["net_input"])
    logs = logits.log_softmax(1)
    labels = label_task().target_dictionary
    each = [row[int(labels[i]) - 1] for row, i in zip(logs, sample["target"][:, 0], strict=True)]
    assert {labels[i] for i in sample["target"][:, 0]} == {
        "1",
        "2",
        "3",
    }  # one has padding's number
    nll, texts = model.nll(sample, labels.pad())
    assert_alike(nll, -sum(each)) and texts == len(each)


def test_architectures():
    paper = CLASSIFIER.presets["rbn_transformer_classifier_paper_pre"]
    assert (paper["encoder_layers"], paper["encoder_attention_heads"]) == (1, 4)
    assert paper["encoder_normalize_before"] and paper["encoder_embed_dim"] == 32
    options = config_class(CLASSIFIER).__dataclass_fields__
    assert not [name for name in options if name.startswith(("decoder", "norm_decoder"))]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"norm_encoder": "mabn"}, "`mabn` needs a linear layer behind it"),
        ({"norm_placement": "sub"}, "give --encoder-normalize-before"),
        ({"base_layers": 1}, "--base-layers does not go with rbn_transformer_classifier"),
    ],
)
def test_refused(options, message):
    with pytest.raises(ValueError) as error:
        build_classifier(**options)
    assert message in str(error.value) and "--norm-decoder" not in str(error.value)
