"""The classifier: fairseq's encoder and a linear layer, and nothing of padding."""

import pytest
import torch
from torch.nn import functional

from rbn_fairseq.models.config import config_class
from rbn_fairseq.models.kinds import CLASSIFIER
from small_models import (
    STILL,
    assert_alike,
    assert_same_gradients,
    build_classifier,
    classified,
    fairseqs_encoder,
    gradients,
    label_task,
    randomise,
)

pytestmark = pytest.mark.usefixtures("double_softmax")

PRE = {"encoder_normalize_before": True}
OPTIONS = {"post": {}, "pre": PRE}  # all others: `test_as_fairseq.py`, of the same encoder
EVERY = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@EVERY
def test_it_is_fairseqs_encoder_and_a_linear_layer(options, training):
    model = randomise(build_classifier(**STILL, **options)).double().train(training)
    encoder = fairseqs_encoder(model, **options).train(training)
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


@torch.no_grad()
def test_nll_is_of_classes_counted_from_0():
    model = build_classifier(**STILL).double().eval()
    sample = classified()
    logits, _ = model(**sample["net_input"])
    logs = logits.log_softmax(1)
    labels = label_task().target_dictionary
    each = [row[int(labels[i]) - 1] for row, i in zip(logs, sample["target"][:, 0], strict=True)]
    # One has padding's number.
    assert {labels[i] for i in sample["target"][:, 0]} == {"1", "2", "3"}
    nll, texts = model.nll(sample, labels.pad())
    assert_alike(nll, -sum(each))
    assert texts == len(each)


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
    ],
)
def test_refused(options, message):
    with pytest.raises(ValueError) as error:
        build_classifier(**options)
    assert message in str(error.value) and "--norm-decoder" not in str(error.value)
