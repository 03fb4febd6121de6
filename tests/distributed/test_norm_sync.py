"""Two processes with synchronised statistics, against the definition on the joined batch."""

import contextlib

import pytest
import torch
from torch import nn

import gpu_operations
import oracles
from processes import WORLD, counting_collectives
from rbn_fairseq.criterions.penalty import RBNPenalty, RBNPenaltyConfig
from rbn_fairseq.norms import BatchNorm, ValidTokens, dummy_batch, record_gaps
from rbn_fairseq.norms.moments import mean_over_processes, process_rank

CHANNELS = 4
MEAN_WEIGHT, STD_WEIGHT = 0.3, 0.7
CASES = {  # sentence lengths on each rank, and the ranks under dummy_batch()
    "3 and 7 tokens": ([[2, 1], [4, 3]], ()),
    "equal counts": ([[4, 1], [2, 3]], ()),
    "no padding": ([[5, 5], [5]], ()),
    "no token on rank 1": ([[2, 1], [0, 0]], ()),
    "one token in all": ([[0], [1]], ()),
    "no token anywhere": ([[0], [0, 0]], ()),
    "rank 0 runs a dummy batch": ([[2, 1], [4, 3]], (0,)),
    "rank 1 runs a dummy batch": ([[2, 1], [4, 3]], (1,)),
    "both run dummy batches": ([[2, 1], [4, 3]], (0, 1)),
}
KEYS = [("torch", case, reduction) for case in CASES for reduction in ("sum", "token")]
KEYS += [
    ("gpu", case, "sum") for case in ("3 and 7 tokens", "no token on rank 1", "no token anywhere")
] + [("gpu", "rank 1 runs a dummy batch", "token")]


def data(case, rank):
    """One rank's batch: different means and spreads on the ranks; NaN at padding."""
    valid = oracles.real_tokens(5, CASES[case][0][rank])
    generator = torch.Generator().manual_seed(100 * len(case) + rank)
    x, upstream = torch.randn(2, *valid.shape, CHANNELS, dtype=torch.double, generator=generator)
    x = (x * (1 + rank) + 3 * rank).masked_fill(~valid.unsqueeze(2), torch.nan)
    return x, valid, upstream


def initial():
    """Weight, bias, population mean and population variance of every norm here."""
    rows = torch.rand(4, CHANNELS, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    return rows.unbind()


def make_norm(sync=True):
    norm = BatchNorm(CHANNELS, sync=sync).double()
    for tensor, value in zip(norm.state_dict().values(), initial(), strict=True):
        tensor.copy_(value)
    return norm


class Dot(nn.Module):
    """A criterion whose gradient at the norm's output is given."""

    def forward(self, model, sample, reduce=True):
        y = model(sample["x"], sample["tokens"])
        real = sample["tokens"].valid
        return (y * sample["upstream"])[real].sum(), sample["size"], {"y": y}


class PenalisedDot(RBNPenalty, Dot):
    pass


def step(kind, case, rank, reduction, calls):
    """One forward and backward; everything that a rank can see of it."""
    x, valid, upstream = data(case, rank)
    x, dummy = x.requires_grad_(), rank in CASES[case][1]
    size = 0 if dummy else int(valid.sum())
    sample = {"x": x, "tokens": ValidTokens(valid), "upstream": upstream, "size": size}
    norm, criterion = make_norm(), PenalisedDot()
    criterion.rbn = RBNPenaltyConfig(
        rbn_mean_weight=MEAN_WEIGHT, rbn_std_weight=STD_WEIGHT, rbn_reduction=reduction
    )
    calls.clear()
    with contextlib.ExitStack() as stack:
        if kind == "gpu":
            stack.enter_context(gpu_operations.on_the_cpu())
        if dummy:
            stack.enter_context(dummy_batch())
        gaps = stack.enter_context(record_gaps())
        loss, _, log = criterion(norm, sample)
        forward_calls, gap, counts = len(calls), gaps[0], 0.0 if dummy else 1.0
        (counts * loss).backward()  # as fairseq does with a dummy batch
    return {
        "y": log["y"].detach(),
        "x": x.grad,
        "weight": norm.weight.grad,
        "bias": norm.bias.grad,
        "population": [buffer.clone() for buffer in norm.buffers()],
        "gap": [gap.batch_mean.detach(), gap.batch_var.detach(), gap.count],
        "share": float(gap.share),
        "penalty": counts * log["rbn_penalty"],
        "calls": (forward_calls, len(calls) - forward_calls),
    }


def unsynchronised(rank, calls):
    """The collectives and the outputs of a training step without sync, of evaluation with it."""
    x, valid, _ = data("3 and 7 tokens", rank)
    calls.clear()
    with record_gaps() as gaps:
        y = make_norm(sync=False)(x.requires_grad_(), ValidTokens(valid))
    y[valid].sum().backward()
    make_norm().eval()(x)
    return {"y": y.detach(), "share": gaps[0].share, "calls": len(calls)}


def not_finite(rank):
    """Population after a batch whose statistics one rank spoils."""
    x, valid, _ = data("3 and 7 tokens", rank)
    if rank == 1:
        x[0, 0, 2] = torch.inf
    norm = make_norm()
    norm(x, ValidTokens(valid))
    return list(norm.buffers())


def averages(rank, calls):
    """Tensors that differ between ranks, averaged over them."""
    tensors = [torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor(5.0), torch.zeros(0)]
    tensors = [tensor * (1 + 2 * rank) for tensor in tensors]
    same = list(tensors)
    calls.clear()
    mean_over_processes(tensors)
    in_place = all(a is b for a, b in zip(tensors, same, strict=True))
    return {"tensors": tensors, "in place": in_place, "calls": len(calls)}


def work(rank):
    calls = counting_collectives()
    results = {key: step(*key[:2], rank, key[2], calls) for key in KEYS}
    results["unsynchronised"] = unsynchronised(rank, calls)
    results["not finite"] = not_finite(rank)
    results["averages"] = averages(rank, calls)
    results["rank"] = process_rank()
    return results


def joined(case, reduction):
    """The oracle: one process on the real tokens of both ranks.

    Per-rank outputs and input gradients are ``(n of the rank, C)``.
    """
    batches = [data(case, rank) for rank in range(WORLD)]
    dummy = [rank in CASES[case][1] for rank in range(WORLD)]
    real = [valid & (not is_dummy) for (_, valid, _), is_dummy in zip(batches, dummy, strict=True)]
    parts = [x[mask].requires_grad_() for (x, _, _), mask in zip(batches, real, strict=True)]
    at_y = torch.cat([upstream[mask] for (*_, upstream), mask in zip(batches, real, strict=True)])
    weight, bias, old_mean, old_var = initial()
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    tokens = torch.cat(parts)
    count = len(tokens)
    if count == 0:  # nothing to learn from
        zero = torch.zeros(CHANNELS, dtype=torch.double)
        mean, var, penalty = old_mean, old_var, zero.sum()
        gradients = [*map(torch.zeros_like, parts), zero, zero]
        population = (old_mean, old_var)
    else:
        y, mean, var = oracles.batch_norm(tokens, weight, bias)
        distance = (
            MEAN_WEIGHT * ((mean - old_mean) ** 2).sum()
            + STD_WEIGHT
            * ((oracles.std(var, 1e-5, "add") - oracles.std(old_var, 1e-5, "add")) ** 2).sum()
        )
        penalty = distance * (count if reduction == "token" else 1)
        loss = (y * at_y).sum() + penalty
        gradients = torch.autograd.grad(loss, [*parts, weight, bias])
        population = (0.95 * old_mean + 0.05 * mean, 0.95 * old_var + 0.05 * var)
    scale = weight / oracles.std(var, 1e-5, "add")
    return {
        "y": [((x[valid] - mean) * scale + bias).detach() for x, valid, _ in batches],
        "x": gradients[:WORLD],
        "weight": gradients[-2],
        "bias": gradients[-1],
        "population": [value.detach() for value in population],
        "gap": [mean.detach(), var.detach(), torch.tensor(count, dtype=torch.double)],
        "penalty": penalty.detach(),
    }


def close(actual, expected):
    # fp64's rounding, in the gradients times 1 / sqrt(eps) = 300 where there is one token.
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12, check_dtype=False)


