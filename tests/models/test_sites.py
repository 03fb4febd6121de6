"""Sites that a rule has to name: what stands there. Formulas: `test_by_sentence.py`."""

import pytest
import torch

from rbn_fairseq.models.placements import HeadNorm
from rbn_fairseq.models.placing import encoder_batch_norms
from rbn_fairseq.norms import BatchNorm, LayerNorm, RMSNorm
from small_models import (
    STILL,
    batch,
    build,
    build_classifier,
    build_language_model,
)


def test_plans_without_the_site_build_what_they_did():
    names = set(build().state_dict())
    for plan in ("layer", "rms", "layer@0:rms", "layer@self:rms"):
        state = set(build(norm_encoder=plan).state_dict())
        assert {name for name in state ^ names if not name.endswith("norm.bias")} == set()


def test_the_norm_of_the_embedding():
    model = build(norm_encoder="batch@embedding:layer", norm_decoder="layer:rms+layer@embedding")
    assert isinstance(model.encoder.layernorm_embedding, BatchNorm)
    one, two = model.decoder.layernorm_embedding
    assert isinstance(one, RMSNorm) and isinstance(two, LayerNorm)
    assert build(norm_encoder="batch@embedding:layer").decoder.layernorm_embedding is None
    for model, plan in ((build_classifier, "norm_encoder"), (build_language_model, "norm_decoder")):
        state = model(**{plan: "layer@embedding:layer"}).state_dict()
        assert state.keys() == model(layernorm_embedding=True).state_dict().keys()


def test_the_eps_of_layer_norms_is_that_of_the_embeddings_too():
    model = build(layernorm_embedding=True, norm_layer_eps=0.25)
    norms = [part for part in model.modules() if isinstance(part, LayerNorm)]
    assert model.encoder.layernorm_embedding in norms
    assert {norm.options.eps for norm in norms} == {0.25}


def kinds(attention):
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    return [type(part.norm) if isinstance(part, HeadNorm) else None for part in projections]


def test_norms_of_heads():
    model = build(norm_encoder="rms@0.qk:layer@qkv:layer", norm_decoder="batch@1.qk:layer")
    encoder, decoder = model.encoder.layers, model.decoder.layers
    assert kinds(encoder[0].self_attn) == [RMSNorm, RMSNorm, LayerNorm]
    assert kinds(encoder[1].self_attn) == [LayerNorm] * 3
    assert kinds(decoder[0].self_attn) == kinds(decoder[0].encoder_attn) == [None] * 3
    assert kinds(decoder[1].self_attn) == kinds(decoder[1].encoder_attn)
    assert kinds(decoder[1].self_attn) == [BatchNorm, BatchNorm, None]
    norms = [part.norm for part in model.modules() if isinstance(part, HeadNorm)]
    assert len(set(norms)) == 6 + 4
    assert all(norm.weight.shape == (16 // 2,) for norm in norms)
    assert encoder_batch_norms(build(norm_encoder="batch@qk:layer")) == {}
    # `group` has a group for every head of the stack, and here there is one head to a row.
    build(norm_encoder="group@qk:layer", encoder_attention_heads=8, encoder_embed_dim=24)


def test_the_projections_keep_names_and_first_weights():
    plain = build().state_dict()
    state = build(norm_encoder="layer@qkv:layer", norm_decoder="layer@qk:layer").state_dict()
    assert all(torch.equal(state[name], value) for name, value in plain.items())
    added = [name for name in state if name not in plain]
    assert len(added) == 2 * (2 * 3 + 2 * 4)
    assert all("_proj.norm." in name for name in added)


@torch.no_grad()
def test_weights_of_attention_do_not_move_statistics():
    """They are of the queries and keys that attend, and not of a second look."""
    model = build(norm_decoder="batch@qk:layer", **STILL).train()
    source, lengths, target = batch()
    encoded = model.encoder(source, lengths)
    attention = model.decoder.layers[-1].encoder_attn
    before = attention.k_proj.norm.population.running_mean.clone()
    seen = []
    attention.k_proj.norm.register_forward_hook(lambda *args: seen.append(args[2]))
    _, extra = model.decoder(target, encoder_out=encoded)
    assert extra["attn"][0] is not None and len(seen) == 1
    assert not torch.equal(attention.k_proj.norm.population.running_mean, before)


@pytest.mark.parametrize("kind", ["wn", "cwn"])
def test_weights_of_the_projections_may_be_normalised(kind):
    model = build(norm_encoder="layer@qk:layer", norm_weight=kind, **STILL)
    output = model(*batch())[0]
    output.square().mean().backward()
    projection = model.encoder.layers[0].self_attn.q_proj
    assert projection.parametrizations.weight.original0.grad is not None
    x = torch.randn(5, 16)
    y = torch.nn.functional.linear(x, projection.weight, projection.bias)
    expected = projection.norm(y.view(5, 2, 8)).view(5, 16)
    torch.testing.assert_close(projection(x), expected)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_under_autocast_queries_keys_and_values_have_one_dtype(kind):
    class InSingle(torch.nn.Module):  # as layer norm on a GPU
        def forward(self, x):
            return x.float()

    attention = build(norm_encoder="layer@qk:layer").encoder.layers[0].self_attn
    attention.q_proj.norm = attention.k_proj.norm = InSingle()
    with torch.autocast("cpu", kind):
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        assert {part(torch.randn(3, 16)).dtype for part in parts} == {kind}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"norm_encoder": "instance@qk:layer"},
            ["--norm-encoder:", "`instance`", "`qk`", "`layer`."],
        ),
        (
            {"norm_encoder": "batch@qkv:layer", "norm_batch_length_bins": 3},
            ["--norm-encoder:", "`batch`", "leave --norm-batch-length-bins out"],
        ),
        ({"norm_encoder": "layer@0:mabn@qk:layer"}, ["--norm-encoder", "`mabn`"]),
        ({"norm_encoder": "renorm@qk:layer", "checkpoint_activations": True}, ["`renorm`"]),
        (
            {"norm_encoder": "batch@embedding:layer", "layernorm_embedding": True},
            ["--norm-encoder:", "Leave --layernorm-embedding out"],
        ),
        ({"norm_decoder": "instance@embedding:layer"}, ["--norm-decoder:", "`instance`"]),
        ({"norm_decoder": "batch@0.embedding:layer"}, ["--norm-decoder:", "`batch@embedding`"]),
        (
            {"encoder_normalize_before": True, "norm_encoder": "mabn@embedding:layer"},
            ["--norm-encoder", "`mabn`"],
        ),
    ],
)
def test_refusals(options, words):
    with pytest.raises(ValueError) as error:
        build(**options)
    for word in words:
        assert word in str(error.value)
