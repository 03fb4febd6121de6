"""Evaluation keeps its scale and shift for as long as they are right, and no longer."""

import copy

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


def fresh(norm, x=X):
    """What a norm that has kept nothing computes."""
    return copy.deepcopy(norm).train().eval()(x)


@KINDS
def test_nothing_is_computed_twice(kind, monkeypatch):
    norm, calls = trained(kind), []
    plain = norm.affine_map
    monkeypatch.setattr(norm, "affine_map", lambda: calls.append(1) or plain())
    with torch.no_grad():
        first, second = norm(X), norm(X)
    assert torch.equal(first, second)
    assert len(calls) == 1
    norm(X)  # with gradients
    assert len(calls) == 2


def new_statistics(norm):
    norm.population.set(torch.tensor([1.0, 2, 3]), torch.tensor([4.0, 5, 6]))


def other_weights(norm):
    with torch.no_grad():
        norm.weight.add_(1)


def an_optimizers_step(norm):
    norm.train()
    norm.bias.data.copy_(torch.ones(3))  # which leaves the version as it was
    norm.eval()


def loaded(norm):
    other = type(norm)(3)
    other.bias.data.fill_(7)
    norm.load_state_dict(other.state_dict())


CHANGES = [new_statistics, other_weights, an_optimizers_step, loaded, lambda norm: norm.double()]


@KINDS
@pytest.mark.parametrize("change", CHANGES, ids=[*(c.__name__ for c in CHANGES[:-1]), "cast"])
@torch.no_grad()
def test_follows_every_change(kind, change):
    norm = trained(kind)
    before = norm(X)
    change(norm)
    x = X.to(norm.weight.dtype)
    assert torch.equal(norm(x), fresh(norm, x))
    assert change is CHANGES[-1] or not torch.equal(norm(X), before)


def test_gradients_flow_in_evaluation_although_something_is_kept():
    norm = trained(BatchNorm)
    with torch.no_grad():
        norm(X)
    norm(X).sum().backward()
    assert norm.bias.grad.tolist() == [4, 4, 4]
    assert norm.weight.grad is not None


def test_inference_mode_and_what_was_made_in_it():
    norm = trained(BatchNorm)
    with torch.inference_mode():
        born_there = trained(BatchNorm)
        assert torch.equal(norm(X), fresh(norm))
        first = born_there(X)
        born_there.population.running_mean.add_(1)
        assert not torch.equal(born_there(X), first)
    norm(X).sum().backward()  # what inference mode has kept does not come in its way


def test_compiles_whole():
    norm = trained(BatchNorm)
    compiled = torch.compile(norm, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(X), norm(X))
        new_statistics(norm)
        assert torch.equal(compiled(X), norm(X))
