"""Batch statistics of a small network, against the network computed by hand in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import oracles
from rbn_fairseq.diagnostics import batch_norms, collect_moments, population_norms
from rbn_fairseq.norms import (
    BatchNorm,
    BatchNormOptions,
    LayerNorm,
    PowerNorm,
    PowerNormOptions,
    ValidTokens,
)


class Network(nn.Module):
    """Two batch norms of different widths behind linear maps; the second may be skipped."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.dropout = nn.Linear(4, 6), nn.Linear(6, 3), nn.Dropout(0.3)
        self.norm1, self.norm2 = BatchNorm(6), BatchNorm(3)
        self.plain = LayerNorm(3)

    def forward(self, x, valid=None, skip=False):
        tokens = None if valid is None else ValidTokens(valid)
        x = self.norm1(self.dropout(self.fc1(x)), tokens)
        return x if skip else self.plain(self.norm2(self.fc2(x), tokens))

    def moments_by_hand(self, x, valid, keep=None):
        """Moments that the two norms see in training; ``keep``: what dropout multiplies by."""
        hidden = F.linear(x, self.fc1.weight, self.fc1.bias) * (1 if keep is None else keep)
        hidden = hidden[valid]
        normalised, *first = oracles.batch_norm(hidden, self.norm1.weight, self.norm1.bias)
        second = oracles.moments(F.linear(normalised, self.fc2.weight, self.fc2.bias))
        return [*first, *second]


@pytest.fixture
def model():
    model = Network().double()
    for norm in (model.norm1, model.norm2):  # far from the batches', to show if they are used
        norm.population.set(5 + torch.rand(norm.weight.shape), 9 + torch.rand(norm.weight.shape))
    return model


def forward(model, batch):
    return model(*batch)


def make_batches(lengths=((3, 2), (5, 1, 4), (1,))):
    batches = []
    for part in lengths:
        valid = oracles.real_tokens(6, list(part))
        batches.append((3 * torch.randn(*valid.shape, 4, dtype=torch.double), valid))
    return batches


def test_batch_norms_are_named_in_the_models_order(model):
    assert batch_norms(model) == {"norm1": model.norm1, "norm2": model.norm2}
    assert list(batch_norms(nn.Sequential(model.norm2, model.norm1))) == ["0", "1"]
    assert batch_norms(nn.Linear(2, 2)) == {}


@pytest.mark.parametrize("mode", [True, False], ids=["from training", "from evaluation"])
def test_moments_are_those_of_training_without_dropout(model, mode):
    batches = make_batches()
    layers = collect_moments(model.train(mode), batches, forward)
    expected = [model.moments_by_hand(*batch) for batch in batches]
    assert list(layers) == ["norm1", "norm2"]
    for index, moments in enumerate(layers.values()):
        mean, var = (torch.stack([row[2 * index + i] for row in expected]) for i in (0, 1))
        torch.testing.assert_close(moments.mean, mean)  # fp64 rounding
        torch.testing.assert_close(moments.var, var)
        assert moments.count.tolist() == [5, 10, 1]
        assert not moments.mean.requires_grad


def test_moments_are_in_float64_whatever_the_model(model):
    x, valid = make_batches()[0]
    moments = collect_moments(model.float(), [(x.float(), valid)], forward)["norm1"]
    assert moments.mean.dtype == moments.var.dtype == moments.count.dtype == torch.float64


def test_dropout_is_on_when_asked_for(model):
    x, valid = make_batches()[0]
    torch.manual_seed(7)
    layers = collect_moments(model.eval(), [(x, valid)], forward, dropout=True)
    torch.manual_seed(7)  # the first draw is the same one
    keep = F.dropout(torch.ones(*valid.shape, 6, dtype=torch.double), 0.3)
    mean1, var1, mean2, var2 = model.moments_by_hand(x, valid, keep)
    torch.testing.assert_close(layers["norm1"].mean[0], mean1)
    torch.testing.assert_close(layers["norm1"].var[0], var1)
    torch.testing.assert_close(layers["norm2"].mean[0], mean2)
    torch.testing.assert_close(layers["norm2"].var[0], var2)


