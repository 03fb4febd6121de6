"""Arrangements by depth: constants, first weights, places. Formulas: `test_by_sentence.py`."""

import math

import pytest
import torch
from torch import nn

from rbn_fairseq.models.placements import SubNorm, deepnorm, sub_norm_gains
from rbn_fairseq.norms import BatchNorm, LayerNorm, NoNorm, RMSNorm
from small_models import DEEP, HYBRID, PERI, PRE, SUB, batch, build


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
        assert one == pytest.approx(two, rel=1e-12)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_the_other_arrangement_is_refused(side):
    with pytest.raises(ValueError, match="--norm-placement deepnorm.*Post-Norm"):
        build(**DEEP, **{f"{side}_normalize_before": True})
    for placement in (SUB, PERI, HYBRID):
        name = placement["norm_placement"]
        with pytest.raises(ValueError, match=f"--norm-placement {name} .*Pre-Norm.*`_pre`"):
            build(**placement | {f"{side}_normalize_before": False})


WIDE = {
    f"{side}_{size}": 256
    for side in ("encoder", "decoder")
    for size in ("embed_dim", "ffn_embed_dim")
}
DEPTHS = {"encoder_layers": 1, "decoder_layers": 3}
SCALED = {"norm_placement": "deepnorm"}
ARRANGEMENTS = pytest.mark.parametrize(
    "arrangement, gains",
    [(SCALED, [beta for _, beta in deepnorm(1, 3)]), (SUB, sub_norm_gains(1, 3))],
    ids=["deepnorm", "sub"],
)


@ARRANGEMENTS
def test_deviations(arrangement, gains):
    """Xavier-normal weights have the deviation gain sqrt(2 / (fan in + fan out))."""
    # LayerDrop keeps no layer from its weights.
    drop = {f"{side}_layerdrop": 0.7 for side in ("encoder", "decoder")}
    model = build(**arrangement, **WIDE, **DEPTHS, **drop)
    for stack, gain, count in zip((model.encoder, model.decoder), gains, (6, 3 * 10), strict=True):
        parts = [item for item in stack.layers.named_modules() if isinstance(item[1], nn.Linear)]
        assert len(parts) == count
        for name, part in parts:
            wanted = (1.0 if name.endswith(("q_proj", "k_proj")) else gain) / 16
            # 65,536 draws: their deviation is within 1 % by chance.
            assert part.weight.std().item() == pytest.approx(wanted, rel=0.015), name
            assert part.weight.max() > 3 * wanted  # normal, not uniform


@ARRANGEMENTS
def test_biases_stay(arrangement, gains):
    model, plain = build(**arrangement), build()
    for layer, other in zip(model.encoder.layers, plain.encoder.layers, strict=True):
        for part in ("fc1", "fc2", "self_attn.q_proj", "self_attn.v_proj"):
            one, two = (each.get_submodule(part) for each in (layer, other))
            assert torch.equal(one.bias, two.bias) and one.bias.any()
            assert not torch.equal(one.weight, two.weight)


@pytest.mark.parametrize("encoder, decoder", [(6, 6), (18, 2), (1, 12), (1, 1), (100, 100)])
def test_gains_are_the_papers(encoder, decoder):
    gain, decoder_gain = sub_norm_gains(encoder, decoder)
    # Solved for the depths, so that it is another computation.
    assert math.exp(decoder_gain**2) == pytest.approx(3 * decoder, rel=1e-12)
    assert math.exp(3 * gain**2 / decoder_gain**2) == pytest.approx(2 * encoder, rel=1e-12)


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


@pytest.mark.parametrize(
    "options, words",
    [
        ({"norm_decoder": "layer@0:instance"}, ["--norm-decoder:", "`instance`"]),
        # The norm before fc2 has the channels of the hidden layer.
        ({"norm_encoder": "group", "encoder_ffn_embed_dim": 25}, ["--norm-group", "C = 25"]),
        (PERI | {"norm_encoder": "layer@embedding:mabn"}, ["--norm-encoder", "`mabn`"]),
        (PERI | {"layernorm_embedding": True}, ["Leave --layernorm-embedding out"]),
        (HYBRID | {"norm_encoder": "instance"}, ["--norm-encoder:", "`instance`", "`qkv`"]),
        (HYBRID | {"norm_encoder": "mabn@0.ffn:mabn@1.qkv:layer"}, ["--norm-encoder", "`mabn`"]),
        (HYBRID | {"norm_encoder": "layer@self:layer@qk"}, ["layer 0", "`ffn`"]),
    ],
)
def test_errors_name_the_option(options, words):
    with pytest.raises(ValueError) as error:
        build(**SUB | options)
    for word in words:
        assert word in str(error.value)


def test_peri_places_two_norms_of_a_kind_and_one_of_the_embedding():
    model = build(**PERI, norm_encoder="none@embedding:batch@0.ffn:layer", norm_decoder="rms")
    first, second = model.encoder.layers
    norms = first.self_attn_layer_norm, first.self_attn_out, second.final_layer_norm, second.ffn_out
    assert len(set(norms)) == 4 and {type(norm) for norm in norms} == {LayerNorm}
    assert type(first.final_layer_norm) is type(first.ffn_out) is BatchNorm
    assert first.ffn_out.weight.shape == (16,)
    assert type(model.encoder.layernorm_embedding) is NoNorm
    decoder = model.decoder
    parts = (decoder.layernorm_embedding, decoder.layers[0].encoder_attn_out)
    assert {type(part) for part in parts} == {RMSNorm}
    assert type(decoder.layer_norm) is LayerNorm


def test_hybrid_norms_no_attentions_input_unless_a_rule_names_it():
    plan = "layer@0.self:layer@0.cross:batch@qk:rms"
    model = build(**HYBRID, norm_encoder="rms", norm_decoder=plan)
    for layer in model.encoder.layers:
        assert type(layer.self_attn_layer_norm) is NoNorm
        assert {type(layer.self_attn.v_proj.norm), type(layer.final_layer_norm)} == {RMSNorm}
    first, second = model.decoder.layers
    assert type(first.self_attn_layer_norm) is type(first.encoder_attn_layer_norm) is LayerNorm
    assert type(second.encoder_attn_layer_norm) is NoNorm
    for attention in (first.self_attn, second.encoder_attn):
        kinds = [type(getattr(attention, f"{name}_proj").norm) for name in "qkv"]
        assert kinds == [BatchNorm, BatchNorm, RMSNorm]
    # A rule that leaves the site bare is like none.
    for name, adds in (("layer", False), ("none", True)):
        layers = build(**HYBRID, norm_encoder=f"{name}@0.self:layer").encoder.layers
        assert [layer.adds_normalised for layer in layers] == [adds, True]
    # A norm of either attention's input makes the layer Pre-Norm.
    layers = build(**HYBRID, norm_decoder="layer@0.cross:layer").decoder.layers
    assert [layer.adds_normalised for layer in layers] == [False, True]


@pytest.mark.parametrize("placement", [PERI, HYBRID], ids=["peri", "hybrid"])
def test_first_weights_are_fairseqs(placement):
    plain, model = build(**PRE).state_dict(), build(**placement).state_dict()
    shared = [name for name in plain if name in model and "norm" not in name]
    assert len(shared) == len([name for name in plain if "norm" not in name])
    assert all(torch.equal(model[name], plain[name]) for name in shared)
