"""Generation computes scale and shift once; evaluation elsewhere follows every change."""

import pytest
import torch

from rbn_fairseq.norms import NORMS, PopulationNorm

KINDS = pytest.mark.parametrize(
    "kind", [kind for kind in NORMS.values() if issubclass(kind, PopulationNorm)]
)
X = torch.arange(12.0).view(2, 2, 3)


def trained(kind):
    norm = kind(3)
    norm(X)
    return norm.eval()


@KINDS
def test_generation_computes_them_once(kind, monkeypatch):
    norm, calls = trained(kind), []
    plain = norm.affine_map
    monkeypatch.setattr(norm, "affine_map", lambda: calls.append(1) or plain())
    with torch.no_grad():
        expected = norm(X), norm(X)
        assert len(calls) == 2
        norm.make_generation_fast_(name="encoder.layers.0.final_layer_norm", need_attn=False)
        assert all(torch.equal(norm(X), y) for y in expected)
    assert len(calls) == 3
    norm(X)  # with gradients
    assert len(calls) == 4


@KINDS
@torch.no_grad()
def test_evaluation_follows_weights_that_change_behind_autograds_back(kind):
    norm = trained(kind)
    norm(X)
    for parameter in norm.parameters():
        parameter.data.fill_(0)  # as fairseq's optimizers write
    norm.bias.data.fill_(5)
    assert torch.equal(norm(X), torch.full_like(X, 5))


def load(norm):
    other = type(norm)(3)
    other.bias.fill_(7)
    norm.load_state_dict(other.state_dict())


CHANGES = {
    "a state that is loaded": load,
    "statistics that are set": lambda norm: norm.train().population.set(
        torch.ones(3), torch.full((3,), 9.0)
    ),
    "a cast": lambda norm: norm.half(),
}


@KINDS
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@torch.no_grad()
def test_generation_follows(change, kind):
    norm = trained(kind)
    norm.make_generation_fast_()
    norm.weight.fill_(1 / 3)
    before = norm(X)
    change(norm)
    twin = type(norm)(3).to(norm.weight.dtype)
    twin.load_state_dict(norm.state_dict())
    after = norm.eval()(X)
    assert torch.equal(after, twin.eval()(X)) and not torch.equal(after, before)
