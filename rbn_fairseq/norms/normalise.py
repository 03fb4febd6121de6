"""Normalisation by the moments of a batch, as one differentiable function."""

from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rbn_fairseq.norms.moments import all_reduce_sum, world_size
from rbn_fairseq.norms.reductions import batch_norm_backward, gradient_sums, has_kernels
from rbn_fairseq.norms.tokens import ValidTokens

__all__ = ["normalise"]


class _Normalise(torch.autograd.Function):
    """(rows, weight, bias) -> (y, batch mean, batch variance), with all their gradients.

    The moments come in ready, because they also serve elsewhere; they are functions of the rows.

    A penalty on the batch statistics reaches x only through mean and variance, so that its
    gradient folds into the elementwise backward: for real tokens, with s the standard deviation
    and n the number of tokens,

        dx = (weight / s) g + k (x - mean) + c,
        c = dmean / n - (weight / s) mean(g),
        k = 2 dvar / n - (weight / s^3) mean(g (x - mean))

    (the last mean is left out of k where a clamp has made s a constant).
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,  # (tokens, C)
        weight: Tensor,
        bias: Tensor,
        batch_mean: Tensor,
        batch_var: Tensor,
        count: Tensor,
        tokens: ValidTokens,
        norm: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype, ctx.dtypes = batch_mean.dtype, (weight.dtype, bias.dtype)
        inverse, weight = norm.options.std(batch_var).reciprocal(), weight.to(dtype)
        scale = weight * inverse
        shift = torch.addcmul(bias.to(dtype), batch_mean, scale, value=-1)
        y = torch.addcmul(shift, rows, scale)
        ctx.tokens, ctx.sync, ctx.options = tokens, norm.sync, norm.options
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(rows, batch_mean, batch_var, inverse, weight, scale, count)
        return y.to(rows.dtype), batch_mean, batch_var  # views, which have gradients

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        grad_y: Optional[Tensor],
        grad_mean: Optional[Tensor],
        grad_var: Optional[Tensor],
    ) -> tuple[Optional[Tensor], ...]:
        rows, mean, var, inverse, weight, scale, n = ctx.saved_tensors
        tokens: ValidTokens = ctx.tokens
        grad_y = torch.zeros_like(rows) if grad_y is None else grad_y
        grad, x = tokens.clear(grad_y).to(mean.dtype), rows.to(mean.dtype)
        plain = ctx.options.eps_mode == "add" and grad_mean is None and grad_var is None
        if plain and world_size(ctx.sync) == 1 and has_kernels(x, tokens) and tokens.valid is None:
            dx, dweight, dbias = batch_norm_backward(grad, x, weight, mean, inverse)
            return (
                dx.to(rows.dtype),
                dweight.to(ctx.dtypes[0]),
                dbias.to(ctx.dtypes[1]),
                *[None] * 5,
            )
        dbias, dweight = gradient_sums(grad, x, mean, inverse, tokens)
        minus = -scale
        c, k = minus * dbias, minus * inverse * dweight
        if world_size(ctx.sync) > 1:
            rest = [torch.zeros_like(mean) if g is None else g for g in (grad_mean, grad_var)]
            sums = torch.stack([c, k, *rest])  # (4, C)
            c, k, grad_mean, grad_var = all_reduce_sum(sums, ctx.sync).unbind()
        if ctx.options.eps_mode == "clamp":
            k = k * (var > ctx.options.eps)
        if grad_mean is not None:
            c = c + grad_mean
        if grad_var is not None:
            k = k + 2 * grad_var
        n = n.clamp(min=1)
        c, k = c / n, k / n
        dx = torch.addcmul(torch.addcmul(c, k, mean, value=-1), x, k).addcmul_(grad, scale)
        dx = tokens.clear_(dx).to(rows.dtype)
        return dx, dweight.to(ctx.dtypes[0]), dbias.to(ctx.dtypes[1]), *[None] * 5


normalise: Callable[..., tuple[Tensor, Tensor, Tensor]] = _Normalise.apply
