"""Recorders and flags: what holds inside a ``with`` block, and nothing after it."""

import contextlib

import pytest
import torch

from rbn_fairseq.norms import (
    NORMS,
    BatchNorm,
    BatchNormOptions,
    PopulationNorm,
    dummy_batch,
    freeze_statistics,
    lay_out,
    record_gaps,
    record_moments,
    scope,
)
from rbn_fairseq.norms.quadratic import QuadraticNorm


def test_a_gap_holds_the_statistics_of_batch_and_population():
    norm = BatchNorm(3, BatchNormOptions(momentum=0.25)).double()
    norm.population.set(torch.randn(3), torch.rand(3))
    old_mean, old_var = (buffer.clone() for buffer in norm.buffers())
    x = torch.randn(5, 2, 3, dtype=torch.double, requires_grad=True)
    with record_gaps() as gaps:
        norm(x)
    (gap,) = gaps
    mean, var = x.mean((0, 1)), x.var((0, 1), correction=0)
    expected = {
        "batch_mean": mean,
        "batch_var": var,
        "count": torch.tensor(10.0, dtype=torch.double),
        "mean_before": old_mean,
        "var_before": old_var,
        "mean_after": 0.75 * old_mean + 0.25 * mean,
        "var_after": 0.75 * old_var + 0.25 * var,
    }
    for name, value in expected.items():
        torch.testing.assert_close(getattr(gap, name), value)  # fp64 rounding
    assert (gap.norm, gap.share) == (norm, 1)
    of_batch = {name for name in expected if getattr(gap, name).requires_grad}
    assert of_batch == {"batch_mean", "batch_var"}
    tensors = [value for value in vars(gap).values() if isinstance(value, torch.Tensor)]
    copies = [tensor.clone() for tensor in tensors]
    norm(x + 1)  # later batches leave it as it was
    assert all(map(torch.equal, tensors, copies))


def test_gaps_come_in_the_order_of_the_forwards():
    first, second = BatchNorm(3), BatchNorm(3)
    with record_gaps() as gaps:
        second(first(torch.randn(5, 3)))
        first(torch.randn(5, 3))
    assert [gap.norm for gap in gaps] == [first, second, first]
    assert torch.equal(gaps[2].mean_before, gaps[0].mean_after)  # two forwards, two updates
    assert not torch.equal(gaps[2].mean_after, gaps[0].mean_after)


def test_nested_recorders_each_get_what_runs_inside_them():
    norm, x = BatchNorm(3), torch.randn(5, 3)
    with record_gaps() as outer:
        norm(x)
        with record_gaps() as inner:
            norm(x)
        norm(x)
    norm(x)
    assert len(outer) == 3
    assert inner == outer[1:2]


def test_frozen_gaps_stand_before_and_after_on_the_same_population():
    norm = BatchNorm(3)
    with record_gaps() as gaps, freeze_statistics():
        norm(torch.randn(5, 3))
    assert torch.equal(gaps[0].mean_after, gaps[0].mean_before)
    assert torch.equal(gaps[0].var_after, gaps[0].var_before)


@pytest.mark.parametrize("block", [freeze_statistics, dummy_batch, record_gaps, record_moments])
@pytest.mark.parametrize("depth", [1, 2])
def test_blocks_end_also_when_they_fail(block, depth):
    norm, x = BatchNorm(3), torch.randn(5, 3)
    with contextlib.suppress(KeyError), contextlib.ExitStack() as stack:
        for _ in range(depth):
            stack.enter_context(block())
        raise KeyError
    assert (scope.recorders.get(), scope.moment_recorders.get()) == ((), ())
    assert (scope.frozen.get(), scope.dummy.get()) == (False, False)
    norm(x)
    torch.testing.assert_close(norm.population.running_mean, 0.05 * x.mean(0))


def test_an_inner_block_does_not_end_the_outer_one():
    norm, x = BatchNorm(3), torch.randn(5, 3)
    with freeze_statistics():
        with freeze_statistics():
            pass
        norm(x)
    assert torch.equal(norm.population.running_mean, torch.zeros(3))


@pytest.mark.parametrize(
    "kind", [kind for kind in NORMS.values() if issubclass(kind, PopulationNorm)]
)
def test_moments_of_every_norm_with_running_statistics(kind):
    norm, x = kind(3).double(), torch.randn(5, 2, 3, dtype=torch.double) + 1
    (layout,) = lay_out(torch.ones(2, 5, dtype=torch.bool))
    with record_moments() as records:
        norm(x)
        norm(x.view(10, 3), layout)
        with dummy_batch():
            norm(x.view(10, 3), layout)
        norm.eval()(x)  # not in training: nothing recorded
    norm.train()(x)
    record, laid_out, dummy = records
    assert record.lengths is None  # nobody has told them
    assert laid_out.lengths.tolist() == [5, 5] and dummy.lengths.tolist() == []
    assert dummy.moments.n == 0
    mean, var, count, *_ = record.moments
    about_zero = issubclass(kind, QuadraticNorm)
    torch.testing.assert_close(mean, x.mean((0, 1)) * (not about_zero))
    squares = (x - mean).square().mean((0, 1))
    torch.testing.assert_close(var, squares)
    assert (record.norm, count.item()) == (norm, 10)
    assert not mean.requires_grad and not var.requires_grad
