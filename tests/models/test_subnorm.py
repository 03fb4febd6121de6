"""Sub-LN: its constants, its layers, where its norms stand."""

import math

import pytest
import torch
import torch.nn.functional as F
from test_transformer import PRE, STILL, SUB, batch, build, randomise

from rbn_fairseq.models.subnorm import SubNorm, sub_norm_gains
from rbn_fairseq.norms import BatchNorm, LayerNorm, NoNorm, ValidTokens


@pytest.mark.parametrize("encoder, decoder", [(6, 6), (18, 2), (1, 12), (1, 1), (100, 100)])
def test_gains_are_the_papers(encoder, decoder):
    gain, decoder_gain = sub_norm_gains(encoder, decoder)
    # Solved for the depths, so that it is another computation.
    assert math.exp(decoder_gain**2) == pytest.approx(3 * decoder, rel=1e-12)
    assert math.exp(3 * gain**2 / decoder_gain**2) == pytest.approx(2 * encoder, rel=1e-12)


def linear(module, rows):
    return rows @ module.weight.T + module.bias


def normalise(norm, rows):
    """Layer or batch norm over packed rows ``(n, C)``: real tokens alone."""
    if isinstance(norm, LayerNorm):
        rows = F.layer_norm(rows, rows.shape[1:])
    else:
        rows = (rows - rows.mean(0)) / (rows.var(0, correction=0) + 1e-5).sqrt()
    return rows * norm.weight + norm.bias


def attend(attention, rows, lengths, memory, memory_lengths, causal):
    """The joined heads, two of width 8, of packed sentences."""
    outputs = []
    for one, other in zip(rows.split(lengths), memory.split(memory_lengths), strict=True):
        q = linear(attention.q_proj, one)
        k, v = linear(attention.k_proj, other), linear(attention.v_proj, other)
        heads = []
        for head in (slice(0, 8), slice(8, 16)):
            logits = q[:, head] @ k[:, head].T / math.sqrt(8)
            if causal:
                later = torch.ones(logits.shape, dtype=torch.bool).triu(1)
                logits = logits.masked_fill(later, -math.inf)
            heads.append(torch.softmax(logits, dim=-1) @ v[:, head])
        outputs.append(torch.cat(heads, dim=1))
    return torch.cat(outputs)


def formula(layer, x, lengths, memory=None, memory_lengths=None):
    """``x + f_out(norm(f_in(norm(x))))`` for every sublayer of an encoder or decoder layer."""
    causal = memory is not None
    inner = normalise(layer.self_attn_layer_norm, x)
    inner = attend(layer.self_attn, inner, lengths, inner, lengths, causal)
    end = layer.self_attn_out
    x = x + linear(end.projection, normalise(end.norm, inner))
    if memory is not None:
        inner = normalise(layer.encoder_attn_layer_norm, x)
        inner = attend(layer.encoder_attn, inner, lengths, memory, memory_lengths, False)
        end = layer.encoder_attn_out
        x = x + linear(end.projection, normalise(end.norm, inner))
    inner = linear(layer.fc1, normalise(layer.final_layer_norm, x)).relu()
    return x + linear(layer.fc2, normalise(layer.fc2_norm, inner))


def padded(lengths, left):
    """Random tokens ``(T, B, 16)``, anything at padding, and the padding ``(B, T)``."""
    steps, size = torch.arange(max(lengths)), torch.tensor(lengths)[:, None]
    padding = steps < max(lengths) - size if left else steps >= size
    return torch.randn(max(lengths), len(lengths), 16, dtype=torch.double), padding