def disturbed(model, action):
    """Modes, RNG state and state dict before and after an action."""
    states = []
    for step in (lambda: None, action):
        step()
        modes = [module.training for module in model.modules()]
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        states.append((modes, torch.get_rng_state(), weights))
    return states


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("frozen_part", ["", "norm1", "dropout"])
@pytest.mark.parametrize("mode", [True, False])
def test_leaves_the_model_and_the_generator_alone(model, dropout, frozen_part, mode):
    model.train(mode)
    if frozen_part:
        model.get_submodule(frozen_part).train(not mode)
    before, after = disturbed(
        model, lambda: collect_moments(model, make_batches_without_rng(), forward, dropout)
    )
    assert before[0] == after[0]
    assert torch.equal(before[1], after[1])
    assert all(torch.equal(before[2][name], value) for name, value in after[2].items())
    assert all(parameter.grad is None for parameter in model.parameters())


def make_batches_without_rng():
    valid = oracles.real_tokens(6, [6, 2])
    return [(torch.linspace(-1, 2, 48, dtype=torch.double).view(6, 2, 4).sin(), valid)] * 2


def test_restores_everything_when_a_forward_fails(model):
    model.eval()

    def broken(model, batch):
        forward(model, batch)
        raise KeyError

    def action():
        with pytest.raises(KeyError):
            collect_moments(model, make_batches_without_rng(), broken, dropout=True)

    before, after = disturbed(model, action)
    assert before[0] == after[0]
    assert torch.equal(before[1], after[1])
    assert all(torch.equal(before[2][name], value) for name, value in after[2].items())


def test_skipped_layers_and_empty_batches_are_left_out(model):
    (x, valid), (y, _), _ = make_batches(((3, 2), (6, 6), (1,)))
    batches = [(x, valid), (y, None, True), (x, torch.zeros_like(valid))]
    layers = collect_moments(model, batches, forward)
    assert layers["norm1"].count.tolist() == [5, 12]
    assert layers["norm2"].count.tolist() == [5]
    assert list(collect_moments(model, [(x, valid, True)], forward)) == ["norm1"]
    assert collect_moments(model, [], forward) == {}


def test_a_layer_that_runs_twice_counts_twice(model):
    x, valid = make_batches()[0]

    def twice(model, batch):
        model(*batch)
        model(2 * batch[0], batch[1])

    moments = collect_moments(model, [(x, valid)], twice)["norm1"]
    expected = [model.moments_by_hand(factor * x, valid)[0] for factor in (1, 2)]
    torch.testing.assert_close(moments.mean, torch.stack(expected))


def test_options_of_the_norm_do_not_matter_for_its_own_moments():
    x = torch.randn(9, 3)
    norms = [BatchNorm(3, BatchNormOptions(0.9, 0.1, "clamp")), BatchNorm(3)]
    first, second = (collect_moments(norm, [(x,)], forward)[""] for norm in norms)
    assert torch.equal(first.mean, second.mean) and torch.equal(first.var, second.var)


def test_other_norms_divide_by_the_batch_and_are_reported_only_where_named():
    model = nn.Sequential(PowerNorm(3, PowerNormOptions(warmup=0)), BatchNorm(3)).double().eval()
    model[0].population.running_square.fill_(4.0)
    x = torch.randn(9, 3, dtype=torch.double) + 1
    divided = x / torch.sqrt(x.square().mean(0) + 1e-5)

    def run(model, batch):
        return model(batch)

    alone = collect_moments(model, [x], run)
    assert list(alone) == ["1"]
    torch.testing.assert_close(alone["1"].mean[0], divided.mean(0))
    norms = population_norms(model)
    assert list(norms) == ["0", "1"]
    both = collect_moments(model, [x], run, norms=norms)
    torch.testing.assert_close(both["0"].var[0], x.square().mean(0))
    assert not both["0"].mean.any()
    torch.testing.assert_close(both["1"].mean[0], divided.mean(0))
