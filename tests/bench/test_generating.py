"""Inference of models with random weights: the same batches and the same lengths for all."""

import pytest
from fairseq.models.transformer import TransformerModel

from rbn_fairseq.bench.generating import PLACEMENTS, Translator, default_settings
from runs import TINY

COMMON = [*TINY, "--optimizer", "adam", "--max-tokens", "600"]


@pytest.fixture(scope="module")
def translator(data_bin):
    return Translator(str(data_bin), COMMON, "cpu", beam=3, steps=4)


def test_every_translation_has_as_many_tokens(translator):
    batches = translator.batches("test", 2)
    for batch, hypotheses in zip(batches, translator.generate(batches), strict=True):
        assert len(hypotheses) == batch["nsentences"]
        assert all(len(of_sentence) == 3 for of_sentence in hypotheses)  # the beam
        assert {len(each["tokens"]) for beam in hypotheses for each in beam} == {4 + 1}  # and EOS


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_reference_is_fairseqs_own_model(data_bin, placement):
    settings = default_settings(placement, COMMON)
    assert list(settings) == ["fairseq", *PLACEMENTS[placement]]
    options = [*COMMON, *settings["fairseq"]]
    translator = Translator(str(data_bin), options, "cpu", beam=1, steps=1)
    assert type(translator.model) is TransformerModel
    assert translator.model.encoder.layers[0].normalize_before == (placement == "pre-norm")
    translator.encode(translator.batches("test", 1))


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", ["batch", "folded", "none"])
def test_settings_of_a_placement(data_bin, placement, name):
    options = [*COMMON, *PLACEMENTS[placement][name].split()]
    model = Translator(str(data_bin), options, "cpu", beam=1, steps=1).model
    assert model.encoder.layers[0].normalize_before == (placement == "pre-norm")
    kinds = [type(part).__name__ for part in model.modules()]
    # Two encoder layers with two places, two decoder layers with three; behind them, in Pre-Norm.
    places = 12 if placement == "pre-norm" else 10
    left = 1 if placement == "pre-norm" else places  # where no linear layer follows
    wanted = {"batch": {"BatchNorm": places}}
    wanted |= {"folded": {"Affine": left}, "none": {}}
    norms = {"LayerNorm", "BatchNorm", "Affine"}.intersection(kinds)
    assert {kind: kinds.count(kind) for kind in norms} == wanted[name]
