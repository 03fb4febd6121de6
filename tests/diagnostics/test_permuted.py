"""Virtual batches of shuffled tokens, against moments of the tokens and known distributions."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import oracles
from rbn_fairseq.diagnostics import collect_moments, collect_permuted_moments, independent_tid, tid
from rbn_fairseq.norms import BatchNorm, ValidTokens


class Network(nn.Module):
    """Two batch norms; the first is called with the tokens by name, the second by place."""

    def __init__(self):
        super().__init__()
        self.first, self.second = BatchNorm(3), BatchNorm(5)
        self.fc, self.dropout = nn.Linear(3, 5), nn.Dropout(0.5)

    def forward(self, x, valid=None):
        tokens = None if valid is None else ValidTokens(valid)
        return self.second(self.fc(self.dropout(self.first(x, tokens=tokens))), tokens)


def forward(model, batch):
    model(*batch)


@pytest.fixture
def model():
    model = Network().double()
    for norm in (model.first, model.second):  # far from the batches', to show if they are used
        norm.population.set(torch.full_like(norm.weight, 7.0), torch.full_like(norm.weight, 9.0))
    return model.eval()


def make_batches(lengths=((3, 2), (5, 1, 4), (1,))):
    """Batches of different means, so that it shows whose statistics normalise."""
    batches = []
    for place, part in enumerate(lengths):
        valid = oracles.real_tokens(6, list(part))
        batches.append((place + 3 * torch.randn(*valid.shape, 3, dtype=torch.double), valid))
    return batches


def inputs_by_hand(model, batches):
    """The real tokens that reach both norms, when the first normalises by batch."""
    first = [x[valid] for x, valid in batches]
    normalised = [
        oracles.batch_norm(tokens, model.first.weight, model.first.bias)[0] for tokens in first
    ]
    second = [F.linear(tokens, model.fc.weight, model.fc.bias) for tokens in normalised]
    return {"first": torch.cat(first), "second": torch.cat(second)}


def test_one_virtual_batch_holds_all_real_tokens(model):
    batches = make_batches()
    found = collect_permuted_moments(model, batches, forward, 1, seed=1)
    expected = inputs_by_hand(model, batches)
    assert list(found) == list(expected)
    for name, tokens in expected.items():
        mean, var = oracles.moments(tokens)
        torch.testing.assert_close(found[name].mean, mean[None])  # fp64 rounding
        torch.testing.assert_close(found[name].var, var[None])
        assert found[name].count.tolist() == [16]


def test_tokens_that_are_alone_are_their_batchs_mean(model):
    batches = make_batches()
    found = collect_permuted_moments(model, batches, forward, 100_000, seed=1)
    for name, tokens in inputs_by_hand(model, batches).items():
        assert found[name].count.tolist() == [1] * 16  # empty ones are left out
        ours, theirs = (rows[rows[:, 0].argsort()] for rows in (found[name].mean, tokens))
        torch.testing.assert_close(ours, theirs)
        # Mean of squares less square of the mean, of numbers of the order of 10 in fp64.
        assert (found[name].var >= 0).all() and found[name].var.max() < 1e-12


def test_means_and_squares_add_up_to_those_of_all_tokens(model):
    batches = make_batches([(6, 6, 3)] * 10)
    found = collect_permuted_moments(model, batches, forward, 7, seed=1)
    for name, tokens in inputs_by_hand(model, batches).items():
        count = found[name].count.unsqueeze(1)
        torch.testing.assert_close((count * found[name].mean).sum(0), tokens.sum(0))
        squares = count * (found[name].var + found[name].mean.square())
        torch.testing.assert_close(squares.sum(0), tokens.square().sum(0))
        assert found[name].count.sum() == len(tokens)


def clustered(number=60, tokens=100, channels=16):
    """Batches of which each has a mean of its own, five standard deviations away."""
    noise = torch.randn(number, tokens, 1, channels, dtype=torch.double)
    return [(x,) for x in noise + 5 * torch.randn(number, 1, 1, channels, dtype=torch.double)]


def call(model, batch):
    model(*batch)


def test_dealt_tokens_have_the_tid_of_independent_ones():
    norm, batches = BatchNorm(16).double(), clustered()
    assert tid(collect_moments(norm, batches, call)[""]).mean > 0.9
    found = collect_permuted_moments(norm, batches, call, 60, seed=1)[""]
    # 16 channels x 60 batches: 3 % of error in the mean's TID; the closed form for normal tokens
    # is about right for a mixture of normals. 1 / (2 * 60) is due to the mean of the same batches.
    assert tid(found).mean == pytest.approx(0.1, rel=0.1)
    assert tid(found).var == pytest.approx(0.1 / math.sqrt(2), rel=0.2)
    # Numbers of tokens are binomial: mean 100, standard deviation 9.9; that of 60 within 5 errors.
    assert found.count.mean() == 100
    assert 9.9 * (1 - 0.46) < found.count.std() < 9.9 * (1 + 0.46)


def test_a_large_mean_takes_no_variance_away():
    norm = BatchNorm(2).double()
    x = 1e8 + torch.randn(500, 1, 2, dtype=torch.double)
    found = collect_permuted_moments(norm, [(x,)] * 2, call, 1, seed=1)[""]
    mean, var = oracles.moments(x.squeeze(1))
    # fp64 has 1e-8 left beside 1e8; sums of squares as they are would have errors of 1.
    torch.testing.assert_close(found.mean[0], mean, rtol=1e-14, atol=0)
    torch.testing.assert_close(found.var[0], var, rtol=1e-6, atol=0)


def test_the_seed_decides(model):
    batches = make_batches()
    one, again, other = (
        collect_permuted_moments(model, batches, forward, 4, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(one["second"].mean, again["second"].mean)
    assert one["second"].count.tolist() != other["second"].count.tolist() or not torch.equal(
        one["second"].mean, other["second"].mean
    )


def state(model):
    modes = [module.training for module in model.modules()]
    values = {name: value.clone() for name, value in model.state_dict().items()}
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    return modes, hooks, torch.get_rng_state(), values


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_leaves_model_and_generator_alone(model, dropout, fails):
    def run(model, batch):
        forward(model, batch)
        if fails:
            raise KeyError

    batches = make_batches()
    before = state(model)
    try:
        collect_permuted_moments(model, batches, run, 4, seed=1, dropout=dropout)
    except KeyError:
        assert fails
    after = state(model)
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])
    assert all(torch.equal(before[3][name], value) for name, value in after[3].items())


def test_dropout_is_on_when_asked_for(model):
    batches = make_batches()
    off, on = (
        collect_permuted_moments(model, batches, forward, 1, seed=1, dropout=dropout)
        for dropout in (False, True)
    )
    assert torch.equal(off["first"].mean, on["first"].mean)
    assert not torch.allclose(off["second"].mean, on["second"].mean)


def test_layers_without_tokens_are_left_out(model):
    x, valid = make_batches()[0]
    assert collect_permuted_moments(model, [(x, valid & False)], forward, 4, seed=1) == {}
    assert collect_permuted_moments(model, [], forward, 4, seed=1) == {}
    only = {"second": model.second}
    found = collect_permuted_moments(model, [(x, valid)], forward, 4, seed=1, norms=only)
    assert list(found) == ["second"]


def test_without_padding(model):
    x, valid = make_batches()[0]
    whole = collect_permuted_moments(model, [(x,)], forward, 3, seed=1)
    marked = collect_permuted_moments(model, [(x, valid | True)], forward, 3, seed=1)
    torch.testing.assert_close(whole["second"].mean, marked["second"].mean)


def test_refuses_no_batches(model):
    with pytest.raises(ValueError, match="at least 1, but is 0"):
        collect_permuted_moments(model, [], forward, 0, seed=1)


def test_independent_tid_is_a_mean_over_batches():
    half, quarter = 1 / math.sqrt(4), 1 / math.sqrt(16)
    expected = (half + quarter) / 2
    found = independent_tid(torch.tensor([4, 16]))
    assert found == pytest.approx((expected, expected / math.sqrt(2)), rel=1e-12)


def test_independent_tid_is_that_of_independent_normal_tokens():
    norm = BatchNorm(64).double()
    sizes = [100, 400] * 20
    batches = [(3 + 2 * torch.randn(size, 1, 64, dtype=torch.double),) for size in sizes]
    # As in test_tid.py: errors of 1.4 %, and 1.3 % due to the mean of the same batches.
    expected = pytest.approx(independent_tid(torch.tensor(sizes)), rel=0.06)
    assert tid(collect_moments(norm, batches, call)[""]) == expected


def test_torchs_own_norms():
    norm, x = nn.BatchNorm2d(3), torch.randn(4, 3, 5, 2)
    before = norm.running_mean.clone()
    moments = collect_permuted_moments(norm, [x], lambda norm, x: norm(x), 1, 1)[""]
    mean, var = oracles.moments(x.movedim(1, -1).reshape(-1, 3).double())
    torch.testing.assert_close(moments.mean[0], mean)
    torch.testing.assert_close(moments.var[0], var)
    assert moments.count.tolist() == [40] and torch.equal(norm.running_mean, before)
