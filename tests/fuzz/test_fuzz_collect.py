"""Statistics over lists of batches, some of them empty: against float64 over all tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
from agreement import randomise
from batches import batches
from rbn_fairseq.diagnostics import collect_moments, deviation, population, tid
from rbn_fairseq.norms import NormPlace, build_norm

C = 3
LISTS = st.lists(batches(dtypes=(torch.float32,), channels=C), max_size=6)
CLOSE = {"rtol": 1e-4, "atol": 1e-4}  # moments in fp32, of up to 24 values of size up to 100


def collected(listed):
    """Moments of the only layer; ``None`` where no batch has a real token."""
    norm = randomise(build_norm(["batch"], NormPlace(C), {}))
    before = [buffer.clone() for buffer in norm.buffers()]
    moments = collect_moments(norm, listed, lambda norm, batch: norm(batch.x, batch.tokens))
    assert all(torch.equal(*pair) for pair in zip(norm.buffers(), before, strict=True))
    assert norm.training
    return moments.get("")


def close(actual, exact):
    size = max(1.0, exact.abs().max().item())
    torch.testing.assert_close(actual / size, exact / size, **CLOSE)


@given(LISTS, st.randoms(use_true_random=False))
def test_against_all_tokens(listed, random):
    real = [rows for batch in listed if len(rows := batch.real(batch.x).double())]
    moments = collected(listed)
    if not real:
        assert moments is None
        return
    mean, var = (torch.stack(values) for values in zip(*map(oracles.moments, real), strict=True))
    assert moments.count.tolist() == [len(rows) for rows in real]
    close(moments.mean, mean)
    close(moments.var, var)

    pooled = oracles.moments(torch.cat(real))
    simple = mean.mean(0), var.mean(0)
    for estimate, exact in (("pooled", pooled), ("mean-of-batches", simple)):
        for one, other in zip(population(moments, estimate), exact, strict=True):
            close(one, other)
    shuffled = random.sample(listed, len(listed))
    for one, other in zip(population(collected(shuffled), "pooled"), pooled, strict=True):
        close(one, other)

    std = simple[1].sqrt()
    if std.norm() > 0.1:  # else TID is a quotient of roundings
        distance = (mean - simple[0]).norm(dim=1), (var.sqrt() - std).norm(dim=1)
        exact = [(part / std.norm()).mean().item() for part in distance]
        assert tid(moments) == pytest.approx(exact, rel=2e-2, abs=2e-2)
        assert deviation(moments)[1] >= 0


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 2**32))
def test_torchs_norms_alike(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    listed = [torch.randn(size, C, 2, generator=generator) for size in sizes]
    norm = torch.nn.BatchNorm1d(C)
    (moments,) = collect_moments(norm, listed).values()
    rows = [x.movedim(1, -1).reshape(-1, C).double() for x in listed]
    mean, var = (torch.stack(values) for values in zip(*map(oracles.moments, rows), strict=True))
    close(moments.mean, mean)
    close(moments.var, var)
    assert moments.count.tolist() == [2 * size for size in sizes]
