"""Every norm over shapes, masks, dtypes and layouts in memory."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agreement import randomise
from batches import DTYPES, batches, padded_with, tolerance
from rbn_fairseq.norms import NORMS, NormPlace, ValidTokens, build_norm, record_moments

EVERY = pytest.mark.parametrize("name", NORMS)
C = 16  # of which `prms` measures one


@EVERY
@given(batch=batches(C, DTYPES[:3]), training=st.booleans())
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
@given(batch=batches(C), training=st.booleans())
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
