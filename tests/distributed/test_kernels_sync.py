"""Batch norm by its kernels on two processes, against the definition on the joined batch."""

from contextlib import nullcontext
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import oracles
from processes import WORLD, on_processes
from rbn_fairseq.norms import BatchNorm, ValidTokens, dummy_batch, kernels, record_gaps

CHANNELS = 5
CASES = {  # sentence lengths on each rank
    "3 and 7 tokens": [[2, 1], [4, 3]],
    "no token on rank 1": [[2, 1], [0, 0]],
    "no token anywhere": [[0], [0, 0]],
    "rank 1 runs a dummy batch": [[2, 1], [4, 3]],
}


def is_dummy(case, rank):
    return rank == 1 and "dummy" in case


def counted(case, rank):
    """The mask of the tokens that count."""
    valid = data(case, rank)[1]
    return torch.zeros_like(valid) if is_dummy(case, rank) else valid


def data(case, rank):
    """One rank's batch, mask and gradients of y, mean and variance; NaN at padding."""
    valid = oracles.real_tokens(5, CASES[case][rank])
    generator = torch.Generator().manual_seed(100 * len(case) + rank)
    x, at_y = torch.randn(2, *valid.shape, CHANNELS, generator=generator)
    upstream = (at_y, *torch.randn(2, CHANNELS, generator=generator))
    x = (x * (1 + rank) + 3 * rank).masked_fill(~valid.unsqueeze(2), torch.nan)
    return x, valid, upstream


def make_norm():
    norm = BatchNorm(CHANNELS, sync=True)
    generator = torch.Generator().manual_seed(0)
    for tensor in norm.state_dict().values():
        tensor.copy_(0.5 + torch.rand(CHANNELS, generator=generator))
    return norm


def count_calls(name, calls):
    """Note in ``calls`` how many numbers each call of a collective moves."""
    function = getattr(dist, name)

    def noting(*args, **kwargs):
        calls.append(args[-1].numel())
        return function(*args, **kwargs)

    return mock.patch.object(dist, name, noting)


def step(case, rank):
    x, valid, upstream = data(case, rank)
    norm, calls = make_norm(), []
    with (
        mock.patch.object(kernels, "serve", lambda *tensors: True),
        count_calls("all_gather_into_tensor", calls),
        count_calls("all_reduce", calls),
        dummy_batch() if is_dummy(case, rank) else nullcontext(),
        record_gaps() as gaps,
    ):
        y = norm(x.requires_grad_(), ValidTokens(valid))
        outputs = (y, gaps[0].batch_mean, gaps[0].batch_var)
        if is_dummy(case, rank):  # its share in a penalty is 0
            upstream = upstream[0], *map(torch.zeros_like, upstream[1:])
        gradients = torch.autograd.grad(outputs, (x, *norm.parameters()), upstream)
    names = ("y", "mean", "var", "x", "weight", "bias")
    return {
        **dict(zip(names, (*(output.detach() for output in outputs), *gradients), strict=True)),
        "running": torch.stack(norm.population.get()),
        "before": torch.stack((gaps[0].mean_before, gaps[0].var_before)),
        "count": gaps[0].count,
        "share": gaps[0].share,
        "calls": calls,
    }


def steps(rank):
    return {case: step(case, rank) for case in CASES}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("gloo and the interpreter are for the CPU")
    return on_processes(steps, tmp_path_factory.mktemp("ranks"))


def joined(case):
    """The definition on all real tokens in one batch, in float64; by rank what is a rank's."""
    batches = [(*data(case, rank), counted(case, rank)) for rank in range(WORLD)]
    real = [x[valid].double().requires_grad_() for x, _, _, valid in batches]
    weight, bias = (p.detach().double().requires_grad_() for p in make_norm().parameters())
    y, mean, var = oracles.batch_norm(torch.cat(real), weight, bias)
    parts = y.split([len(tokens) for tokens in real])
    dots = [(p * up[0][valid]).sum() for p, (*_, up, valid) in zip(parts, batches, strict=True)]
    moments = sum(
        (mean * up[1] + var * up[2]).sum()
        for rank, (*_, up, _) in enumerate(batches)
        if not is_dummy(case, rank)
    )
    dx = torch.autograd.grad(sum(dots) + moments, real, retain_graph=True)
    own = [
        # A parameter's gradient is a rank's own: the trainer adds them.
        torch.autograd.grad(dot, (weight, bias), retain_graph=True, allow_unused=True)
        for dot in dots
    ]
    return parts, mean, var, dx, own


@pytest.mark.parametrize("case", [case for case in CASES if case != "no token anywhere"])
def test_two_processes_are_one_on_the_joined_batch(ranks, case):
    parts, mean, var, dx, own = joined(case)
    close = {"rtol": 1e-5, "atol": 1e-5}  # fp32, numbers of size 10
    holding = sum(bool(counted(case, rank).any()) for rank in range(WORLD))
    for rank, batch in enumerate(ranks):
        result, valid = batch[case], counted(case, rank)
        expected = {"mean": mean, "var": var, "weight": own[rank][0], "bias": own[rank][1]}
        expected |= {"running": 0.95 * result["before"].double() + 0.05 * torch.stack((mean, var))}
        for name, exact in expected.items():
            torch.testing.assert_close(result[name].double(), exact, **close, msg=name)
        torch.testing.assert_close(result["y"][valid].double(), parts[rank], **close)
        torch.testing.assert_close(result["x"][valid].double(), dx[rank], **close)
        assert not result["x"][~valid].any()
        assert result["count"] == len(torch.cat(parts))
        assert result["share"] == (1 / holding if valid.any() else 0)


def test_no_token_anywhere_moves_nothing(ranks):
    for batch in ranks:
        result = batch["no token anywhere"]
        assert torch.equal(result["running"], torch.stack(make_norm().population.get()))
        assert torch.equal(result["mean"], result["running"][0])
        assert not any(result[name].any() for name in ("x", "weight", "bias", "count", "share"))


@pytest.mark.parametrize("case", CASES)
def test_one_collective_each_way(ranks, case):
    for batch in ranks:
        assert batch[case]["calls"] == [2 * CHANNELS + 1, 4 * CHANNELS]


def test_processes_have_the_same_statistics_bit_for_bit(ranks):
    for case in CASES:
        first, second = (batch[case] for batch in ranks)
        assert all(torch.equal(first[name], second[name]) for name in ("mean", "var", "running"))
