"""With layer norms everywhere the model is fairseq's, which computes the padding, too."""

import copy

import pytest
import torch
from fairseq.models.transformer import TransformerModel
from fairseq.sequence_generator import SequenceGenerator
from torch import nn

from small_models import (
    LENGTHS,
    PRE,
    STILL,
    assert_alike,
    assert_same_gradients,
    build,
    gradients,
    randomise,
    sample,
    task,
)

pytestmark = pytest.mark.usefixtures("double_softmax")

OPTIONS = {
    "post": {},
    "pre": PRE,
    "pre and post": {"encoder_normalize_before": True},
    "heads": {"encoder_attention_heads": 8, "decoder_attention_heads": 1},
    "deep": {"encoder_layers": 3, "decoder_layers": 1},
    "learned positions": {"encoder_learned_pos": True, "decoder_learned_pos": True},
    "no positions": {"no_token_positional_embeddings": True},
    "norm of embeddings": {"layernorm_embedding": True},
    "embeddings as they are": {"no_scale_embedding": True},
    "no cross-attention": {"no_cross_attention": True},
    "widths": {"encoder_embed_dim": 8, "decoder_embed_dim": 24, "decoder_output_dim": 10},
    "other width in": {"projected": True},
    "tied": {"share_decoder_input_output_embed": True},
    "all tied": {"share_all_embeddings": True},
    "no final norm": PRE | {"no_decoder_final_norm": True},
    "gelu": {"activation_fn": "gelu"},
    "padding is 3": {"pad": 3},
}
# How sources and targets are padded, and columns that nobody needs. fairseq's transformer gets
# what its data sets make, the first: targets padded on the left give NaN there.
PADDED = {
    "as fairseq": ((True, False), 0),
    "the other way": ((False, True), 0),
    "behind": ((False, False), 0),
    "wider": ((True, True), 3),
}
WAYS = pytest.mark.parametrize("way", PADDED.values(), ids=PADDED)
EVERY = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
CASES = pytest.mark.parametrize(
    "options, lengths, way",
    [
        pytest.param(OPTIONS[name], LENGTHS["many"], PADDED[way], id=f"{name}-{way}")
        for name in OPTIONS
        for way in ("as fairseq", "wider")
    ]
    + [
        pytest.param(OPTIONS["pre"], LENGTHS[name], PADDED[way], id=f"{name}-{way}")
        for name in LENGTHS
        for way in PADDED
    ],
)
# fairseq's attention weights are fp32 even of fp64, and so are ours: rounded once.
ROUNDED = {"rtol": 0, "atol": 1e-6}


def pair(options):
    """Our model and fairseq's with the same weights, in fp64; the number of padding."""
    options = dict(options)
    projected = options.pop("projected", False)
    theirs = randomise(build(TransformerModel, **STILL, **options))
    ours = build(**STILL, **options)
    if projected:  # embeddings of another width than the decoder's: no option makes them
        for model in (ours, theirs):
            decoder = model.decoder
            decoder.embed_tokens = nn.Embedding(34, 10, 1)
            decoder.project_in_dim = nn.Linear(10, 16, bias=False)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return ours.double(), theirs.double(), options.get("pad", 1)


def real(given, pad=1):
    inputs = given["net_input"]
    return inputs["src_tokens"].ne(pad), inputs["prev_output_tokens"].ne(pad)


@CASES
def test_training(options, lengths, way):
    ours, theirs, pad = pair(options)
    given, known = sample(lengths, *way, pad=pad), sample(lengths, pad=pad)
    expected = theirs.train()(**known["net_input"])[0]
    rows, extra = ours.train()(**given["net_input"])
    assert rows.shape == (sum(lengths[1]), 34) and extra["attn"] == [None]
    at, known_at = real(given, pad)[1], real(known, pad)[1]
    assert_alike(extra["layout"].unpack(rows)[at], expected[known_at], "logits")
    assert_alike(
        theirs.get_normalized_probs((expected, {}), True)[known_at],
        extra["layout"].unpack(ours.get_normalized_probs((rows, extra), True))[at],
        "log-probabilities",
    )
    targets = ours.get_targets(given, (rows, extra))
    assert torch.equal(extra["layout"].unpack(targets)[at], known["target"][known_at])

    arriving = torch.randn(len(rows), 34, dtype=torch.double)  # in the order of the batch
    padded = arriving.new_zeros(*at.shape, 34)
    padded[at] = arriving
    actual = gradients(ours, (rows * extra["layout"].pack(padded)).sum())
    assert_same_gradients(actual, gradients(theirs, (expected[known_at] * arriving).sum()))


