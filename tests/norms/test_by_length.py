"""Batch norm by length, against batch norm, and against sums over single tokens in float64."""

import numpy as np
import pytest
import torch

import by_sentence
import oracles
from agreement import randomise
from rbn_fairseq.norms import (
    BatchNorm,
    BatchNormOptions,
    LengthBins,
    ValidTokens,
    dummy_batch,
    freeze_statistics,
    lay_out,
    record_gaps,
    record_moments,
)
from rbn_fairseq.norms.moments import BinMoments

C, M = 3, 0.05  # channels, momentum
EDGES, CENTRES = (1, 3, 5, 9), (1.5, 4, 6)
BATCHES = [  # sentence lengths; the bins are 1 and 2, 3 and 4, 5 and longer
    [2, 4, 7, 0, 1],
    [3, 3, 4],  # all in one bin
    [5, 5],  # without padding
    [20, 3],  # longer than any edge
    [1, 8, 8],
]
CLOSE = {"rtol": 1e-5, "atol": 1e-6}  # fp32 sums of some 50 tokens of size 3


def make(channels=C, **options):
    norm = randomise(BatchNorm(channels, BatchNormOptions(length_bins=len(CENTRES), **options)))
    norm.population.set(torch.randn(channels), 0.1 + torch.rand(channels))
    norm.population.set_bins(LengthBins(np.array(EDGES, float), np.array(CENTRES, float)))
    return norm


def plain(norm):
    """The ordinary batch norm of the same parameters and global statistics."""
    options = BatchNormOptions(momentum=norm.options.momentum, eps_mode=norm.options.eps_mode)
    other = BatchNorm(len(norm.weight), options).to(norm.weight.device)
    other.load_state_dict(norm.state_dict(), strict=False)
    return other


def data(lengths, left_pad=False, channels=C):
    """Activations of these sentences, by length of another kind; NaN at padding; the mask."""
    valid = oracles.real_tokens(max(lengths), lengths, left_pad)
    x = torch.randn(*valid.shape, channels) * (1 + torch.tensor(lengths).view(-1, 1) / 5)
    x = x + 3 - torch.tensor(lengths).view(-1, 1) / 3
    return x.masked_fill(~valid.unsqueeze(2), torch.nan), valid


def view(valid):
    return ValidTokens(None if valid.all() else valid)


def buffers(norm):
    return {name: buffer.clone() for name, buffer in norm.population.named_buffers()}


@pytest.mark.parametrize("eps_mode", ["add", "clamp"])
def test_training_is_that_of_batch_norm_bit_for_bit(eps_mode):
    norm = make(eps_mode=eps_mode)
    other = plain(norm)
    for lengths in BATCHES:
        x, valid = data(lengths)
        upstream, results = torch.randn(3, *x.shape), []
        for one in (norm, other):
            with record_gaps() as gaps:
                y = one(x := x.detach().requires_grad_(), ValidTokens(valid))
            outputs = y, gaps[0].batch_mean, gaps[0].batch_var
            at = upstream[0], upstream[1, 0, 0], upstream[2, 0, 0]
            gradients = torch.autograd.grad(outputs, (x, *one.parameters()), at)
            results.append((*outputs, *gradients, *one.population.get()))
        assert all(map(torch.equal, *results))


