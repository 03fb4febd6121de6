"""Batch norm by length on two processes, against one process on the joined batch."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

import oracles
from processes import WORLD, counting_collectives
from rbn_fairseq.diagnostics import collect_moments, conditional_tid
from rbn_fairseq.norms import (
    BatchNorm,
    BatchNormOptions,
    LengthBins,
    ValidTokens,
    dummy_batch,
    freeze_statistics,
    record_gaps,
    record_moments,
)
from rbn_fairseq.norms.moments import mean_over_processes

CHANNELS, TIME = 4, 9
CASES = {  # sentence lengths on each rank, batch after batch; bins: to 2, to 4, longer
    "different bins": [[[2, 1], [4, 9]], [[9, 3, 3], [1]]],
    "one bin": [[[3, 4], [4]], [[4], [3]]],
    "one bin on each rank": [[[2, 1], [9, 9]], [[9], [2]]],
    "no token on rank 1": [[[2, 4], [0, 0]], [[7], [0]]],
    "no token anywhere": [[[0], [0, 0]]],
    "four batches": [[[3, 5], [1, 2]], [[2], [6]], [[4, 1], [0, 0]], [[6], [5]]],
}


def make_norm(sync):
    norm = BatchNorm(CHANNELS, BatchNormOptions(length_bins=3), sync).double()
    generator = torch.Generator().manual_seed(0)
    for name in ("running_mean", "running_var"):
        values = torch.rand(CHANNELS, dtype=torch.double, generator=generator)
        getattr(norm.population, name).copy_(0.5 + values)
    norm.population.set_bins(LengthBins(np.array([1.0, 3, 5, 9]), np.array([1.5, 3.5, 7])))
    return norm


def data(case, step, rank):
    """One rank's batch, its mask, and what arrives at y; NaN at padding."""
    valid = oracles.real_tokens(TIME, CASES[case][step][rank])
    generator = torch.Generator().manual_seed(1000 * len(case) + 10 * step + rank)
    x, upstream = torch.randn(
        2, *valid.shape, CHANNELS, dtype=torch.double, generator=generator
    ).unbind()
    x = x * (1 + valid.sum(0).unsqueeze(1)) + rank
    return x.masked_fill(~valid.unsqueeze(2), torch.nan), valid, upstream


def train(norm, batches):
    """Everything that can be seen of training on batches of (x, valid, upstream)."""
    seen = []
    for x, valid, upstream in batches:
        x.requires_grad_()
        with freeze_statistics(), record_moments() as records:
            norm(x, ValidTokens(valid))
        with record_gaps() as gaps:
            y = norm(x, ValidTokens(valid))
        gap = gaps[0]
        penalty = (gap.batch_mean - gap.mean_before).square().sum() * gap.share
        (dx,) = torch.autograd.grad((y * upstream)[valid].sum() + penalty, x)
        seen.append({
            "y": y.detach()[valid],
            "x": dx[valid],
            "gap": [gap.mean_before, gap.var_before, gap.mean_after, gap.var_after],
            "bins": list(records[0].moments.bins),
            "buffers": {name: buffer.clone() for name, buffer in norm.named_buffers()},
        })  # fmt: skip
    return seen


def averaged(rank):
    """Buffers of a norm that does not synchronise, averaged over the processes; collectives."""
    calls, norm = counting_collectives(), make_norm(sync=False)
    train(norm, [data("different bins", 0, rank)])
    number = len(calls)
    mean_over_processes(list(norm.population.buffers()))
    return {"calls": number, **norm.population.state_dict()}


def measured(norm, batches):
    """Mean lengths, TID within bins, and the population of each bin."""
    moments = collect_moments(
        norm, batches, lambda norm, batch: norm(batch[0], ValidTokens(batch[1]))
    )
    values = torch.tensor(conditional_tid(moments[""], 2), dtype=torch.double)
    return [moments[""].length, values, *moments[""].bins.estimate("pooled")]


def work(rank):
    results = {
        case: train(make_norm(sync=True), [data(case, step, rank) for step in range(len(steps))])
        for case, steps in CASES.items()
    }
    with dummy_batch() if rank == 1 else nullcontext():
        results["dummy on rank 1"] = train(make_norm(sync=True), [data("different bins", 0, rank)])
    batches = [data("four batches", step, rank) for step in range(4)]
    return {**results, "averaged": averaged(rank), "measured": measured(make_norm(True), batches)}


