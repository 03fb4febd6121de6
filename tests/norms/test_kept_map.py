"""Generation computes scale and shift once; evaluation elsewhere follows every change."""

import pytest
import torch

from rbn_fairseq.norms import BatchNorm, BatchRenorm, MovingAverageBatchNorm, PowerNorm

KINDS = pytest.mark.parametrize(
    "kind", [BatchNorm, BatchRenorm, PowerNorm, MovingAverageBatchNorm], ids=lambda k: k.__name__
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
    norm.weight.data.fill_(0)  # as fairseq's optimizers write
    norm.bias.data.fill_(5)
    assert torch.equal(norm(X), torch.full_like(X, 5))


@KINDS
@torch.no_grad()
def test_generation_follows_a_state_that_is_loaded(kind):
    norm, other = trained(kind), kind(3).eval()
    other.bias.fill_(7)
    norm.make_generation_fast_()
    norm(X)
    norm.load_state_dict(other.state_dict())
    assert torch.equal(norm(X), other(X))


@KINDS
@torch.no_grad()
def test_generation_follows_statistics_that_are_set(kind):
    norm = trained(kind)
    norm.make_generation_fast_()
    before = norm(X)
    norm.train().population.set(torch.ones(3), torch.full((3,), 9.0))
    after = norm.eval()(X)
    assert torch.equal(after, trained_alike(norm)(X)) and not torch.equal(after, before)


def trained_alike(norm):
    other = type(norm)(3).eval()
    other.load_state_dict(norm.state_dict())
    return other


@KINDS
@torch.no_grad()
def test_generation_follows_casts(kind):
    norm = trained(kind)
    norm.make_generation_fast_()
    norm.weight.fill_(1 / 3)
    norm(X)
    rounded = norm.half()(X)
    assert torch.equal(rounded, trained_like(norm)(X))


def trained_like(norm):
    """The same norm, which has kept nothing."""
    twin = type(norm)(3).half().eval()
    twin.load_state_dict(norm.state_dict())
    return twin


def test_gradients_flow_although_something_is_kept():
    norm = trained(BatchNorm)
    norm.make_generation_fast_()
    with torch.no_grad():
        norm(X)
    norm(X).sum().backward()
    assert norm.bias.grad.tolist() == [4, 4, 4]
    assert norm.weight.grad is not None


def test_what_inference_mode_has_kept_is_in_nobodys_way():
    norm = trained(BatchNorm)
    norm.make_generation_fast_()
    with torch.inference_mode():
        expected = norm(X)
    with torch.no_grad():
        assert torch.equal(norm(X), expected)
    norm(X).sum().backward()


def test_compiles_whole():
    norm = trained(BatchNorm)
    compiled = torch.compile(norm, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(X), norm(X))
        norm.population.set(torch.tensor([1.0, 2, 3]), torch.tensor([4.0, 5, 6]))
        assert torch.equal(compiled(X), norm(X))
