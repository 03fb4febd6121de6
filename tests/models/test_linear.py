"""Linear layers around norms: weight norms, and centred weights behind mabn."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from rbn_fairseq.models.linear import normalise_weights
from small_models import PRE, STILL, SUB, batch, build

KINDS = pytest.mark.parametrize("kind", ["wn", "cwn"])
PLACEMENTS = pytest.mark.parametrize("placement", [{}, SUB], ids=["post", "sub"])


@KINDS
def test_weights_and_gradients(kind):
    linear = nn.Linear(5, 3).double()
    v = linear.weight.detach().clone()
    normalise_weights(linear, kind)
    centred = v - v.mean(1, keepdim=True) if kind == "cwn" else v
    length = centred.square().sum(1, keepdim=True).sqrt()
    # At first g is the length: wn changes nothing, cwn takes off the mean.
    torch.testing.assert_close(linear.weight.detach(), centred)

    parameters = dict(linear.named_parameters())
    names = sorted(name for name in parameters if name.startswith("parametrizations"))
    g, own_v = (parameters[name] for name in names)
    with torch.no_grad():
        g.copy_(torch.rand(3, 1) + 0.5)
    arriving = torch.randn(3, 5, dtype=torch.double)
    dg, dv = torch.autograd.grad(linear.weight, (g, own_v), arriving)
    # Salimans and Kingma, Eq. 3: dv is orthogonal to v; for cwn, of the centred gradient.
    wanted_dg = (arriving * centred).sum(1, keepdim=True) / length
    wanted_dv = g / length * arriving - g * wanted_dg / length**2 * centred
    if kind == "cwn":
        wanted_dv = wanted_dv - wanted_dv.mean(1, keepdim=True)
    torch.testing.assert_close(dg, wanted_dg)
    torch.testing.assert_close(dv, wanted_dv)


def test_a_row_of_equal_weights_is_zero():
    linear = nn.Linear(5, 3)
    nn.init.constant_(linear.weight, 0.5)
    normalise_weights(linear, "cwn")
    assert not linear.weight.any()


@KINDS
@PLACEMENTS
def test_every_linear_layer_of_the_encoder_and_none_of_the_decoder(kind, placement):
    model = build(norm_weight=kind, **placement)
    for name, part in model.named_modules():
        if isinstance(part, nn.Linear):
            normalised = nn.utils.parametrize.is_parametrized(part, "weight")
            assert normalised == name.startswith("encoder.layers."), name
    assert sum(nn.utils.parametrize.is_parametrized(part) for part in model.modules()) == 2 * 6


SELF = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
CROSS = ("encoder_attn.k_proj", "encoder_attn.v_proj")


def centred(model):
    return {
        name
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear) and parametrize.is_parametrized(part, "weight")
    }


def of(stack, layers, *names):
    return {f"{stack}.layers.{i}.{name}" for i, name in itertools.product(layers, names)}


@pytest.mark.parametrize(
    "options, expected",
    [
        (
            {"norm_encoder": "mabn"},
            of("encoder", [0, 1], "fc1")
            | of("encoder", [1], *SELF)
            | of("decoder", [0, 1], *CROSS),
        ),
        (PRE | {"norm_encoder": "mabn"}, of("encoder", [0, 1], "fc1", *SELF)),
        (PRE | {"norm_encoder_final": "mabn"}, of("decoder", [0, 1], *CROSS)),
        ({"norm_encoder": "groupscale+mabn@0.self:layer"}, of("encoder", [0], "fc1")),
        (
            {"norm_decoder": "layer@1.ffn:mabn"},
            of("decoder", [0, 1], "encoder_attn.q_proj", "fc1") | of("decoder", [1], *SELF),
        ),
        (
            PRE | {"norm_decoder": "mabn"},
            of("decoder", [0, 1], "encoder_attn.q_proj", "fc1", *SELF),
        ),
        (
            PRE | {"norm_decoder": "mabn@0.self:layer", "no_decoder_final_norm": True},
            of("decoder", [0], *SELF),
        ),
        (
            PRE | {"norm_decoder": "mabn@1.ffn:layer", "no_decoder_final_norm": True},
            of("decoder", [1], "fc1"),
        ),
        (
            PRE | {"norm_placement": "sub", "norm_encoder": "mabn"},
            of("encoder", [0, 1], *SELF, "fc1", "self_attn_out.projection", "fc2"),
        ),
        (
            PRE | {"norm_placement": "sub", "norm_decoder": "layer@0:mabn@1.cross:layer"},
            of("decoder", [1], "encoder_attn.q_proj", "encoder_attn_out.projection"),
        ),
        ({"norm_encoder": "power", "norm_decoder": "batch"}, set()),
        ({"norm_encoder": "un"}, set()),
        ({"norm_encoder": "mabn@embedding:layer"}, of("encoder", [0], *SELF)),
    ],
)
def test_what_reads_the_norm_is_centred_and_nothing_else(options, expected):
    assert centred(build(**options)) == expected


def test_rows_of_normalised_weights_are_centred():
    model = build(norm_encoder="mabn", norm_weight="wn")
    assert model.encoder.layers[0].fc1.weight.mean(1).abs().max() < 1e-6


def test_an_offset_common_to_all_channels_is_not_seen():
    model = build(**STILL, norm_encoder="mabn")
    linear = model.encoder.layers[0].fc1
    x = torch.randn(5, linear.in_features)
    torch.testing.assert_close(linear(x + 3), linear(x), rtol=1e-5, atol=1e-5)
    free = linear.parametrizations.weight.original
    torch.testing.assert_close(linear.weight, free - free.mean(1, keepdim=True))
    loss = model(*batch())[0].square().sum()
    (grad,) = torch.autograd.grad(loss, free)
    assert grad.abs().max() > 0
    torch.testing.assert_close(grad.mean(1), torch.zeros(len(grad)), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "options, said",
    [
        (
            {"norm_decoder": "mabn"},
            "--norm-decoder.*reads the decoder.*`layer@1.ffn:mabn`",
        ),
        (
            PRE | {"norm_decoder_final": "mabn"},
            "--norm-decoder-final.*reads the decoder.*`layer`",
        ),
        ({"norm_encoder": "mabn+batch"}, "--norm-encoder.*put it last"),
        (
            {"norm_encoder": "mabn", "no_cross_attention": True},
            "--norm-encoder.*reads the encoder.*`layer@1.ffn:mabn`",
        ),
    ],
)
def test_refused_where_no_linear_layer_follows(options, said):
    with pytest.raises(ValueError, match=said):
        build(**options)
