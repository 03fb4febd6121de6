"""The model: where its norms are, that no padding is seen, its errors."""

import logging
import math

import pytest
import torch
from fairseq.modules import LayerDropModuleList
from torch import nn

from rbn_fairseq.norms import (
    NORMS,
    BatchNorm,
    GroupNorm,
    has_population_norm,
    record_gaps,
)
from small_models import (
    BATCH,
    HALF,
    HYBRID,
    PERI,
    PRE,
    STILL,
    SUB,
    assert_alike,
    batch,
    build,
    everywhere,
    gradients,
    randomise,
    sample,
    task,
)

EVERY = pytest.mark.parametrize("name", NORMS)
WITH_SUB = pytest.mark.parametrize("placement", [{}, PRE, SUB], ids=["post", "pre", "sub"])


@WITH_SUB
@EVERY
def test_pads_never_matter(name, placement):
    """To the bit: the model packs the same rows, and never looks at padding, here NaN."""
    options = everywhere(name) | STILL | HALF | placement
    results = []
    for left, wider in (((True, False), 0), ((False, True), 0), ((True, True), 3)):
        model = randomise(build(**options)).train()
        with torch.no_grad():
            for stack in (model.encoder, model.decoder):
                stack.embed_tokens.weight[1] = math.nan
        given = sample(left=left, wider=wider)
        output, extra = model(**given["net_input"])
        targets = model.get_targets(given, (output, extra))
        log_probs = model.get_normalized_probs((output, extra), log_probs=True)
        loss = log_probs.gather(1, targets.unsqueeze(1)).sum()
        found = {"rows": output, "targets": targets} | gradients(model, loss)
        found |= {name: b for name, b in model.named_buffers() if "population" in name}
        assert any("population" in name for name in found) == has_population_norm(model)
        model.eval()
        evaluated = model(**given["net_input"])[0]
        real = given["net_input"]["prev_output_tokens"].ne(1)
        assert evaluated.isfinite().all() and not evaluated[~real].any()
        results.append(found | {"evaluated": evaluated[real]})
    for other in results[1:]:
        assert other.keys() == results[0].keys()
        for name, value in results[0].items():
            assert value.isfinite().all() and torch.equal(value, other[name]), name


HEADS = {
    "norm_encoder": "batch@qk:layer",
    "norm_decoder": "batch@0.qkv:rms@qk:layer@embedding:layer",
}
NORMED = {
    f"{name}-{place}": everywhere(name) | HALF | options
    for name in NORMS
    for place, options in (("post", {}), ("pre", PRE), ("sub", SUB))
} | {
    "heads-post": HEADS,
    "heads-pre": HEADS | PRE,
    "heads-peri": HEADS | PERI,
    "hybrid": BATCH | HYBRID,
    "hybrid with a first layer": HYBRID
    | {"norm_encoder": "layer@0.self:rms", "norm_decoder": "layer@0.self:layer@0.cross:rms"},
}


@pytest.mark.parametrize("options", NORMED.values(), ids=NORMED)
@pytest.mark.usefixtures("double_softmax")
@torch.no_grad()
def test_incremental_decoding_is_the_full_forward(options):
    model = randomise(build(**options)).double().eval()
    source, lengths, target = batch()
    real, state = target.ne(1), {}
    encoded = model.encoder(source, lengths)
    full, _ = model.decoder(target, encoder_out=encoded)
    whole, _ = model(source, lengths, target)
    steps = [
        model.decoder(target[:, : i + 1], encoder_out=encoded, incremental_state=state)[0]
        for i in range(target.shape[1])
    ]
    assert_alike(full, whole, "decoder")
    assert_alike(torch.cat(steps, 1)[real], full[real], "steps")


DROPOUTS = ["dropout", "attention_dropout", "activation_dropout"]


@pytest.mark.parametrize("kind", DROPOUTS)
def test_dropout_is_of_training_and_random(kind):
    model, plain = build(**STILL | {kind: 0.3}), build(**STILL)
    inputs = sample()["net_input"]
    one, two, same = (model.train()(**inputs)[0] for seed in (4, 5, 4) if torch.manual_seed(seed))
    assert not torch.allclose(one, two, atol=1e-3) and torch.equal(one, same)
    assert torch.equal(model.eval()(**inputs)[0], plain.eval()(**inputs)[0])
    assert torch.equal(plain.train()(**inputs)[0], plain(**inputs)[0])


