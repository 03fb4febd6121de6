"""First weights of the arrangements that scale them by depth."""

import pytest
import torch
from torch import nn

from rbn_fairseq.models.deepnorm import deepnorm
from rbn_fairseq.models.subnorm import sub_norm_gains
from small_models import SUB, build

WIDE = {
    f"{side}_{size}": 256
    for side in ("encoder", "decoder")
    for size in ("embed_dim", "ffn_embed_dim")
}
DEPTHS = {"encoder_layers": 1, "decoder_layers": 3}
DEEP = {"norm_placement": "deepnorm"}
ARRANGEMENTS = pytest.mark.parametrize(
    "arrangement, gains",
    [(DEEP, [constants.beta for constants in deepnorm(1, 3)]), (SUB, sub_norm_gains(1, 3))],
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