def joined(case, step):
    """The sentences of all ranks side by side."""
    parts = zip(*(data(case, step, rank) for rank in range(WORLD)), strict=True)
    return [torch.cat(part, 1) for part in parts]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_are_one_on_the_joined_batch(ranks, case):
    batches = [joined(case, step) for step in range(len(CASES[case]))]
    expected = train(make_norm(sync=False), batches)
    close = {"rtol": 1e-11, "atol": 1e-11}  # fp64 rounding
    for step, exact in enumerate(expected):
        both = [results[case][step] for results in ranks]
        for name in ("gap", "bins", "buffers"):
            for result in both:
                torch.testing.assert_close(result[name], exact[name], **close)
        masks = [data(case, step, rank)[1] for rank in range(WORLD)]
        for name in ("y", "x"):
            whole = torch.zeros(*batches[step][1].shape, CHANNELS, dtype=torch.double)
            whole[batches[step][1]] = exact[name]
            parts = whole.split([mask.shape[1] for mask in masks], 1)
            for result, part, mask in zip(both, parts, masks, strict=True):
                torch.testing.assert_close(result[name], part[mask], **close)
        # Bit for bit, so that the processes' models do not drift apart.
        for buffer, other in zip(*(result["buffers"].values() for result in both), strict=True):
            assert torch.equal(buffer, other)


def test_a_dummy_batch_counts_nowhere(ranks):
    (exact,) = train(make_norm(sync=False), [data("different bins", 0, 0)])
    (real,), (dummy,) = (results["dummy on rank 1"] for results in ranks)
    close = {"rtol": 1e-11, "atol": 1e-11}  # fp64 rounding
    for name in ("gap", "bins", "buffers"):
        for result in (real, dummy):
            torch.testing.assert_close(result[name], exact[name], **close)
    torch.testing.assert_close(real["x"], exact["x"], **close)
    assert not dummy["x"].any()
    assert all(
        torch.equal(real["buffers"][name], dummy["buffers"][name]) for name in real["buffers"]
    )


def test_without_sync_the_mean_of_the_buffers_weighs_bins_by_their_tokens(ranks):
    by_length = [{}, {}, {}]  # of each rank's tokens by bin
    for rank in range(WORLD):
        x, valid, _ = data("different bins", 0, rank)
        for sentence, mask in zip(x.unbind(1), valid.unbind(1), strict=True):
            length = int(mask.sum())
            of_rank = by_length[(length >= 3) + (length >= 5)].setdefault(rank, [])
            of_rank += [(token, 1 / int(valid.sum())) for token in sentence[mask]]
    results = [results["averaged"] for results in ranks]
    assert [result["calls"] for result in results] == [0, 0]
    for result in results:
        population = make_norm(sync=False).population
        population.load_state_dict({n: v for n, v in result.items() if n != "calls"})
        assert result["edges"].tolist() == [1, 3, 5, 9]
        for g, of_ranks in enumerate(by_length):
            parts = [sum(share for _, share in tokens) for tokens in of_ranks.values()]
            moments = [
                oracles.moments(torch.stack([t for t, _ in tokens])) for tokens in of_ranks.values()
            ]
            for held, values in zip(population.by_bin(), zip(*moments, strict=True), strict=True):
                mean = sum(p * v for p, v in zip(parts, values, strict=True)) / sum(parts)
                torch.testing.assert_close(held[g], mean)  # fp64 rounding
            torch.testing.assert_close(result["bin_weight"][g].item(), 0.05 * sum(parts) / WORLD)


def test_what_is_measured_is_that_of_joined_batches(ranks):
    batches = [joined("four batches", step) for step in range(4)]
    exact = measured(make_norm(sync=False), batches)
    for results in ranks:
        torch.testing.assert_close(results["measured"], exact)  # fp64 rounding
    # Each token in a sentence of its own length.
    assert exact[0].tolist() == pytest.approx([39 / 11, 40 / 8, 17 / 5, 61 / 11])
