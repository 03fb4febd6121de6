"""The model: fairseq's own with layer norms; batch norms that never see padding; its errors."""

import argparse
import logging
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel

import runs
from rbn_fairseq.models import RBNTransformerModel
from rbn_fairseq.norms import (
    NORMS,
    BatchNorm,
    GroupNorm,
    LayerNorm,
    freeze_statistics,
    has_population_norm,
)

SIZES = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (
        ("embed_dim", 16), ("ffn_embed_dim", 24), ("layers", 2), ("attention_heads", 2)
    )
}  # fmt: skip
PRE = {"encoder_normalize_before": True, "decoder_normalize_before": True}
BATCH = {"norm_encoder": "batch", "norm_decoder": "batch"}
FINALS = {"norm_encoder_final": "batch", "norm_decoder_final": "batch"}
STILL = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
EVERY = pytest.mark.parametrize("name", NORMS)
SUB = PRE | {"norm_placement": "sub"}
PLACEMENTS = pytest.mark.parametrize("placement", [{}, PRE], ids=["post", "pre"])
POST_AND_SUB = pytest.mark.parametrize(  # with the number of norms that BATCH makes of them
    "placement, count", [({}, 10), (SUB, 20)], ids=["post", "sub"]
)
WITH_SUB = pytest.mark.parametrize("placement", [{}, PRE, SUB], ids=["post", "pre", "sub"])


def task(types=30):
    dictionary = Dictionary()
    for index in range(types):
        dictionary.add_symbol(f"w{index}")
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


def build(model=RBNTransformerModel, **options):
    torch.manual_seed(3)
    name = "rbn_transformer" if model is RBNTransformerModel else "transformer"
    settings = argparse.Namespace(arch=name, max_source_positions=50, max_target_positions=50)
    vars(settings).update(SIZES | options)
    return model.build_model(settings, task())


def everywhere(name):
    """Options that put a norm wherever it may stand."""
    decoder, final = runs.decoder_plans(name, layers=2)
    return {
        "norm_encoder": name, "norm_encoder_final": name,
        "norm_decoder": decoder, "norm_decoder_final": final,
    }  # fmt: skip


def sentences(lengths, total, left_pad, seed=0):
    """Tokens ``(B, total)`` of sentences of these lengths; the same for any padding."""
    pad, rows = task().source_dictionary.pad(), []
    generator = torch.Generator().manual_seed(seed)
    for length in lengths:
        words = torch.randint(4, 30, (length,), generator=generator)
        pads = words.new_full((total - length,), pad)
        rows.append(torch.cat([pads, words] if left_pad else [words, pads]))
    return torch.stack(rows)


def batch(source=7, target=6):
    """A source with pads on the left and a target with pads on the right, as fairseq's are."""
    lengths = [7, 4, 5]
    return (
        sentences(lengths, source, left_pad=True),
        torch.tensor(lengths),
        sentences([3, 6, 1], target, left_pad=False, seed=1),
    )