@pytest.mark.parametrize(("kind", "case", "reduction"), KEYS)
def test_two_processes_are_one_on_the_joined_batch(ranks, kind, case, reduction):
    seen = [results[kind, case, reduction] for results in ranks]
    expected = joined(case, reduction)
    has_tokens = [bool(part.numel()) for part in expected["x"]]
    for rank, result in enumerate(seen):
        _, valid, _ = data(case, rank)
        close(result["y"][valid], expected["y"][rank])
        if rank in CASES[case][1]:
            valid = torch.zeros_like(valid)
        close(result["x"][valid], expected["x"][rank])
        assert torch.equal(result["x"][~valid], torch.zeros_like(result["x"][~valid]))
        for name in ("population", "gap"):
            close(result[name], expected[name])
        assert result["share"] == has_tokens[rank] / max(1, sum(has_tokens))
        assert result["calls"] == (1, 1)
    for name in ("weight", "bias", "penalty"):
        close(sum(result[name] for result in seen), expected[name])
    # Bit for bit, so that the processes' models do not drift apart.
    assert all(map(torch.equal, seen[0]["population"], seen[1]["population"]))


def test_without_sync_or_in_evaluation_nothing_is_shared(ranks):
    weight, bias, *_ = initial()
    for rank, results in enumerate(ranks):
        result = results["unsynchronised"]
        x, valid, _ = data("3 and 7 tokens", rank)
        y, _, _ = oracles.batch_norm(x[valid], weight, bias)
        torch.testing.assert_close(result["y"][valid], y)  # fp64 rounding
        assert (result["share"], result["calls"]) == (1, 0)


def test_one_rank_that_is_not_finite_moves_no_rank(ranks):
    for results in ranks:
        assert all(map(torch.equal, results["not finite"], initial()[2:]))


def test_mean_over_processes(ranks):
    for results in ranks:
        result = results["averages"]
        expected = [torch.tensor([[2.0, 4.0], [6.0, 8.0]]), torch.tensor(10.0), torch.zeros(0)]
        assert all(map(torch.equal, result["tensors"], expected))  # small whole numbers: exact
        assert result["in place"]
        assert result["calls"] == 1


def test_process_rank(ranks):
    assert [results["rank"] for results in ranks] == [0, 1]
