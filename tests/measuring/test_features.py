"""Features of encoder layers, against a hand-made forward through the same layers."""

import pytest
import torch

import small_models
from rbn_fairseq.callbacks.conditioning_monitor import record_features
from small_models import DEEP, HYBRID, PERI, PRE, STILL, SUB

PLACEMENTS = {
    "post": {}, "deepnorm": DEEP, "pre": PRE, "sub": SUB, "peri": PERI, "hybrid": HYBRID,
}  # fmt: skip
PAD = 1
WITH_PADS = torch.tensor([[5, 6, 7, 8, 2], [9, 2, PAD, PAD, PAD], [4, 4, 2, PAD, PAD]])
WITHOUT_PADS = torch.tensor([[5, 6, 2], [7, 7, 2]])


def build(**options):
    return small_models.build(**STILL, encoder_layers=3, **options).train()


def encode(model, words):
    return model.encoder(words, src_lengths=words.ne(PAD).sum(1), return_all_hiddens=True)


def gathered(x, words):
    """The real tokens of ``x: (T, B, C)``, one by one, those of short sentences first."""
    length, sentences, _ = x.shape
    order = sorted(range(sentences), key=lambda b: int(words[b].ne(PAD).sum()))
    real = [(t, b) for b in order for t in range(length) if words[b, t] != PAD]
    return torch.stack([x[t, b] for t, b in real]).detach()


@pytest.mark.parametrize("words", [WITH_PADS, WITHOUT_PADS], ids=["pads", "no pads"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_both_places(words, placement):
    model = build(**PLACEMENTS[placement])
    with record_features(model.encoder.layers, [1, 3]) as features:
        states = encode(model, words)["encoder_states"]  # what enters layers 1, 2, 3, and what ends
    # In hybrid no norm is in front of the self-attention.
    pre = placement not in ("post", "deepnorm", "hybrid")
    places = ["stream", "normalised"] if pre else ["stream"]
    assert list(features) == [(layer, place) for layer in (1, 3) for place in places]
    for layer in (1, 3):
        stream = gathered(states[layer - 1], words)
        torch.testing.assert_close(features[layer, "stream"], stream, rtol=0, atol=0)
        if pre:
            norm = model.encoder.layers[layer - 1].self_attn_layer_norm
            torch.testing.assert_close(features[layer, "normalised"], norm(stream).detach())


def test_only_the_first_forward_counts():
    model = build(**PRE)
    with record_features(model.encoder.layers, [1]) as features:
        encode(model, WITH_PADS)
        first = {place: x.clone() for place, x in features.items()}
        encode(model, WITHOUT_PADS)
    assert features.keys() == first.keys()
    assert all(torch.equal(features[place], x) for place, x in first.items())


def test_layers_that_layerdrop_skips_are_missing():
    model = build(encoder_layerdrop=0.5, **PRE)
    ran = []
    for number in (1, 2, 3):
        layer = model.encoder.layers[number - 1]
        layer.register_forward_hook(lambda *_, number=number: ran.append(number))
    seen = set()
    for _ in range(20):
        ran.clear()
        with record_features(model.encoder.layers, [1, 2, 3]) as features:
            encode(model, WITH_PADS)
        assert list(features) == [(n, place) for n in ran for place in ("stream", "normalised")]
        seen.add(tuple(ran))
    assert len(seen) > 2


def hooks_of(model):
    return [
        hook
        for part in model.modules()
        for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_stays(fails):
    model = build(**PRE)
    try:
        with record_features(model.encoder.layers, [1, 2, 3]) as features:
            assert len(hooks_of(model)) == 6
            encode(model, WITH_PADS)
            if fails:
                raise RuntimeError
    except RuntimeError:
        pass
    assert not hooks_of(model)
    assert not any(x.requires_grad for x in features.values())


@pytest.mark.parametrize("words", [WITH_PADS, WITHOUT_PADS], ids=["pads", "no pads"])
def test_later_changes_in_place_do_not_reach_the_features(words):
    model = build()
    with record_features(model.encoder.layers, [1, 2]) as features:
        states = encode(model, words)["encoder_states"]
    before = [x.clone() for x in features.values()]
    for state in states:
        state.detach().zero_()
    assert all(torch.equal(x, y) for x, y in zip(features.values(), before, strict=True))
