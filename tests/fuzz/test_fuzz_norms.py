"""Moments and every norm, over shapes, masks, dtypes and layouts: against float64."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
from agreement import randomise
from batches import DTYPES, batches, padded_with, tolerance
from rbn_fairseq.norms import NORMS, NormPlace, ValidTokens, build_norm, record_moments
from rbn_fairseq.norms.moments import batch_moments

EVERY = pytest.mark.parametrize("name", NORMS)
C = 16  # of which `prms` measures one


@given(batches())
def test_moments(batch):
    dtype = torch.promote_types(batch.x.dtype, torch.float32)
    real = batch.real(batch.x)
    mean, var, n, *_ = batch_moments(real.to(dtype), sync=False)
    real = real.double()
    assert n == len(real) and mean.dtype == var.dtype == dtype
    if not len(real):
        assert not mean.any() and not var.any()
        return
    exact_mean, exact_var = oracles.moments(real)
    size = real.abs().amax(0)
    # Roundings of sums of at most 24 terms; of squares around a mean that is a rounding off.
    eps = 24 * torch.finfo(dtype).eps
    assert ((mean - exact_mean).abs() <= eps * size).all()
    assert ((var - exact_var).abs() <= eps * (exact_var + eps * size**2)).all()


@given(batches())
def test_batch_norm_against_the_plain_formula(batch):
    norm = randomise(build_norm(["batch"], NormPlace(batch.x.shape[-1]), {}))
    norm = norm.to(torch.promote_types(batch.x.dtype, torch.float32))
    x = batch.x.clone(memory_format=torch.preserve_format).requires_grad_()
    before, upstream = batch.x.clone(), torch.randn(batch.x.shape, dtype=batch.x.dtype)
    y = norm(x, batch.tokens)
    assert (y.shape, y.dtype) == (x.shape, x.dtype) and torch.equal(batch.x, before)
    ours = torch.autograd.grad(y, (x, norm.weight, norm.bias), upstream)
    if batch.valid is not None:
        assert not ours[0][~batch.valid].any() and not y[~batch.valid].any()
    if not len(batch.real(batch.x)):
        assert all(not gradient.any() for gradient in ours)
        return

    real = batch.real(batch.x).double().requires_grad_()
    affine = [p.detach().double().requires_grad_() for p in (norm.weight, norm.bias)]
    plain, _, var = oracles.batch_norm(real, *affine, norm.options.eps)
    gradients = torch.autograd.grad(plain, (real, *affine), batch.real(upstream).double())
    torch.testing.assert_close(batch.real(y).double(), plain, **tolerance(x.dtype))
    actual = (batch.real(ours[0]), *ours[1:])
    # The terms of x's gradient are of this size and may cancel, as those of two tokens do.
    terms = affine[0].abs().max() * upstream.abs().max() / (var.min() + norm.options.eps).sqrt()
    for one, exact in zip(actual, gradients, strict=True):
        scale = 1 + max(terms.item(), exact.abs().max().item())
        torch.testing.assert_close(one.double() / scale, exact / scale, **tolerance(x.dtype))


@EVERY
@given(batch=batches(dtypes=DTYPES[:3], channels=C), training=st.booleans())
def test_padding_and_layout_never_matter(name, batch, training):
    norm = randomise(build_norm([name], NormPlace(C, heads=2), {})).train(training)
    norm = norm.to(torch.promote_types(batch.x.dtype, torch.float32))
    twin = copy.deepcopy(norm)
    other = padded_with(batch, filling=7.0).contiguous()
    y, same = norm(batch.x, batch.tokens), twin(other, ValidTokens(batch.valid))
    assert (y.shape, y.dtype) == (batch.x.shape, batch.x.dtype)
    torch.testing.assert_close(batch.real(y), batch.real(same), **tolerance(y.dtype))
    for one, other in zip(norm.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@EVERY
@given(batch=batches(channels=C), training=st.booleans())
def test_any_batch_goes_both_ways(name, batch, training):
    norm = randomise(build_norm([name], NormPlace(C, heads=2), {})).train(training)
    norm = norm.to(torch.promote_types(batch.x.dtype, torch.float32))
    x = batch.x.detach().requires_grad_()
    before = batch.x.clone()
    with record_moments() as records:
        y = norm(x, batch.tokens)
    gradients = torch.autograd.grad(y, (x, *norm.parameters()), torch.zeros_like(y))
    assert torch.equal(batch.x, before)
    assert y.shape == x.shape and gradients[0].dtype == x.dtype
    real = len(batch.real(x))
    assert all(record.moments.n == real for record in records)
    assert batch.real(y).isfinite().all() and all(
        gradient.isfinite().all() for gradient in gradients
    )
