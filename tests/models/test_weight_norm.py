"""Weight normalisation of the encoder, against its formulas."""

import copy

import pytest
import torch
from torch import nn

from rbn_fairseq.models.weight_norm import normalise_weights
from small_models import STILL, SUB, batch, build

KINDS = pytest.mark.parametrize("kind", ["wn", "cwn"])
PLACEMENTS = pytest.mark.parametrize("placement", [{}, SUB], ids=["post", "sub"])


@KINDS
def test_weights_and_gradients(kind):
    linear = nn.Linear(5, 3).double()
    v = linear.weight.detach().clone()
    normalise_weights(linear, kind)
    centred = v - v.mean(1, keepdim=True) if kind == "cwn" else v
    length = centred.square().sum(1, keepdim=True).sqrt()
    # At first g is the length: wn changes nothing, cwn takes off the mean.
    torch.testing.assert_close(linear.weight.detach(), centred)

    parameters = dict(linear.named_parameters())
    names = sorted(name for name in parameters if name.startswith("parametrizations"))
    g, own_v = (parameters[name] for name in names)
    with torch.no_grad():
        g.copy_(torch.rand(3, 1) + 0.5)
    arriving = torch.randn(3, 5, dtype=torch.double)
    dg, dv = torch.autograd.grad(linear.weight, (g, own_v), arriving)
    # Salimans and Kingma, Eq. 3: dv is orthogonal to v; for cwn, of the centred gradient.
    wanted_dg = (arriving * centred).sum(1, keepdim=True) / length
    wanted_dv = g / length * arriving - g * wanted_dg / length**2 * centred
    if kind == "cwn":
        wanted_dv = wanted_dv - wanted_dv.mean(1, keepdim=True)
    torch.testing.assert_close(dg, wanted_dg)
    torch.testing.assert_close(dv, wanted_dv)


def test_a_row_of_equal_weights_is_zero():
    linear = nn.Linear(5, 3)
    nn.init.constant_(linear.weight, 0.5)
    normalise_weights(linear, "cwn")
    assert not linear.weight.any()


def test_noise_of_quantisation_is_refused():
    with pytest.raises(ValueError, match="--quant-noise-pq.*--norm-weight"):
        build(norm_weight="wn", quant_noise_pq=0.1, quant_noise_pq_block_size=8)


def test_none_changes_nothing():
    linear = nn.Linear(5, 3)
    before = copy.deepcopy(linear.state_dict())
    normalise_weights(linear, "none")
    assert all(torch.equal(value, before[name]) for name, value in linear.state_dict().items())


@KINDS
@PLACEMENTS
def test_every_linear_layer_of_the_encoder_and_none_of_the_decoder(kind, placement):
    model = build(norm_weight=kind, **placement)
    for name, part in model.named_modules():
        if isinstance(part, nn.Linear):
            normalised = nn.utils.parametrize.is_parametrized(part, "weight")
            assert normalised == name.startswith("encoder.layers."), name
    assert sum(nn.utils.parametrize.is_parametrized(part) for part in model.modules()) == 2 * 6


@PLACEMENTS
def test_a_new_model_with_wn_is_the_model_without(placement):
    options = STILL | placement
    plain, normalised = build(**options).eval(), build(**options, norm_weight="wn").eval()
    one, two = (model(*batch())[0] for model in (plain, normalised))
    torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)  # g v / ||v|| is rounded
