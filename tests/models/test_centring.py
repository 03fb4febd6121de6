"""Centred weights behind `mabn`."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from rbn_fairseq.models.centring import centre_weights
from small_models import PRE, STILL, batch, build

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
    ],
)
def test_what_reads_the_norm_is_centred_and_nothing_else(options, expected):
    assert centred(build(**options)) == expected


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


def test_twice_is_once():
    model = build(norm_encoder="mabn")
    centre_weights(model)
    linear = model.encoder.layers[0].fc1
    assert len(linear.parametrizations.weight) == 1


def test_normalised_weights_are_centred_too():
    model = build(norm_encoder="mabn", norm_weight="wn")
    linear = model.encoder.layers[0].fc1
    assert linear.weight.mean(1).abs().max() < 1e-6


@pytest.mark.parametrize(
    "options, said",
    [
        (
            {"norm_decoder": "mabn"},
            "--norm-decoder:.*last norm of the decoder.*`layer@1.ffn:mabn`",
        ),
        (
            PRE | {"norm_decoder_final": "mabn"},
            "--norm-decoder-final:.*last norm of the decoder.*`layer`",
        ),
        ({"norm_encoder": "mabn+batch"}, "--norm-encoder:.*another norm comes. Put `mabn` last"),
        (
            {"norm_encoder": "mabn", "encoder_layers_to_keep": "1"},
            "--encoder-layers-to-keep.*`mabn`",
        ),
        (
            {"norm_encoder": "mabn", "no_cross_attention": True},
            "--norm-encoder:.*last norm of the encoder.*`layer@1.ffn:mabn`",
        ),
    ],
)
def test_refused_where_no_linear_layer_follows(options, said):
    with pytest.raises(ValueError, match=said):
        build(**options)
