"""DeepNorm: its constants and its residuals."""

import math

import pytest
import torch
import torch.nn.functional as F
from test_transformer import STILL, build

from rbn_fairseq.models.deepnorm import deepnorm

DEEP = {"norm_placement": "deepnorm"}


@pytest.mark.parametrize("encoder, decoder", [(6, 6), (18, 2), (1, 12), (100, 100)])
def test_constants_are_the_papers(encoder, decoder):
    ours = deepnorm(encoder, decoder)
    # By logarithms, so that it is another computation.
    log = math.log(encoder) / 4 + math.log(decoder) / 16
    papers = [
        (0.81 * math.exp(log), 0.87 * math.exp(-log)),
        (math.exp(math.log(3 * decoder) / 4), math.exp(-math.log(12 * decoder) / 4)),
    ]
    for one, two in zip(ours, papers, strict=True):
        assert tuple(one) == pytest.approx(two, rel=1e-12)


def linear(module, rows):
    return rows @ module.weight.T + module.bias


def attend(attention, rows, memory):
    """One head of width 16."""
    q = linear(attention.q_proj, rows)
    k, v = linear(attention.k_proj, memory), linear(attention.v_proj, memory)
    return linear(attention.out_proj, torch.softmax(q @ k.T / 4, dim=-1) @ v)


def feed(layer, rows):
    return linear(layer.fc2, linear(layer.fc1, rows).relu())


def norm(rows):
    return F.layer_norm(rows, (16,))


@pytest.mark.parametrize("depths", [(1, 2), (3, 1)])
@pytest.mark.usefixtures("double_softmax")
def test_layers_by_their_formula(depths):
    sizes = {"encoder_layers": depths[0], "decoder_layers": depths[1]}
    heads = {f"{side}_attention_heads": 1 for side in ("encoder", "decoder")}
    model = build(**DEEP, **STILL, **sizes, **heads).eval().double()
    (alpha, _), (decoder_alpha, _) = deepnorm(*depths)
    x, memory = torch.randn(2, 4, 16, dtype=torch.double)
    close = {"rtol": 1e-12, "atol": 1e-12}
    for layer in model.encoder.layers:
        after = norm(alpha * x + attend(layer.self_attn, x, x))
        wanted = norm(alpha * after + feed(layer, after))
        torch.testing.assert_close(layer(x.unsqueeze(1), None)[:, 0], wanted, **close)
    for layer in model.decoder.layers:
        after = norm(decoder_alpha * x + attend(layer.self_attn, x, x))
        after = norm(decoder_alpha * after + attend(layer.encoder_attn, after, memory))
        wanted = norm(decoder_alpha * after + feed(layer, after))
        y, _, _ = layer(x.unsqueeze(1), memory.unsqueeze(1))
        torch.testing.assert_close(y[:, 0], wanted, **close)


def test_pre_norm_is_refused():
    for side in ("encoder", "decoder"):
        with pytest.raises(ValueError, match="--norm-placement deepnorm.*Post-Norm"):
            build(**DEEP, **{f"{side}_normalize_before": True})
