"""The language model: with layer norms fairseq's, with batch norms causal in evaluation."""

import math

import pytest
import torch
from fairseq.models.transformer_lm import (
    TransformerLanguageModel,
    TransformerLanguageModelConfig,
)
from fairseq.sequence_generator import SequenceGenerator

from rbn_fairseq.models.config import config_class
from rbn_fairseq.models.kinds import LANGUAGE_MODEL
from rbn_fairseq.models.placements import deepnorm, sub_norm_gains
from small_models import (
    STILL,
    assert_alike,
    assert_same_gradients,
    build_language_model,
    gradients,
    randomise,
    sentences,
    task,
)

pytestmark = pytest.mark.usefixtures("double_softmax")

BEFORE = {"decoder_normalize_before": True}
ADAPTIVE = {"adaptive_softmax_cutoff": "10,20"}
INPUT = ADAPTIVE | {
    "adaptive_input": True, "adaptive_input_cutoff": "10,20", "adaptive_input_factor": 2,
    "adaptive_softmax_factor": 2,
}  # fmt: skip
OPTIONS = {  # all others: `test_as_fairseq.py`, of the same decoder
    "post": {},
    "pre": BEFORE,
    "no final norm": BEFORE | {"no_decoder_final_norm": True},
    "widths": {"decoder_input_dim": 10, "decoder_output_dim": 12},
    "tied": {"share_decoder_input_output_embed": True},
    "adaptive softmax": ADAPTIVE,
    "adaptive input": INPUT,
    "adaptive, tied": INPUT | {"tie_adaptive_weights": True, "tie_adaptive_proj": True},
}
EVERY = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
LENGTHS = [7, 4, 5, 4, 11, 1, 4]


def pair(options):
    """Our model and fairseq's with the same weights, in fp64."""
    theirs = randomise(build_language_model(TransformerLanguageModel, **STILL, **options))
    ours = build_language_model(**STILL, **options)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return ours.double(), theirs.double()


def tokens(wider=0):
    return sentences(LENGTHS, max(LENGTHS) + wider, left_pad=False)


@pytest.mark.parametrize("options", [ADAPTIVE, INPUT], ids=["softmax", "input"])
def test_nll_computes_clusters_of_its_targets_alone(options):
    model = build_language_model(**STILL, **options).eval()
    source = tokens()
    target = source.roll(-1, 1)
    real = target.ne(1)
    logs = model.get_normalized_probs(model(source), log_probs=True)
    expected = -logs.gather(-1, target[..., None])[real].double().sum()
    rows = []
    for tail in model.decoder.adaptive_softmax.tail:
        tail.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    sample = {"net_input": {"src_tokens": source}, "target": target}
    nll, number = model.nll(sample, padding=1)
    torch.testing.assert_close(nll, expected)
    assert number == real.sum()
    bounds = [10, 20, len(model.decoder.dictionary)]
    members = [int(((target >= low) & (target < high)).sum())
               for low, high in zip(bounds, bounds[1:], strict=False)]  # fmt: skip
    assert rows == [number for number in members if number] and sum(rows) < real.sum()


@EVERY
@pytest.mark.parametrize("wider", [0, 3])
def test_training_is_fairseqs(options, wider):
    ours, theirs = pair(options)
    known, given = tokens(), tokens(wider)
    expected = theirs.train()(known)[0]
    rows, extra = ours.train()(given)
    assert rows.shape == (sum(LENGTHS), expected.shape[-1])
    at, known_at = given.ne(1), known.ne(1)
    assert_alike(extra["layout"].unpack(rows)[at], expected[known_at], "output")
    arriving = torch.randn(*rows.shape, dtype=torch.double)  # in the order of the batch
    padded = arriving.new_zeros(*at.shape, rows.shape[-1])
    padded[at] = arriving
    actual = gradients(ours, (rows * extra["layout"].pack(padded)).sum())
    assert_same_gradients(actual, gradients(theirs, (expected[known_at] * arriving).sum()))


