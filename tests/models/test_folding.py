"""Folding: the same outputs without any norm that has running statistics."""

import pytest
import torch
from torch.nn.utils import parametrize

from rbn_fairseq.models.folding import fold_norms
from rbn_fairseq.norms import Affine, LayerNorm, has_population_norm
from small_models import BATCH, FINALS, HYBRID, PERI, PRE, SUB, batch, build, everywhere

PLACEMENTS = {
    "post": {}, "pre": PRE, "deepnorm": {"norm_placement": "deepnorm"}, "sub": SUB, "peri": PERI,
    "hybrid": HYBRID,
}  # fmt: skip
EVERY_PLACEMENT = pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)


def both(plan):
    """Options that put a composition everywhere."""
    return {
        f"norm_{place}": plan for place in ("encoder", "decoder", "encoder_final", "decoder_final")
    }


MIXED = {
    "norm_encoder": "batch@0:layer",
    "norm_decoder": "renorm@1.cross:layer@ffn:power@0:batch",
    "norm_encoder_final": "batch",
}
PLANS = {name: everywhere(name) for name in ("batch", "renorm", "repbn", "power", "un")} | {
    "mabn": everywhere("mabn") | {"norm_encoder": "mabn@0:mabn@1.self:layer"},
    "mixed": MIXED,
    "population last": both("groupscale+batch"),
    "population first": both("power+rms"),
    "both": both("batch+power"),
    "clamped": everywhere("batch") | {"norm_batch_eps_mode": "clamp", "norm_batch_eps": 1.0},
    "wn": BATCH | {"norm_weight": "wn"},
    "cwn": everywhere("mabn") | {"norm_weight": "cwn"},
    "fixnorm": BATCH | {"norm_unit_embeddings": True},
    "embedding": BATCH | {"norm_encoder": "rms+batch@embedding:batch"},
    "heads": {"norm_encoder": "rms+batch@0.qk:batch@qkv:batch", "norm_decoder": "renorm@qk:layer"},
}


def trained(**options):
    """A model in which nothing has its first value, in evaluation mode and fp64."""
    model = build(**options).double().eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            new = torch.rand(tensor.shape, generator=generator, dtype=torch.double)
            if "norm" in name:  # statistics are positive
                tensor.copy_(0.5 + new)
            elif name.endswith("bias"):
                tensor.copy_(new - 0.5)
    return model


def outputs(model):
    with torch.no_grad():
        return model(*batch())[0]


def fold(model, **options):
    """Fold ``model`` into one that is built as the folding says, and has the same outputs."""
    expected = outputs(model)
    folding = fold_norms(model)
    new = build(**options | folding.settings).double().eval()
    new.load_state_dict(model.state_dict(), strict=True)
    assert not has_population_norm(new)
    assert not any(map(parametrize.is_parametrized, new.modules()))
    # fp64's rounding; the gains change outputs by their own size.
    torch.testing.assert_close(outputs(new), expected, rtol=1e-10, atol=1e-10)
    return new, folding


@EVERY_PLACEMENT
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_outputs_are_the_same(plan, placement):
    if placement in (PERI, HYBRID) and "mabn" in plan["norm_encoder"]:
        return  # refused: linear layers do not read all norms
    options = plan | placement
    new, _ = fold(trained(**options), **options)
    expected = outputs(new).float()
    error = (outputs(new.float()) - expected).abs().max() / expected.abs().max()
    assert error < 1e-4  # fp32's rounding through two layers


@pytest.mark.parametrize(
    ("placement", "vanished", "left"),
    [
        ({}, 0, 10),
        (PLACEMENTS["deepnorm"], 0, 10),
        (PRE, 4 + 6 + 1, 1),
        (SUB, 2 * (4 + 6) + 1, 1),
        ({"encoder_normalize_before": True}, 4 + 1, 6),
        ({"decoder_normalize_before": True}, 6, 4 + 1),
        (PRE | {"encoder_layerdrop": 0.9, "decoder_layerdrop": 0.9}, 4 + 6 + 1, 1),
        (PRE | {"decoder_output_dim": 8}, 4 + 6 + 1, 1),
        (PERI, 1, 2 * (4 + 6) + 2 + 1),
        (HYBRID, 1, 2 * (3 + 1) + 2 * (6 + 1) + 1),
    ],
    ids="post deepnorm pre sub pre-post post-pre drop narrow peri hybrid".split(),
)
def test_what_vanishes(placement, vanished, left):
    options = BATCH | FINALS | placement
    new, folding = fold(trained(**options), **options)
    assert (len(folding.vanished), len(folding.left)) == (vanished, left)
    multiply_adds = [name for name, part in new.named_modules() if isinstance(part, Affine)]
    assert multiply_adds == folding.left


def test_names_and_plans():
    _, folding = fold(trained(**MIXED, **PRE), **MIXED, **PRE)
    assert folding.vanished == [
        "encoder.layers.0.self_attn_layer_norm",
        "encoder.layers.0.final_layer_norm",
        "encoder.layer_norm",
        *(f"decoder.layers.0.{part}_attn_layer_norm" for part in ("self", "encoder")),
        *(f"decoder.layers.1.{part}_attn_layer_norm" for part in ("self", "encoder")),
    ]
    assert folding.left == []
    assert folding.settings == {
        "norm_encoder": "none@0:layer",
        "norm_decoder": "none@1.cross:layer@ffn:none@0:none",
        "norm_encoder_final": "none",
        "norm_decoder_final": "layer",
        "norm_weight": "none",
    }
    composed = {"norm_encoder": "power+rms+batch", "norm_decoder": "power@0:layer"}
    _, folding = fold(trained(**composed, **PRE), **composed, **PRE)
    assert folding.settings["norm_encoder"] == "affine+rms+none"
    _, folding = fold(trained(**composed), **composed)
    assert folding.settings["norm_encoder"] == "affine+rms+affine"
    assert folding.settings["norm_decoder"] == "affine@0:layer"


def test_without_cross_attention_nothing_takes_in_the_encoders_last_norm():
    options = BATCH | FINALS | PRE | {"no_cross_attention": True}
    model = trained(**options)
    expected = model.encoder(*batch()[:2])["encoder_out"][0]
    new, folding = fold(model, **options)
    assert folding.left == ["encoder.layer_norm", "decoder.layer_norm"]
    actual = new.encoder(*batch()[:2])["encoder_out"][0]
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def test_other_norms_stay_as_they_are():
    options = {"norm_encoder": "batch@self:layer"} | PRE
    model = trained(**options)
    norms = {n: part.state_dict() for n, part in model.named_modules() if type(part) is LayerNorm}
    new, _ = fold(model, **options)
    for name, state in norms.items():
        own = new.get_submodule(name).state_dict()
        assert all(torch.equal(own[key], value) for key, value in state.items())


def test_a_model_without_running_statistics_is_left_alone():
    model = trained(**PRE)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    folding = fold_norms(model)
    assert not folding.vanished and not folding.left
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_embeddings_stay_tied():
    options = BATCH | FINALS | PRE | {"share_decoder_input_output_embed": True}
    new, _ = fold(trained(**options), **options)
    assert new.decoder.output_projection.weight is new.decoder.embed_tokens.weight