@pytest.mark.parametrize("part", ["TransformerEncoder", "TransformerDecoderLayer"])
def test_dropout_of_some_parts_can_be_retained(part):
    model = build(**STILL | {"dropout": 0.3}).eval()
    model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=[part])
    one, two = (model(**sample()["net_input"])[0] for _ in range(2))
    assert not torch.equal(one, two)


@pytest.mark.parametrize("placement, count", [({}, 10), (SUB, 20)], ids=["post", "sub"])
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
def test_no_linear_layer_has_to_copy_its_input(name, placement):
    model = build(**placement, **everywhere(name))
    dense = []
    for part in model.modules():
        if isinstance(part, nn.Linear):
            part.register_forward_hook(lambda _, args, __: dense.append(args[0].is_contiguous()))
    for training in (True, False):
        model.train(training)(**sample()["net_input"])
    assert len(dense) >= 2 * (2 * 6 + 2 * 10) and all(dense)


def running_statistics(layer):
    return {name: b.clone() for name, b in layer.named_buffers() if "population" in name}


@pytest.mark.parametrize("encoder, decoder", [([0, 2], [1]), ([], [0, 1]), ([1], [])])
def test_dropped_layers_keep_their_statistics(monkeypatch, encoder, decoder):
    sizes = {"layers": 3, "layerdrop": 0.5}
    deep = {f"{side}_{name}": sizes[name] for side in ("encoder", "decoder") for name in sizes}
    model = build(**BATCH, **deep).train()
    encoders, decoders = ([s.layers[i] for i in range(3)] for s in (model.encoder, model.decoder))
    run = {model.encoder.layers: encoder, model.decoder.layers: decoder}
    monkeypatch.setattr(
        LayerDropModuleList, "__iter__", lambda stack: iter([stack[i] for i in run[stack]])
    )
    layers = [*encoders, *decoders]
    before = [running_statistics(layer) for layer in layers]
    with record_gaps() as gaps:
        model(*batch())[0].square().mean().backward()
    ran = [encoders[i] for i in encoder] + [decoders[i] for i in decoder]
    for layer, old in zip(layers, before, strict=True):
        for name, value in running_statistics(layer).items():
            assert torch.equal(value, old[name]) != (layer in ran), name
        assert any(gap.norm is layer.final_layer_norm for gap in gaps) == (layer in ran)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"norm_encoder": "bacth"}, ["--norm-encoder", "`bacth`", "Did you mean `batch`"]),
        # Post-Norm has no such norm, but a mistake is told all the same.
        ({"norm_decoder_final": "batchh"}, ["--norm-decoder-final", "Did you mean `batch`"]),
        ({"norm_encoder": "batch@2:layer"}, ["--norm-encoder", "layer 2", "2 layers"]),
        ({"norm_encoder": "batch@cross:layer"}, ["--norm-encoder", "site `cross`"]),
        ({"norm_batch_momentum": 1.5}, ["--norm-batch-momentum", "1.5"]),
        (
            {"norm_decoder": "layer@0:instance"},
            ["--norm-decoder:", "`instance`", "later tokens", "`layer`"],
        ),
        ({"norm_decoder_final": "instance", **PRE}, ["--norm-decoder-final:", "`instance`"]),
        (
            {"norm_encoder": "group", "norm_group_groups": 3},
            ["--norm-group-groups", "C = 16", "is 3."],
        ),
        ({"encoder_layers": 0}, ["--encoder-layers must be at least 1"]),
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


def test_layers_dropped_apart_are_refused():
    with pytest.raises(ValueError, match="--norm-sync does not go with --encoder-layerdrop"):
        build(norm_encoder="batch", norm_sync=True, decoder_layerdrop=0.1)
    build(norm_encoder="batch", decoder_layerdrop=0.1)


@pytest.mark.parametrize("norm, warned", [("batch", True), ("layer", False)])
def test_a_task_that_does_not_maintain_statistics_is_warned_of(caplog, norm, warned):
    foreign = task()
    foreign.keeps_statistics = False
    model = build(norm_encoder=norm)
    assert "running statistics" not in caplog.text
    model.warn(foreign)
    assert ("does not maintain running statistics" in caplog.text) == warned