@CASES
@torch.no_grad()
def test_evaluation(options, lengths, way):
    """Logits, layers and attention."""
    ours, theirs, pad = pair(options)
    given, known = sample(lengths, *way, pad=pad), sample(lengths, pad=pad)
    expected, their_extra = theirs.eval()(**known["net_input"])
    logits, extra = ours.eval()(**given["net_input"])
    (source, target), (known_source, known_target) = real(given, pad), real(known, pad)
    assert logits.shape == (*target.shape, 34) and not logits[~target].any()
    assert_alike(logits[target], expected[known_target], "logits")
    assert ours.get_targets(given, (logits, extra)) is given["target"]
    assert extra.keys() == {*their_extra, "layout"}
    states = zip(extra["inner_states"], their_extra["inner_states"], strict=True)
    for number, (state, other) in enumerate(states):
        assert state.shape == (*target.t().shape, ours.cfg.decoder.embed_dim)
        state, other = state.transpose(0, 1)[target], other.transpose(0, 1)[known_target]
        assert_alike(state, other, f"layer {number}")
    (weights,), (other,) = extra["attn"], their_extra["attn"]
    if ours.cfg.no_cross_attention:
        assert weights is other is None
        return
    assert weights.shape == (*target.shape, source.shape[1]) and weights.dtype == other.dtype
    pairs = target.unsqueeze(2) & source.unsqueeze(1)
    assert not weights[~pairs].any()
    known_pairs = known_target.unsqueeze(2) & known_source.unsqueeze(1)
    torch.testing.assert_close(weights[pairs], other[known_pairs], **ROUNDED)


def only(given, start):
    return {name: it for name, it in given["net_input"].items() if name.startswith(start)}


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@EVERY
def test_features(options, training):
    ours, theirs, pad = pair(options)
    given, known = sample(left=(False, True), wider=1, pad=pad), sample(pad=pad)
    expected = theirs.train(training)(**known["net_input"], features_only=True)[0]
    x, extra = ours.train(training)(**given["net_input"], features_only=True)
    at, known_at = real(given, pad)[1], real(known, pad)[1]
    x = extra["layout"].unpack(x) if training else x
    assert_alike(x[at], expected[known_at], "features")


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@CASES
def test_encoder_and_decoder_alone(options, lengths, way, training):
    """As generators call them: padded, in training as well."""
    ours, theirs, pad = pair(options)
    given, known = sample(lengths, *way, pad=pad), sample(lengths, pad=pad)
    encoded = ours.train(training).encoder(**only(given, "src_"), return_all_hiddens=True)
    other = theirs.train(training).encoder(**only(known, "src_"), return_all_hiddens=True)
    (source, target), (known_source, known_target) = real(given, pad), real(known, pad)
    assert encoded.keys() == other.keys()
    assert torch.equal(encoded["encoder_padding_mask"][0], ~source)
    assert torch.equal(encoded["src_lengths"][0], other["src_lengths"][0])
    assert encoded["src_lengths"][0].dtype == other["src_lengths"][0].dtype
    x, y = (it["encoder_out"][0].transpose(0, 1) for it in (encoded, other))
    assert_alike(x[source], y[known_source], "encoder_out")
    assert not x[~source].any()
    states = zip(encoded["encoder_states"], other["encoder_states"], strict=True)
    for number, (state, their_state) in enumerate(states):
        state, their_state = state.transpose(0, 1), their_state.transpose(0, 1)
        assert_alike(state[source], their_state[known_source], f"layer {number}")
    assert not ours.encoder(**only(given, "src_"))["encoder_states"]
    for full in (False, True):
        x, extra = ours.decoder(
            **only(given, "prev"), encoder_out=encoded, full_context_alignment=full
        )
        y, _ = theirs.decoder(**only(known, "prev"), encoder_out=other, full_context_alignment=full)
        assert x.shape == (*target.shape, 34) and "layout" not in extra
        assert_alike(x[target], y[known_target], f"full context: {full}")