@EVERY
@torch.no_grad()
def test_evaluation_is_fairseqs(options):
    ours, theirs = pair(options)
    given = tokens()
    expected, output = theirs.eval()(given), ours.eval()(given)
    assert output[0].shape == expected[0].shape
    real = given.ne(1)
    actual = ours.get_normalized_probs(output, log_probs=True)
    assert_alike(actual[real], theirs.get_normalized_probs(expected, log_probs=True)[real])
    assert_alike(actual.exp().sum(-1), torch.ones(given.shape, dtype=torch.double))


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, BEFORE, {"norm_decoder": "batch"}])
def test_text_is_continued_as_fairseq_continues_it(options):
    ours, theirs = pair({name: value for name, value in options.items() if name != "norm_decoder"})
    if "norm_decoder" in options:
        ours = theirs = randomise(build_language_model(**STILL, **options)).double()
    words = task().target_dictionary
    prefix = sentences([3, 3], 3, left_pad=False)
    sample = {"net_input": {"src_tokens": prefix, "src_lengths": torch.tensor([3, 3])}}
    texts = []
    for model in (ours, theirs):
        search = SequenceGenerator([model.eval()], words, beam_size=3, max_len=8)
        found = search.generate([model], sample, prefix_tokens=prefix, bos_token=2)
        texts.append([(hypo["tokens"].tolist(), round(float(hypo["score"]), 6))
                      for hypos in found for hypo in hypos])  # fmt: skip
    assert texts[0] == texts[1]
    # The scores of single steps are those of the whole text at once.
    hypo = max(texts[0], key=lambda one: len(one[0]))
    given = torch.tensor([[2, *hypo[0][:-1]]])
    logs = ours.get_normalized_probs(ours(given), log_probs=True)[0]
    total = logs.gather(1, torch.tensor(hypo[0]).unsqueeze(1)).sum()
    assert float(total) / len(hypo[0]) == pytest.approx(hypo[1], abs=1e-5)


def test_a_stack_alone_has_other_scales():
    # DeepNet (arXiv:2203.00555): (2 N)^(1/4), (8 N)^(-1/4); Foundation Transformers
    # (arXiv:2210.06423): sqrt(ln 2 N).
    for layers in ((0, 8), (8, 0)):
        for alpha, beta in deepnorm(*layers):
            assert (alpha, beta) == pytest.approx((2.0, 64**-0.25))
        assert sub_norm_gains(*layers) == pytest.approx([math.sqrt(math.log(16))] * 2)
    deep = build_language_model(norm_placement="deepnorm", decoder_layers=8)
    assert all(layer.residual_scale == pytest.approx(2.0) for layer in deep.decoder.layers)
    sub = build_language_model(**BEFORE, norm_placement="sub", decoder_embed_dim=64,
                               decoder_ffn_embed_dim=64)  # fmt: skip
    gain = math.sqrt(math.log(4))
    drawn = sub.decoder.layers[0].fc1.weight.detach()
    assert float(drawn.std()) == pytest.approx(gain * (2 / 128) ** 0.5, rel=0.1)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"norm_decoder": "instance"}, "--norm-decoder: `instance` may not stand in the decoder"),
        ({"norm_decoder": "batch", "norm_batch_length_bins": 4}, "its length is not known yet"),
        ({"norm_decoder": "mabn"}, "`mabn` needs a linear layer behind it"),
        ({"norm_placement": "sub"}, "give --decoder-normalize-before, which"),
        (ADAPTIVE | {"tie_adaptive_weights": True}, "it needs --adaptive-input"),
        (
            ADAPTIVE | {"share_decoder_input_output_embed": True},
            "--share-decoder-input-output-embed does not go with --adaptive-softmax-cutoff",
        ),
        ({"adaptive_input": True}, "--adaptive-input needs --adaptive-input-cutoff"),
        (
            {
                "adaptive_input": True,
                "adaptive_input_cutoff": "10",
                "share_decoder_input_output_embed": True,
            },
            "does not go with --share-decoder-input-output-embed",
        ),
        ({"decoder_layers": 0}, "--decoder-layers must be at least 1"),
    ],
)
def test_refused(options, message):
    with pytest.raises(ValueError) as error:
        build_language_model(**options)
    assert message in str(error.value) and "--norm-encoder" not in str(error.value)


def test_mabn_centres_what_follows():
    model = build_language_model(norm_decoder="layer@1.ffn:mabn")
    rows = model.decoder.layers[1].fc1.weight
    torch.testing.assert_close(rows.mean(1), torch.zeros(len(rows)), rtol=0, atol=1e-6)
    assert model.decoder.layers[0].self_attn.q_proj.weight.mean(1).abs().max() > 1e-3


def test_its_options_are_those_of_its_stack():
    options = config_class(LANGUAGE_MODEL).__dataclass_fields__
    assert not [name for name in options if "encoder" in name]
    fairseqs = TransformerLanguageModelConfig.__dataclass_fields__
    assert fairseqs.keys() - options.keys() == set(LANGUAGE_MODEL.left_out)