def randomise(model):
    """Biases, gains and statistics other than those of a new model."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if "norm" in name:
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator))
    return model


@PLACEMENTS
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("ours_first", [True, False])
def test_layer_norms_are_fairseqs_transformer(placement, training, ours_first):
    options = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}
    ours, theirs = build(**options, **placement), build(TransformerModel, **options, **placement)
    first, second = (ours, theirs) if ours_first else (theirs, ours)
    second.load_state_dict(randomise(first).state_dict(), strict=True)
    outputs, gradients = [], []
    for model in (ours, theirs):
        model.train(training)
        torch.manual_seed(11)
        output, extra = model(*batch())
        model.get_normalized_probs((output, extra), log_probs=True)[..., 5].sum().backward()
        outputs.append(output)
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    assert torch.equal(*outputs)
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][name]), name


@PLACEMENTS
def test_state_dict_is_fairseqs_and_population(placement):
    ours = build(**BATCH, **FINALS, **placement)
    theirs = build(TransformerModel, **placement).state_dict()
    expected = set(theirs)
    for name, part in ours.named_modules():
        if isinstance(part, BatchNorm):
            expected |= {f"{name}.population.running_{stat}" for stat in ("mean", "var")}
    assert set(ours.state_dict()) == expected
    assert len(expected) > len(theirs)


# prms measures one of 16 channels by default: where that is near 0, rounding becomes large.
HALF = {"norm_prms_p": 0.5}


def assert_alike(one, other, what, noise=0.0):
    """Equal but for the rounding of fp64, 2e-16 of the largest value.

    Models of two layers amplify it: some 1e4 times in sub-LN without norms, whose activations
    grow. ``noise`` is what sums that cancel leave of larger numbers.
    """
    bound = 1e-10 * one.abs().max() + noise
    torch.testing.assert_close(
        one, other, rtol=0, atol=bound.item(), msg=lambda text: f"{what}: {text}"
    )


@WITH_SUB
@EVERY
@pytest.mark.usefixtures("double_softmax")
def test_pads_never_matter(name, placement):
    options = everywhere(name) | STILL | HALF | placement
    results = []
    for wider in (0, 3):
        model = randomise(build(**options)).double().train()
        source, lengths, target = batch(7 + wider, 6 + wider)
        output, extra = model(source, lengths, target)
        real = target.ne(1)
        chosen = output[real]
        log_probs = model.get_normalized_probs((output, extra), log_probs=True)
        log_probs[real][:, 7].sum().backward()
        stats = {name: b for name, b in model.named_buffers() if "population" in name}
        gradients = {name: p.grad for name, p in model.named_parameters()}
        results.append((chosen, stats, gradients))
    (chosen, stats, gradients), (chosen2, stats2, gradients2) = results
    assert chosen.shape == chosen2.shape and gradients
    assert bool(stats) == has_population_norm(model)

    # Matrix products of other shapes sum in another order: rounding, no more.
    assert_alike(chosen, chosen2, "outputs")
    for name in stats:
        assert_alike(stats[name], stats2[name], name)
    # The true gradient of some biases is 0: of keys, under a softmax, and before a batch norm.
    noise = 1e-13 * max(gradient.abs().max() for gradient in gradients.values())
    for name in gradients:
        assert_alike(gradients[name], gradients2[name], name, noise)


def test_rows_of_pads_never_matter():
    outputs = []
    for rows in (0, 2):
        model = randomise(build(**BATCH, **STILL)).train()
        source, lengths, target = batch()
        # One target row of pads only; its source stays a real sentence for attention's sake.
        target = torch.cat([target, target.new_full((rows, target.shape[1]), 1)])
        source = torch.cat([source, source[:1].expand(rows, -1)])
        lengths = torch.cat([lengths, lengths[:1].expand(rows)])
        with torch.no_grad():
            model.encoder.eval()
            encoded = model.encoder(source, lengths)
            output, _ = model.decoder(target, encoder_out=encoded)
        stats = [b for name, b in model.decoder.named_buffers() if "running" in name]
        outputs.append((output[:3][target[:3].ne(1)], torch.stack(stats)))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_norms_are_called_with_the_real_tokens(side):
    model = build(**{f"norm_{side}": "batch"}, **STILL).train()
    seen = []

    def watch(norm, inputs):
        seen.append(inputs)

    norms = [part for part in model.modules() if isinstance(part, BatchNorm)]
    for norm in norms:
        norm.register_forward_pre_hook(watch)
    source, lengths, target = batch()
    with freeze_statistics():
        masked, _ = model(source, lengths, target)
    real = (source if side == "encoder" else target).ne(1)
    assert len(seen) == len(norms) > 0
    for x, tokens in seen:
        assert x.shape[:2] == real.t().shape
        assert torch.equal(tokens.pack(x.reshape(-1, x.shape[-1])), x[real.t()])
    handles = [norm.register_forward_pre_hook(lambda _, inputs: inputs[:1]) for norm in norms]
    unmasked, _ = model(source, lengths, target)
    assert len(handles) == len(norms)
    assert not torch.allclose(masked, unmasked, atol=1e-3)


@WITH_SUB
@EVERY
@pytest.mark.usefixtures("double_softmax")
def test_incremental_decoding_is_the_full_forward(name, placement):
    model = randomise(build(**everywhere(name), **HALF, **placement)).double().eval()
    source, lengths, _ = batch()
    target = sentences([6, 6, 6], 6, left_pad=False, seed=2)
    state = {}
    with torch.no_grad():
        encoded = model.encoder(source, lengths)
        full, _ = model.decoder(target, encoder_out=encoded)
        steps = [
            model.decoder(target[:, : i + 1], encoder_out=encoded, incremental_state=state)[0]
            for i in range(target.shape[1])
        ]
    assert_alike(full, torch.cat(steps, 1), "outputs")


def kinds(model):
    return {
        name: type(part)
        for name, part in model.named_modules()
        if isinstance(part, BatchNorm | LayerNorm)
    }


@pytest.mark.parametrize(
    "plan, places",
    [
        ("batch@0:layer", {"0.self_attn_layer_norm", "0.final_layer_norm"}),
        ("batch@1.ffn:layer", {"1.final_layer_norm"}),
        ("batch@self:layer", {"0.self_attn_layer_norm", "1.self_attn_layer_norm"}),
    ],
)
def test_plan_is_placed(plan, places):
    found = kinds(build(norm_encoder=plan))
    batch_norms = {name for name, kind in found.items() if kind is BatchNorm}
    assert batch_norms == {f"encoder.layers.{place}" for place in places}
    assert len(found) == 2 * 2 + 2 * 3  # sites of 2 encoder and 2 decoder layers


def test_cross_site_is_the_decoders():
    found = kinds(build(norm_decoder="batch@0.cross:layer"))
    assert [name for name, kind in found.items() if kind is BatchNorm] == [
        "decoder.layers.0.encoder_attn_layer_norm"
    ]


def test_composition_is_placed():
    norm = build(norm_encoder="batch+layer").encoder.layers[0].final_layer_norm
    assert [type(part) for part in norm] == [BatchNorm, LayerNorm]


def test_finals_are_pre_norms_alone():
    post, pre = build(**FINALS), build(**FINALS, **PRE)
    assert post.encoder.layer_norm is None and post.decoder.layer_norm is None
    assert isinstance(pre.encoder.layer_norm, BatchNorm)
    assert isinstance(pre.decoder.layer_norm, BatchNorm)


@POST_AND_SUB
def test_options_reach_every_batch_norm(placement, count):
    chosen = {"norm_batch_momentum": 0.3, "norm_batch_eps": 1e-3, "norm_batch_eps_mode": "clamp"}
    model = build(**BATCH, **chosen, **placement, norm_sync=True)
    norms = [part for part in model.modules() if isinstance(part, BatchNorm)]
    assert len(norms) == count
    for norm in norms:
        assert (norm.options.momentum, norm.options.eps) == (0.3, 1e-3)
        assert norm.options.eps_mode == "clamp"
        assert norm.sync and norm.population.momentum == 0.3


def test_groups_are_the_heads_of_their_own_stack():
    group = dict.fromkeys(everywhere("group"), "group")
    model = build(**group, **PRE, decoder_attention_heads=4)
    for stack, heads in ((model.encoder, 2), (model.decoder, 4)):
        groups = [part.groups for part in stack.modules() if isinstance(part, GroupNorm)]
        assert set(groups) == {heads} and len(groups) > 4


@WITH_SUB
@pytest.mark.parametrize("name", ["layer", "batch", "none"])
@torch.no_grad()
def test_in_evaluation_no_linear_layer_has_to_copy_its_input(name, placement):
    model = build(**placement, **everywhere(name)).eval()
    dense = []
    for part in (*model.encoder.layers, *model.decoder.layers):
        for layer in (part.self_attn, part.fc1, part.fc2):
            layer.register_forward_hook(
                lambda _, args, kwargs, __: dense.extend(
                    it.is_contiguous() for it in args or (kwargs["query"],)
                ),
                with_kwargs=True,
            )
    source = sentences((5, 3), total=6, left_pad=True)
    target = sentences((4, 6), total=6, left_pad=False)
    model(source, None, target)
    assert len(dense) >= 4 * 3 and all(dense)


def test_an_unused_rule_for_a_leaking_norm_is_no_harm():
    assert len(kinds(build(norm_decoder="layer@0-1:instance"))) == 2 * 2 + 2 * 3


@POST_AND_SUB
def test_layerdrop_trains(placement, count):
    model = build(**BATCH, **placement, encoder_layerdrop=0.5, decoder_layerdrop=0.5).train()
    assert len([kind for kind in kinds(model).values() if kind is BatchNorm]) == count
    drops = set()
    for _ in range(12):
        model.zero_grad()
        model(*batch())[0].square().mean().backward()
        layers = model.encoder.layers._modules.values()  # iterating over the list would drop
        drops.add(tuple(layer.fc1.weight.grad is None for layer in layers))
    assert len(drops) > 1


@pytest.mark.parametrize(
    "options, words",
    [
        ({"norm_encoder": "bacth"}, ["--norm-encoder", "`bacth`", "Did you mean `batch`"]),
        ({"norm_decoder": "layr"}, ["--norm-decoder", "`layr`", "Did you mean `layer`"]),
        ({"norm_encoder_final": "bat", **PRE}, ["--norm-encoder-final", "`bat`"]),
        # Post-Norm has no such norm, but a mistake is told all the same.
        ({"norm_decoder_final": "batchh"}, ["--norm-decoder-final", "Did you mean `batch`"]),
        ({"norm_encoder": "batch@"}, ["--norm-encoder", "cannot read `batch@`"]),
        ({"norm_encoder": "batch@0-x:layer"}, ["--norm-encoder", "cannot read"]),
        ({"norm_encoder": "batch@0"}, ["--norm-encoder", "layer 1", ":layer"]),
        ({"norm_encoder": "batch@2:layer"}, ["--norm-encoder", "layer 2", "2 layers"]),
        ({"norm_encoder": "batch@cross:layer"}, ["--norm-encoder", "site `cross`"]),
        ({"norm_batch_momentum": 0.0}, ["--norm-batch-momentum", "0.0"]),
        ({"norm_batch_momentum": 1.5}, ["--norm-batch-momentum", "1.5"]),
        ({"norm_batch_eps": 0.0}, ["--norm-batch-eps", "positive"]),
        (
            {"norm_decoder": "layer@0:instance"},
            ["--norm-decoder:", "`instance`", "later tokens", "--norm-encoder", "`layer`"],
        ),
        ({"norm_decoder": "layer+instance"}, ["--norm-decoder:", "`instance`"]),
        ({"norm_decoder_final": "instance", **PRE}, ["--norm-decoder-final:", "`instance`"]),
        (
            {"norm_encoder": "group", "norm_group_groups": 3},
            ["--norm-group-groups", "C = 16", "is 3.", "2 and 4"],
        ),
        (
            {"norm_encoder": "prms", "norm_prms_p": 0.05},
            ["--norm-prms-p", "16 * 0.05", "0.0625"],
        ),
        ({"norm_rms_eps": -1.0}, ["--norm-rms-eps", "positive", "-1.0"]),
        ({"norm_dyt_alpha_init": 0.0}, ["--norm-dyt-alpha-init", "positive", "0.0"]),
        ({"base_layers": 1}, ["--base-layers"]),
        (
            {"offload_activations": True, "quant_noise_pq": 0.1},
            ["--quant-noise-pq", "--checkpoint-activations", "--offload-activations"],
        ),
        (
            {"cross_self_attention": True, "no_cross_attention": True},
            ["--cross-self-attention"],
        ),
    ],
)  # fmt: skip
def test_errors_name_the_option(options, words):
    with pytest.raises(ValueError) as error:
        build(**options)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("side, warns", [("encoder", False), ("decoder", True)])
def test_batch_norms_in_the_decoder_warn(side, warns, caplog):
    with caplog.at_level(logging.WARNING, logger="rbn_fairseq"):
        build(**{f"norm_{side}": "batch"})
    assert ("Norms with batch statistics in the decoder" in caplog.text) == warns


def test_other_dictionary_sizes_are_refused():
    state = build().state_dict()
    state["encoder.embed_tokens.weight"] = torch.zeros(12, 16)
    with pytest.raises(ValueError, match=r"source dictionary of 12 types.*has 34") as error:
        build().load_state_dict(state)
    assert "data directory" in str(error.value)