@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("lengths", [[4], [4, 2, 3]], ids=["one", "pads"])
@pytest.mark.usefixtures("double_softmax")
def test_layers_by_their_formula(norm, lengths):
    options = {"norm_encoder": norm, "norm_decoder": norm}
    model = randomise(build(**SUB, **STILL, **options)).double().train()
    memory_lengths = [length + 1 for length in reversed(lengths)]
    memory, memory_padding = padded(memory_lengths, left=True)
    x, padding = padded(lengths, left=False)
    rows = memory.transpose(0, 1)[~memory_padding]  # packed, sentence by sentence
    close = {"rtol": 1e-11, "atol": 1e-11}  # where heads hardly vary a norm enlarges rounding
    for layer in model.encoder.layers:
        tokens = ValidTokens.from_padding_mask(memory_padding)
        y = layer(memory, memory_padding, tokens=tokens).transpose(0, 1)
        wanted = formula(layer, rows, memory_lengths)
        torch.testing.assert_close(y[~memory_padding], wanted, **close)
    for layer in model.decoder.layers:
        later = torch.full((len(x), len(x)), -math.inf, dtype=torch.double).triu(1)
        tokens = ValidTokens.from_padding_mask(padding)
        y, _, _ = layer(x, memory, memory_padding, self_attn_mask=later, tokens=tokens)
        wanted = formula(layer, x.transpose(0, 1)[~padding], lengths, rows, memory_lengths)
        torch.testing.assert_close(y.transpose(0, 1)[~padding], wanted, **close)


def test_the_plan_gives_both_norms_of_a_site():
    plans = {"norm_encoder": "batch@0.ffn:layer", "norm_decoder": "batch@1.cross:none@self:layer"}
    model = build(**SUB, **plans)
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for index, layer in enumerate(stack.layers):
            sites = {
                "self": (layer.self_attn_layer_norm, layer.self_attn_out.norm),
                "ffn": (layer.final_layer_norm, layer.fc2_norm),
            }
            if side == "decoder":
                sites["cross"] = (layer.encoder_attn_layer_norm, layer.encoder_attn_out.norm)
            for site, norms in sites.items():
                kind = NoNorm if (side, site) == ("decoder", "self") else LayerNorm
                if (side, index, site) in (("encoder", 0, "ffn"), ("decoder", 1, "cross")):
                    kind = BatchNorm
                assert [type(norm) for norm in norms] == [kind, kind]
                assert norms[0] is not norms[1]


def test_state_dict_is_fairseqs_and_the_second_norms():
    expected = set()
    for name in build(**PRE).state_dict():
        if ".out_proj." in name:
            name = name.replace(".out_proj.", "_out.projection.")
            expected.add(name.replace("projection", "norm"))
        if ".fc2." in name:
            expected.add(name.replace("fc2", "fc2_norm"))
        expected.add(name)
    assert set(build(**SUB).state_dict()) == expected


def test_without_cross_attention():
    model = build(**SUB, no_cross_attention=True)
    layer = model.decoder.layers[0]
    assert isinstance(layer.self_attn_out, SubNorm)
    assert isinstance(layer.encoder_attn_out, NoNorm)
    model(*batch())[0].sum().backward()
    assert layer.self_attn_out.projection.weight.grad is not None


def test_quant_noise_moves_with_the_projection():
    model = build(**SUB, **STILL, quant_noise_pq=0.5).train()
    projection = model.encoder.layers[0].self_attn_out.projection
    before = projection.weight.detach().clone()
    model(*batch())
    assert (projection.weight == 0).any() and not (before == 0).any()


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_post_norm_is_refused(side):
    with pytest.raises(ValueError, match="--norm-placement sub.*Pre-Norm.*`_pre`"):
        build(**SUB | {f"{side}_normalize_before": False})


@pytest.mark.parametrize(
    "options, words",
    [
        ({"norm_decoder": "layer@0:instance"}, ["--norm-decoder:", "`instance`"]),
        # The norm before fc2 has the channels of the hidden layer.
        ({"norm_encoder": "group", "encoder_ffn_embed_dim": 25}, ["--norm-group", "C = 25"]),
    ],
)
def test_errors_name_the_option(options, words):
    with pytest.raises(ValueError) as error:
        build(**SUB, **options)
    for word in words:
        assert word in str(error.value)