@WAYS
def test_embeddings_given_to_the_encoder(way):
    ours, theirs, _ = pair({})
    given, known = sample(left=way[0], wider=way[1]), sample()
    found = []
    for model, it in ((ours, given), (theirs, known)):
        at = real(it)[0]
        rows = torch.randn(int(at.sum()), 16, dtype=torch.double, generator=torch.manual_seed(2))
        embeddings = torch.full((*at.shape, 16), 7.0, dtype=torch.double)
        embeddings[at] = rows
        x = model.encoder(**only(it, "src_"), token_embeddings=embeddings)["encoder_out"][0]
        found.append(x.transpose(0, 1)[at])
    assert_alike(*found)


def test_a_decoder_without_an_encoders_output():
    ours, theirs, _ = pair({"no_cross_attention": True})
    given = sample()
    inputs = given["net_input"]["prev_output_tokens"]
    x, y = (model.decoder(inputs, encoder_out=None)[0] for model in (ours, theirs))
    at = real(given)[1]
    assert_alike(x[at], y[at])


@pytest.mark.parametrize("ensemble", [1, 2])
@EVERY
def test_beam_search(options, ensemble):
    pairs = [pair(options) for _ in range(ensemble)]
    pad = options.get("pad", 1)
    given = {"net_input": {**only(sample(pad=pad), "src_")}}
    found = []
    for models in zip(*(it[:2] for it in pairs), strict=True):
        generator = SequenceGenerator(models, task(pad).target_dictionary, beam_size=4, max_len_b=9)
        found.append([it for beams in generator.generate(models, given) for it in beams])
    assert len(found[0]) == len(found[1]) == 7 * 4
    for one, other in zip(*found, strict=True):
        assert torch.equal(one["tokens"], other["tokens"])
        # The generator's scores are fp32.
        torch.testing.assert_close(
            one["positional_scores"], other["positional_scores"], rtol=1e-5, atol=1e-5
        )
        if not options.get("no_cross_attention"):
            torch.testing.assert_close(one["attention"], other["attention"], **ROUNDED)


@pytest.mark.parametrize("seed", range(4))
def test_layers_are_dropped_as_fairseq_drops_them(seed):
    deep = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in (
        ("layers", 3), ("layerdrop", 0.5))}  # fmt: skip
    ours, theirs, _ = pair(deep)
    given, found = sample(), []
    for model in (ours, theirs):
        torch.manual_seed(seed)
        found.append(model.train()(**given["net_input"]))
    (rows, extra), (logits, their_extra) = found
    at = real(given)[1]
    assert_alike(extra["layout"].unpack(rows)[at], logits[at])
    assert len(extra["inner_states"]) == len(their_extra["inner_states"])
    loss, other = (rows * 1e-3).exp().sum(), (logits[at] * 1e-3).exp().sum()
    assert_same_gradients(gradients(ours, loss), gradients(theirs, other))
    whole = [model.eval()(**given["net_input"])[0][at] for model in (ours, theirs)]
    assert_alike(*whole)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_bf16_rounds_no_more_than_fairseqs(training):
    exact, theirs, _ = pair(PRE)
    theirs, ours = theirs.bfloat16(), copy.deepcopy(exact).bfloat16()
    given = sample()
    at, logits = real(given)[1], []
    for model in (exact, ours, theirs):
        x, extra = model.train(training)(**given["net_input"])
        logits.append((extra["layout"].unpack(x) if x.dim() == 2 else x)[at].double())
    assert ours(**given["net_input"])[0].dtype == torch.bfloat16
    error, other = ((it - logits[0]).abs().mean() for it in logits[1:])
    assert error < 1.5 * other
