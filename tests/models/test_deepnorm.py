"""DeepNorm: its constants. Its residuals: `test_by_sentence.py`."""

import math

import pytest

from rbn_fairseq.models.deepnorm import deepnorm
from small_models import DEEP, build


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
        assert tuple(one) == pytest.approx(two, rel=1e-12)


def test_pre_norm_is_refused():
    for side in ("encoder", "decoder"):
        with pytest.raises(ValueError, match="--norm-placement deepnorm.*Post-Norm"):
            build(**DEEP, **{f"{side}_normalize_before": True})
