"""Weights for a model whose norms are others: all but norms is taken, or the file is refused."""

from argparse import Namespace

import pytest
import torch
from fairseq.models.transformer import TransformerModel

import small_models
from rbn_fairseq.callbacks.init_from import load_weights
from rbn_fairseq.checkpoints.files import model_settings
from rbn_fairseq.models import RBNTransformerModel
from rbn_fairseq.models.state_dicts import ARRANGEMENT, difference
from rbn_fairseq.norms import PopulationNorm
from small_models import BATCH, FINALS, HYBRID, PERI, PRE, SUB


def build(model=RBNTransformerModel, seed=3, **options):
    """A model none of whose entries has the value that it begins with."""
    built = small_models.build(model, **options)
    torch.manual_seed(seed)
    with torch.no_grad():
        for entry, value in built.state_dict().items():
            if "version" not in entry:
                value.copy_(torch.rand(value.shape))
    return built


def load(model, other):
    """Load one model's weights into another and return the names of norms without statistics."""
    weights = {name: value.clone() for name, value in other.state_dict().items()}
    return load_weights(model, weights, "FILE")


def linear_maps(model):
    """Every weight that belongs to no norm, whatever the model calls it."""
    found = {}
    for side in ("encoder", "decoder"):
        stack = getattr(model, side)
        found[side] = stack.embed_tokens.weight
        for index, layer in enumerate(stack.layers):
            for kind in ("self_attn", "encoder_attn"):
                attention = getattr(layer, kind, None)
                if attention is None:
                    continue
                inner = getattr(getattr(layer, f"{kind}_out", None), "projection", None)
                projections = {name: getattr(attention, f"{name}_proj") for name in "qkv"}
                projections["out"] = attention.out_proj if inner is None else inner
                for name, linear in projections.items():
                    found[f"{side} {index} {kind} {name}"] = stored(linear)
                    found[f"{side} {index} {kind} {name} bias"] = linear.bias
            for name in ("fc1", "fc2"):
                found[f"{side} {index} {name}"] = stored(getattr(layer, name))
    found["output"] = model.decoder.output_projection.weight
    return found


def stored(linear):
    """The weight as it is trained: behind `mabn` what is used is that, centred."""
    centred = hasattr(linear, "parametrizations")
    return linear.parametrizations.weight.original if centred else linear.weight


def assert_same_maps(model, other):
    ours, theirs = linear_maps(model), linear_maps(other)
    # Two embeddings and the output; 6 attentions of 4 weights and biases; fc1 and fc2 4 times.
    assert ours.keys() == theirs.keys() and len(ours) == 3 + 6 * 8 + 4 * 2
    different = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert not different


NORMS = pytest.mark.parametrize(
    "placement, options",
    [
        ({}, {"norm_encoder": "layer"}),
        ({}, BATCH),
        ({}, {"norm_encoder": "groupscale+power"}),
        ({}, {"norm_encoder": "rms", "norm_decoder": "none"}),
        ({}, {"norm_encoder": "mabn"}),
        (PRE, BATCH | FINALS),
        (SUB, BATCH | FINALS),
        (SUB, {"norm_encoder": "mabn@0:renorm"}),
        ({}, {"norm_encoder": "batch@embedding:layer@qk:layer"}),
        (PERI, BATCH),
        (HYBRID, BATCH | FINALS),
    ],
    ids="layer batch composition fewer mabn pre sub sub-mabn sites peri hybrid".split(),
)


@NORMS
def test_a_plain_transformers_weights_are_taken(placement, options):
    plain = build(TransformerModel, seed=4, **(PRE if placement else {}))
    model = build(**placement, **options)
    new = {name: value.clone() for name, value in model.state_dict().items()}
    with_statistics = [
        name for name, part in model.named_modules() if isinstance(part, PopulationNorm)
    ]
    assert load(model, plain) == sorted(with_statistics)
    assert_same_maps(model, plain)
    theirs = plain.state_dict()
    for name, value in model.state_dict().items():
        if "norm" in name:
            assert torch.equal(value, theirs[name] if name in theirs else new[name]), name


def test_prepbn_begins_as_the_files_layer_norms():
    plain = build(TransformerModel, seed=4)
    model = build(norm_encoder="repbn", norm_repbn_layer_end=10)
    load(model, plain)
    theirs = plain.state_dict()
    ends = (".layer_weight", ".layer_bias")
    of_layer_norm = [name for name in model.state_dict() if name.endswith(ends)]
    assert len(of_layer_norm) == 2 * 2 * 2
    for name in of_layer_norm:
        assert torch.equal(model.state_dict()[name], theirs[name.replace(".layer_", ".")]), name


