"""Layers dropped in training, and models made of some layers of a trained one."""

import copy

import pytest
import torch
from fairseq.modules import LayerDropModuleList
from torch import nn

import runs
from rbn_fairseq.checkpoints.files import read_checkpoint, write_checkpoint
from rbn_fairseq.norms import record_gaps
from small_models import BATCH, FINALS, PRE, SUB, batch, build, randomise

DEEP = {"encoder_layers": 3, "decoder_layers": 3}
MODELS = {
    "post": BATCH,
    "pre": BATCH | FINALS | PRE,
    "sub": BATCH | SUB,
    "deepnorm": BATCH | {"norm_placement": "deepnorm"},
    "plan": {"norm_encoder": "batch@0-1:layer", "norm_decoder": "layer@0-1.self:batch"},
    "same names": {"norm_encoder": "layer@0-1:group", "norm_decoder": "dyt@2:rms"},
    "weight norm": BATCH | {"norm_weight": "wn"},
}
KEEP = {
    "encoder": ({"encoder_layers_to_keep": "0,2"}, [0, 2], [0, 1, 2]),
    "decoder": ({"decoder_layers_to_keep": [2]}, [0, 1, 2], [2]),
    "both": ({"encoder_layers_to_keep": "2, 1", "decoder_layers_to_keep": "0,2"}, [1, 2], [0, 2]),
}


def distinct(model):
    """Every tensor unlike those of the other layers."""
    with torch.no_grad():
        for tensor in randomise(model).state_dict().values():
            tensor.add_(0.1 * torch.rand(tensor.shape))
    return model.eval()


@pytest.mark.parametrize("keep, encoder, decoder", KEEP.values(), ids=KEEP)
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_kept_layers_are_the_trained_ones(options, keep, encoder, decoder):
    whole = distinct(build(**DEEP, **options))
    state = whole.state_dict()
    small = build(**DEEP, **options, **keep).eval()
    small.load_state_dict(state, strict=True, model_cfg=small.cfg)
    by_hand = copy.deepcopy(whole)
    for stack, kept in ((by_hand.encoder, encoder), (by_hand.decoder, decoder)):
        stack.layers = nn.ModuleList(stack.layers[number] for number in kept)
        stack.num_layers = len(kept)
    expected = by_hand.state_dict()
    assert small.state_dict().keys() == expected.keys()
    for name, value in small.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert torch.equal(small(*batch())[0], by_hand(*batch())[0])
    assert not torch.equal(small(*batch())[0], whole(*batch())[0])

    again = build(**DEEP, **options, **keep)  # from what the small model saves
    again.load_state_dict(small.state_dict())
    assert torch.equal(again.eval()(*batch())[0], small(*batch())[0])


@pytest.mark.parametrize("keep, word", [("0,2", "`2`"), ([-1], "`-1`"), ("0;1", "`0;1`")])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_layers_that_there_are_not_are_refused(side, keep, word):
    with pytest.raises(ValueError) as error:
        build(**{f"{side}_layers_to_keep": keep})
    for part in (f"--{side}-layers-to-keep", "0 to 1", "`0,1`", word):
        assert part in str(error.value)


def statistics(layer):
    return {name: b.clone() for name, b in layer.named_buffers() if "population" in name}


@pytest.mark.parametrize("encoder, decoder", [([0, 2], [1]), ([], [0, 1]), ([1], [])])
def test_dropped_layers_keep_their_statistics(monkeypatch, encoder, decoder):
    model = build(**BATCH, **DEEP, encoder_layerdrop=0.5, decoder_layerdrop=0.5).train()
    encoders, decoders = ([s.layers[i] for i in range(3)] for s in (model.encoder, model.decoder))
    run = {model.encoder.layers: encoder, model.decoder.layers: decoder}
    monkeypatch.setattr(
        LayerDropModuleList, "__iter__", lambda stack: iter([stack[i] for i in run[stack]])
    )
    layers = [*encoders, *decoders]
    before = [statistics(layer) for layer in layers]
    with record_gaps() as gaps:
        model(*batch())[0].square().mean().backward()
    ran = [encoders[i] for i in encoder] + [decoders[i] for i in decoder]
    for layer, old in zip(layers, before, strict=True):
        for name, value in statistics(layer).items():
            assert torch.equal(value, old[name]) != (layer in ran), name
        assert any(gap.norm is layer.final_layer_norm for gap in gaps) == (layer in ran)


def by_hand(path, folder):
    """A checkpoint of one encoder layer, the second of a trained model's two."""
    state = read_checkpoint(path)
    state["cfg"]["model"]["encoder_layers"] = 1
    first, second = "encoder.layers.0.", "encoder.layers.1."
    state["model"] = {
        name.replace(second, first): value
        for name, value in state["model"].items()
        if not name.startswith(first)
    }
    write_checkpoint(folder / "one.pt", state)
    return folder / "one.pt"


def test_translation_with_fewer_layers(data_bin, rbn_run, tmp_path):
    path = rbn_run / "checkpoint_last.pt"
    keep = ("--model-overrides", "{'encoder_layers_to_keep': '1'}")
    kept = runs.generate(data_bin, path, *keep)
    assert kept == runs.generate(data_bin, by_hand(path, tmp_path))
    assert kept != runs.generate(data_bin, path)


def test_training_of_fewer_layers_resumes(data_bin, tmp_path):
    options = ("--norm-encoder", "batch", "--encoder-layers-to-keep", "1", "--no-tid")
    runs.train(data_bin, tmp_path, *options, "--max-update", 1)
    log = runs.train(data_bin, tmp_path, *options, "--max-update", 2)
    assert "@ 1 updates)" in log
    state = read_checkpoint(tmp_path / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 2
    layers = {name.split(".")[2] for name in state["model"] if name.startswith("encoder.layers.")}
    assert layers == {"0"}
