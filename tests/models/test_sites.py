"""Sites that a rule has to name: what stands there. Formulas: `test_by_sentence.py`."""

import pytest

from rbn_fairseq.norms import BatchNorm, LayerNorm, RMSNorm
from small_models import build, build_classifier, build_language_model


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
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