@NORMS
def test_weights_go_back_into_layer_norms(placement, options):
    other = build(seed=4, **placement, **options)
    model = build(**(PRE if placement else {}))
    assert load(model, other) == []
    assert_same_maps(model, other)


def populations(model):
    return {name: value for name, value in model.state_dict().items() if ".population." in name}


def test_statistics_that_the_file_has_are_taken():
    other, model = build(seed=4, **BATCH), build(**BATCH)
    assert load(model, other) == []
    ours, theirs = populations(model), populations(other)
    assert ours.keys() == theirs.keys() and len(ours) == 2 * (2 * 2 + 2 * 3)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_those_of_other_layers_are_lacking():
    other, model = build(seed=4, norm_encoder="batch@0:layer"), build(norm_encoder="batch")
    lacking = [f"encoder.layers.1.{name}" for name in ("final_layer_norm", "self_attn_layer_norm")]
    assert load(model, other) == lacking
    theirs = populations(other)
    for name, value in populations(model).items():
        assert (name in theirs) == ("layers.0" in name)
        assert name not in theirs or torch.equal(value, theirs[name])


@pytest.mark.parametrize(
    "theirs, ours",
    [
        ({"norm_encoder": "batch"}, {"norm_encoder": "renorm"}),
        ({"norm_encoder": "mabn"}, {"norm_encoder": "mabn", "norm_mabn_window": 4}),
    ],
    ids=["other-norm", "other-window"],
)
def test_a_norms_statistics_are_taken_whole_or_not_at_all(theirs, ours):
    model = build(**ours)
    new = {name: value.clone() for name, value in populations(model).items()}
    assert len(load(model, build(seed=4, **theirs))) == 4
    assert all(torch.equal(value, new[name]) for name, value in populations(model).items())


def test_weights_in_half_precision():
    other = build(seed=4, norm_encoder="batch").half()
    model = build(norm_encoder="batch")
    assert load(model, other) == []
    weight = model.encoder.layers[0].fc1.weight
    assert weight.dtype == torch.float32
    assert torch.equal(weight, other.encoder.layers[0].fc1.weight.float())


@pytest.mark.parametrize(
    "options, words",
    [
        ({"encoder_ffn_embed_dim": 32}, "`encoder.layers.0.fc1.bias`"),
        ({"decoder_layers": 3}, "`decoder.layers.2.encoder_attn.k_proj.bias`"),
        ({"norm_weight": "wn"}, "--norm-weight"),
        ({"words": 31}, "`encoder.embed_tokens.weight`"),
    ],
    ids=["width", "depth", "weight-norm", "dictionary"],
)
def test_other_models_are_refused(options, words, monkeypatch):
    model = build()
    monkeypatch.setattr(small_models, "WORDS", options.pop("words", 30))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="--init-from `FILE`") as error:
        load(model, build(seed=4, **options))
    assert words in str(error.value) and "architecture" in str(error.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_differs_is_told_in_part():
    with pytest.raises(ValueError, match=r"(`[a-z0-9_.]+`(, | and )){5}\d+ more"):
        load(build(), build(seed=4, decoder_layers=3))


def test_shared_embeddings_that_differ_in_the_file_are_refused():
    with pytest.raises(ValueError, match="--share-all-embeddings") as error:
        load(build(share_all_embeddings=True), build(seed=4))
    assert "encoder.embed_tokens.weight" in str(error.value)
    load(build(), build(seed=4, share_all_embeddings=True))  # each has its own from then on


def test_what_the_architecture_sets_is_compared():
    tiny = "rbn_transformer_tiny"
    post, pre = {"_name": tiny}, {"_name": f"{tiny}_pre"}  # as fairseq keeps what nobody gave
    given = Namespace(_name=tiny, encoder_attention_heads=8)
    heads = ("encoder_attention_heads",)
    own = Namespace(**post)
    old = {"cfg": None, "args": Namespace(arch=f"{tiny}_pre", norm_encoder="batch")}
    assert difference(post, given, heads) == "--encoder-attention-heads 4, not 8"
    assert difference(pre, own, ARRANGEMENT) == "--encoder-normalize-before True, not False"
    assert difference(model_settings(old), own, ARRANGEMENT) == "--norm-encoder batch, not layer"
    assert difference(post, own, (*ARRANGEMENT, *heads)) is None