@pytest.mark.parametrize("left_pad", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bins_keep_decayed_sums(left_pad, dtype):
    norm = make(momentum=M).to(dtype)
    # In fp64 the momentum's rounding to fp32, 1e-8, would be seen.
    close = CLOSE if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    for lengths in BATCHES * 3:
        x, valid = data(lengths, left_pad)
        x = x.to(dtype)
        sentences = zip(x.unbind(1), valid.unbind(1), strict=True)
        tokens = [sentence[mask] for sentence, mask in sentences if mask.any()]
        expected = by_sentence.moved_bins(norm, tokens)
        norm(x, view(valid))
        for name, value in expected.items():
            torch.testing.assert_close(getattr(norm.population, name), value, **close)


def seen():
    """A norm in evaluation whose bins have seen something."""
    norm = make()
    for lengths in BATCHES:
        x, valid = data(lengths)
        norm(x, view(valid))
    return norm.eval()


@torch.no_grad()
def test_evaluation_interpolates_between_the_centres_of_bins():
    norm = seen()
    for length in (1, 2, 3, 4, 5, 6, 7, 30):  # below the first centre, between, at, beyond
        mean, var = map(torch.from_numpy, by_sentence.by_bin(norm, [length]))
        x = torch.randn(length, 1, C)
        exact = (x - mean) / oracles.std(var, 1e-5, "add") * norm.weight + norm.bias
        torch.testing.assert_close(norm(x).double(), exact, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_sentence_is_evaluated_alike_in_any_batch(dtype):
    norm, lengths = seen(), [4, 1, 9, 3, 3]
    x, valid = data(lengths)
    x = x.to(dtype)
    together = norm(x, view(valid))
    reverse = [*range(len(lengths))][::-1]
    turned = norm(x[:, reverse], view(valid[:, reverse]))[:, reverse]
    wider = torch.cat([torch.full((2, *x.shape[1:]), torch.inf, dtype=dtype), x])  # on the left
    wider = norm(wider, view(torch.cat([torch.zeros_like(valid[:2]), valid])))[2:]
    for b, length in enumerate(lengths):
        alone = norm(x[:length, b : b + 1])[:, 0]
        for batch in (together, turned, wider):
            assert torch.equal(batch[:length, b], alone)


@torch.no_grad()
def test_bins_without_anything_evaluate_as_batch_norm():
    norm = make().eval()
    x, valid = data([1, 4, 9])
    expected = plain(norm).eval()(x, view(valid))[valid]
    torch.testing.assert_close(norm(x, view(valid))[valid], expected, rtol=1e-6, atol=1e-6)


def test_before_edges_are_set_all_lengths_are_in_one_bin():
    norm = BatchNorm(C, BatchNormOptions(length_bins=4, momentum=1))
    x, valid = data([1, 4, 9])
    norm(x, view(valid))
    assert norm.population.bin_weight.count_nonzero() == 1
    expected = oracles.batch_norm(x[valid], norm.weight, norm.bias)[0]
    torch.testing.assert_close(norm.eval()(x, view(valid))[valid], expected, **CLOSE)


def test_new_edges_forget_what_was_seen():
    norm = seen()
    norm.population.set_bins(LengthBins(np.array([2.0, 3, 4, 5]), np.array([2.0, 3, 4])))
    after = buffers(norm)
    assert after["edges"].tolist() == [2, 3, 4, 5] and after["centres"].tolist() == [2, 3, 4]
    assert not any(after[name].any() for name in ("bin_weight", "bin_mean", "bin_var"))


def test_moments_that_are_set_are_looked_up():
    population = make().population
    mean, var, n = torch.randn(3, C).double(), torch.rand(3, C).double(), torch.tensor([1, 0, 3.0])
    population.set(*population.get(), BinMoments(mean, var, n.double()))
    means, variances = population.by_bin()
    torch.testing.assert_close(means[[0, 2]].double(), mean[[0, 2]], **CLOSE)
    torch.testing.assert_close(variances[[0, 2]].double(), var[[0, 2]], **CLOSE)
    assert torch.equal(means[1], population.running_mean)
    assert population.bin_weight.tolist() == [0.25, 0, 0.75]  # as of one batch of all


def test_a_gap_is_to_what_the_bins_expect_of_these_lengths():
    norm, lengths = seen().train(), [4, 2, 9, 3]
    x, valid = data(lengths)
    before = by_sentence.expected(norm, lengths)
    with record_gaps() as gaps:
        norm(x.requires_grad_(), view(valid))
    gap, after = gaps[0], by_sentence.expected(norm, lengths)
    assert (before[0] - after[0]).abs().min() > 1e-3
    expected = (gap.mean_before, gap.var_before, gap.mean_after, gap.var_after)
    for actual, exact in zip(expected, (*before, *after), strict=True):
        torch.testing.assert_close(actual.double(), exact, **CLOSE)
        assert not actual.requires_grad
    assert gap.batch_mean.requires_grad and gap.count == sum(lengths)


def test_without_a_real_token_the_gap_is_to_all():
    norm = seen().train()
    with record_gaps() as gaps, dummy_batch():
        norm(torch.randn(4, 2, C))
    expected = norm.population.get()
    gap = gaps[0]
    for pair in ((gap.mean_before, gap.var_before), (gap.batch_mean, gap.batch_var)):
        assert all(map(torch.equal, pair, expected))


@pytest.mark.parametrize("lengths", BATCHES, ids=str)
def test_measurements_have_the_moments_of_bins(lengths):
    norm = make()
    x, valid = data(lengths)
    with record_moments() as records:
        with freeze_statistics():
            norm(x, view(valid))
        norm(x, view(valid))
    measured, trained = (record.moments.bins for record in records)
    assert trained is None  # training has no use for them
    for g, tokens in enumerate(oracles.by_bin(x, valid, EDGES)):
        assert measured.n[g] == len(tokens)
        mean, var = oracles.moments(tokens) if len(tokens) else torch.zeros(2, C)
        torch.testing.assert_close(measured.mean[g].double(), mean.double(), **CLOSE)
        torch.testing.assert_close(measured.var[g].double(), var.double(), **CLOSE)


@torch.no_grad()
def test_evaluation_of_rows_compiles_whole():
    norm = seen()
    compiled = torch.compile(norm, backend="eager", fullgraph=True)
    for lengths in ([4, 2, 9], [4, 2, 9], [3, 5]):
        x, valid = data(lengths)
        (layout,) = lay_out(valid, time_first=True)
        rows = layout.pack(x)
        assert torch.equal(compiled(rows, layout), norm(rows, layout))
        norm.population.bin_mean.add_(1)
    x, _ = data([5, 5])
    assert torch.equal(compiled(x), norm(x))
